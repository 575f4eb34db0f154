"""What a push returns for each task: its id, which also knows where to ask for what becomes of it."""

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Self

from jobq.errors import TaskNotFound
from jobq.formats.arguments import checked_seconds
from jobq.journal.records import Canceled, TaskRecord
from jobq.journal.store import Journal, journal_of
from jobq.journal.wait_for_end import ended
from jobq.task import TaskResult

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from jobq.backend import Backend


class TaskHandle(str):
    """The id of a task that was pushed, as a string, with verbs.

    All verbs raise ConfigurationError where the queue's service keeps no journal, and what its backend raises.
    """

    __slots__ = ("_backend", "_pushed")
    _backend: "Backend"
    _pushed: str

    @classmethod
    def of(cls, task_id: str, backend: "Backend") -> Self:
        """Return the handle of a task on an entered backend: of that life of its id which a push has returned."""
        handle = cls(task_id)
        handle._backend, handle._pushed = backend, cls.pushed(task_id)
        return handle

    @staticmethod
    def pushed(task_id: str) -> str:
        """Return an id as its push has returned it, which may know more than its text: of a handle that within."""
        # Both are of this file; what they hold is of no use to others.
        handle = task_id._handle if isinstance(task_id, SyncTaskHandle) else task_id  # noqa: SLF001
        return handle._pushed if isinstance(handle, TaskHandle) else task_id  # noqa: SLF001

    @property
    def id(self) -> str:
        """The id as a plain string."""
        return str(self)

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        """A copy in another process is the id alone."""
        return str, (str(self),)

    async def result(self, timeout: float | timedelta | None = None) -> TaskResult:
        """Wait for the task's end and return what it came to, whether it succeeded or not.

        Args:
            timeout: seconds to wait; None = for as long as it takes.

        Raises:
            TimeoutError: it has not ended in time; says which task, and how long that was.
            TaskNotFound: it is not known any more: it was cleared, purged, or forgotten.
        """
        seconds = checked_seconds("timeout", timeout)
        journal = self._journal
        try:
            async with asyncio.timeout(seconds) as limit:
                async for _, record in ended(journal, [self._pushed], lag=self._backend.capabilities.record_lag):
                    if record is None:
                        raise unknown(self.id)
                    return await result_of(journal, record)
        except TimeoutError:
            if not limit.expired():
                raise
            raise TimeoutError(
                f"task {self.id} has not ended within {seconds:g} s; it goes on, and its status() says where it is"
            ) from None
        raise AssertionError  # `ended` yields each id once

    async def status(self) -> TaskRecord:
        """Return where it is now; raises TaskNotFound."""
        found = await self._journal.find([self._pushed])
        if not found:
            raise unknown(self.id)
        return found[0]

    async def cancel(self) -> Canceled:
        """Cancel it: one that waits has ended, one that runs is stopped with its next heartbeat."""
        return (await self._journal.cancel([self._pushed]))[0]

    @property
    def _journal(self) -> Journal:
        return journal_of(self._backend)


class SyncTaskHandle(str):
    """The same for `jobq.sync`: each verb waits for its end."""

    __slots__ = ("_call", "_handle")
    _call: "Callable[[Coroutine[Any, Any, Any]], Any]"
    _handle: TaskHandle

    @classmethod
    def of(cls, handle: TaskHandle, call: "Callable[[Coroutine[Any, Any, Any]], Any]") -> Self:
        """Return the blocking handle; `call` runs a coroutine to its end."""
        made = cls(handle)
        made._handle, made._call = handle, call
        return made

    @property
    def id(self) -> str:
        """The id as a plain string."""
        return str(self)

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        """A copy in another process is the id alone."""
        return str, (str(self),)

    def result(self, timeout: float | timedelta | None = None) -> TaskResult:
        """Wait for the task's end; see `TaskHandle.result`."""
        found: TaskResult = self._call(self._handle.result(timeout))
        return found

    def status(self) -> TaskRecord:
        """Return where it is now; see `TaskHandle.status`."""
        found: TaskRecord = self._call(self._handle.status())
        return found

    def cancel(self) -> Canceled:
        """Cancel it; see `TaskHandle.cancel`."""
        answer: Canceled = self._call(self._handle.cancel())
        return answer


async def result_of(journal: Journal, record: TaskRecord) -> TaskResult:
    """Return what a task that has ended came to, with the end of its output."""
    output = await journal.output(record.id)
    is_of_last = output is not None and record.last is not None and output[0] == record.last.attempt
    return record.result(output[1] if output is not None and is_of_last else "")


def unknown(task_id: str) -> TaskNotFound:
    """Return the error for an id that names nothing."""
    return TaskNotFound(f"no task with the id {task_id} is known: it was never here, was cleared, or is forgotten")
