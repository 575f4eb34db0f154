"""jobq runs commands that matter on machines that vanish: a task's processes live exactly as long as its lease."""

TYPE_CHECKING = False  # as in `typing`, whose import would cost a fifth of `jobq --version`
if TYPE_CHECKING:
    from typing import Any

    from jobq import sync
    from jobq.backend import Backend, Capabilities, DeadLetter, Delivery, FencingNumber, QueueStats
    from jobq.batch_handle import BatchHandle
    from jobq.batches import Batch
    from jobq.errors import JobqError
    from jobq.lease.named import NamedLease
    from jobq.lease.traversal import Page, Traversal
    from jobq.queue import Queue, connect
    from jobq.run.callbacks.sync_task_context import SyncTaskContext
    from jobq.run.callbacks.taken_task import TakenTask
    from jobq.run.callbacks.task_context import TaskContext
    from jobq.run.stopping import Stopping
    from jobq.settings import Settings
    from jobq.task import Outcome, OutcomeKind, Task, TaskResult
    from jobq.task_client import checkpoint, checkpoint_directory, progress
    from jobq.task_handle import TaskHandle
    from jobq.workspec import WorkSpecification

__version__ = "0.1.0"

_HOME_OF = {
    "Backend": "jobq.backend",
    "Batch": "jobq.batches",
    "BatchHandle": "jobq.batch_handle",
    "Capabilities": "jobq.backend",
    "DeadLetter": "jobq.backend",
    "Delivery": "jobq.backend",
    "FencingNumber": "jobq.backend",
    "JobqError": "jobq.errors",
    "NamedLease": "jobq.lease.named",
    "Outcome": "jobq.task",
    "OutcomeKind": "jobq.task",
    "Page": "jobq.lease.traversal",
    "Queue": "jobq.queue",
    "QueueStats": "jobq.backend",
    "Settings": "jobq.settings",
    "Stopping": "jobq.run.stopping",
    "SyncTaskContext": "jobq.run.callbacks.sync_task_context",
    "Task": "jobq.task",
    "TaskHandle": "jobq.task_handle",
    "TakenTask": "jobq.run.callbacks.taken_task",
    "TaskContext": "jobq.run.callbacks.task_context",
    "TaskResult": "jobq.task",
    "Traversal": "jobq.lease.traversal",
    "WorkSpecification": "jobq.workspec",
    "checkpoint": "jobq.task_client",
    "checkpoint_directory": "jobq.task_client",
    "connect": "jobq.queue",
    "progress": "jobq.task_client",
}

_OF_AI4S_JOBQ = {
    "EmptyQueue": "the None that pull_and_execute returns",
    "JobQ": "jobq.connect(SPEC)",
    "LockLostError": "the end of a callback, whose delivery is left to its lease",
    "batch_enqueue": "queue.push of many, or jobq.workspec.enqueue",
    "launch_workers": "queue.worker(callback)",
}

__all__ = [
    "Backend",
    "Batch",
    "BatchHandle",
    "Capabilities",
    "DeadLetter",
    "Delivery",
    "FencingNumber",
    "JobqError",
    "NamedLease",
    "Outcome",
    "OutcomeKind",
    "Page",
    "Queue",
    "QueueStats",
    "Settings",
    "Stopping",
    "SyncTaskContext",
    "TakenTask",
    "Task",
    "TaskContext",
    "TaskHandle",
    "TaskResult",
    "Traversal",
    "WorkSpecification",
    "checkpoint",
    "checkpoint_directory",
    "connect",
    "progress",
    "sync",
]


def __getattr__(name: str) -> "Any":
    """Import a public name on first use, so that `jobq --help` pays for none of them (architecture 10)."""
    if name not in _HOME_OF and name != "sync":
        if name in _OF_AI4S_JOBQ:  # an ImportError: `from jobq import JobQ` would swallow an AttributeError's words
            raise ImportError(
                f"ai4s-jobq's {name} is here: {_OF_AI4S_JOBQ[name]}; see docs/from-ai4s-jobq.md", name=name
            )
        raise AttributeError(f"module 'jobq' has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415 - costs more than all else here

    if name == "sync":
        return import_module("jobq.sync")
    return getattr(import_module(_HOME_OF[name]), name)
