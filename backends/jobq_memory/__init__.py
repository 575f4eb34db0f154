"""The in-process backend: `memory://NAME/QUEUE`, a lease-aware router for the library and for tests.

Nothing is stored outside the process, so "durable" (S1) means: as long as the process lives.
"""

from jobq.backend import Backend
from jobq.errors import InvalidSpec
from jobq.settings import Settings
from jobq.spec import QueueSpec
from jobq_memory.backend import MemoryBackend, MemoryDelivery
from jobq_memory.entry import State
from jobq_memory.router import Router, TaskView, TraceEvent, forget, router

__all__ = [
    "MemoryBackend",
    "MemoryDelivery",
    "Router",
    "State",
    "TaskView",
    "TraceEvent",
    "connect",
    "forget",
    "router",
]


def connect(spec: QueueSpec, settings: Settings) -> Backend:  # noqa: ARG001 - every entry point takes both
    """Return a handle on a queue of the router that the spec names; one router per name and process.

    Raises:
        InvalidSpec: the spec names no router.
    """
    if not spec.location:
        raise InvalidSpec(f"{str(spec)!a} names no router; a spec of this kind reads memory://NAME/QUEUE")
    return MemoryBackend(router(spec.location), spec.queue)
