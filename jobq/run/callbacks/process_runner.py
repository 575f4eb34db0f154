"""Runs a plain callback in a supervised process of its own, since a thread cannot be stopped (architecture 6)."""

import base64
import inspect
import os
import sys
from dataclasses import replace
from typing import Any, Final, Protocol

from jobq.backend import Delivery
from jobq.errors import ConfigurationError
from jobq.formats.checkpoint_format import StoredCheckpoint
from jobq.lease.keeper import LeaseKeeper
from jobq.run.attempt.attempt_journal import Glimpsed
from jobq.run.attempt.result import with_text
from jobq.run.attempt.runner import CommandRunner, Running
from jobq.run.callbacks import child_program
from jobq.run.callbacks.callback import ArgumentsRefused, Callback, CallbackSignature
from jobq.run.callbacks.callback_channel import CallbackChannel
from jobq.run.callbacks.inline_runner import Ended
from jobq.run.process.spawner import Deadline, StartFailed
from jobq.task import Outcome, OutcomeKind, Task


class ProcessRunner:
    """Runs a plain callback as a process: what befalls a command befalls it too, its tree dies with its lease.

    Args:
        convention: whose callback to call.
        function: its `module:qualname`, or the pickled function (`portable`).
        commands: starts processes.
    """

    def __init__(self, convention: CallbackSignature, function: str | bytes, commands: CommandRunner) -> None:
        self._convention = convention
        self._function: Final = {
            "function": function if isinstance(function, str) else None,
            "pickled": base64.b64encode(function).decode() if isinstance(function, bytes) else None,
        }
        self._commands = commands

    async def start(self, task: Task, delivery: Delivery, *, deadline: Deadline, keeper: LeaseKeeper) -> Running:
        """Start the process; raises StartFailed."""
        try:
            kwargs = self._convention.arguments(task)
        except ArgumentsRefused as refused:
            return Ended(Outcome(kind=OutcomeKind.FAILED, detail=str(refused)))
        context = _context_of(task, delivery) if self._convention.takes_context else None
        letter = {"path": _import_path(), **self._function, "kwargs": kwargs, "context": context}
        try:
            line = CallbackChannel(letter, keeper)
        except OSError as error:
            raise StartFailed(f"no socket for its answers: {error.strerror}", transient=True) from error
        try:
            running = await self._commands.launch(
                task,
                delivery,
                deadline=deadline,
                argv=(sys.executable, "-P", child_program.__file__),
                variables={child_program.SOCKET_VARIABLE: line.path},
            )
        except BaseException:
            await line.close()
            raise
        line.speaks_with(running.pid)
        return _ProcessRunning(running, line)


class _Process(Running, Glimpsed, Protocol):
    """A process that can be looked at."""


class _ProcessRunning:
    """The process, and what it said of its callback before it ended."""

    def __init__(self, process: "_Process", line: CallbackChannel) -> None:
        self._process = process
        self._line = line
        self.exited = process.exited
        self.has_exited = process.has_exited
        self.over_limit = process.over_limit
        self.terminate = process.terminate
        self.kill = process.kill
        self.reading = process.reading
        self.output_end = process.output_end

    async def ended(self) -> Outcome:
        outcome = await self._process.ended()
        if outcome.kind is OutcomeKind.SUCCEEDED:
            if self._line.returned:
                line = self._line
                return with_text(outcome, line.text) if line.text else replace(outcome, value_lost=line.lost)
            detail = "its process ended with exit code 0 before the callback had returned"
            return replace(outcome, kind=OutcomeKind.FAILED, detail=detail)
        if outcome.kind is OutcomeKind.FAILED and self._line.raised:
            return replace(outcome, detail=f"{self._line.raised} ({outcome.detail})")
        return outcome

    async def close(self) -> None:
        try:
            await self._process.close()
        finally:
            await self._line.close()


def portable(callback: Callback, name: str) -> str | bytes:
    """Return what another process makes the callback of: `module:qualname` if it can be imported, else a pickle of it.

    Args:
        callback: a plain function, or anything that can be called.
        name: for messages.

    Raises:
        ConfigurationError: it holds what cannot be taken to another process, such as a lock or a connection.
    """
    if (reference := _reference(callback)) is not None:
        return reference
    import cloudpickle  # noqa: PLC0415 - only what cannot be imported needs it

    try:
        pickled: bytes = cloudpickle.dumps(callback)
    except Exception as error:
        raise ConfigurationError(
            f"callback {name} cannot be sent to a process of its own: {error}; use what it needs inside of it, make it"
            " `async`, or pass thread=True (then a lost lease cannot stop it)"
        ) from error
    return pickled


def _reference(callback: Callback) -> str | None:
    module, path = getattr(callback, "__module__", None), getattr(callback, "__qualname__", "")
    if not isinstance(module, str) or module in ("__main__", "__mp_main__") or not path:
        return None
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        found = inspect.getattr_static(found, part, None)
    found = found.__func__ if isinstance(found, staticmethod) else found
    return f"{module}:{path}" if found is callback else None


def _import_path() -> list[str]:
    """Return sys.path for a process that may run in another folder."""
    return [os.path.abspath(entry) for entry in sys.path]  # noqa: PTH100 - "" stands for the current folder


def _context_of(task: Task, delivery: Delivery) -> dict[str, Any]:
    return {
        "id": task.id,
        "attempt": delivery.deliveries,
        "fencing": list(delivery.fencing),
        "checkpoint": StoredCheckpoint.decode(delivery.checkpoint_value).value,
    }
