"""Runs callbacks inside this process: asynchronous ones, and plain ones in threads. Neither can be killed."""

import asyncio
import contextvars
import logging
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final

from jobq.backend import Delivery
from jobq.errors import JobqError
from jobq.lease.keeper import LeaseKeeper
from jobq.racing import first_done, never
from jobq.run.attempt.result import with_returned
from jobq.run.attempt.runner import Running
from jobq.run.callbacks.callback import CONTEXT, ArgumentsRefused, CallbackSignature
from jobq.run.callbacks.task_context import TaskContext, thread_context
from jobq.run.process.spawner import Deadline, StartFailed
from jobq.task import Outcome, OutcomeKind, Task

PATIENCE_SECONDS: Final = 5.0  # how long a cancelled callback may take to end before it is left to itself
_log: Final = logging.getLogger(__name__)


class CallbackFailed(JobqError):
    """A callback ended in a way that asyncio would take for its own end."""


class CallbackRunner:
    """Runs an asynchronous callback on this event loop; it is cancelled where a command would be killed.

    Args:
        convention: whose callback to call.
        patience: seconds that a callback may take to end after its cancellation.
    """

    def __init__(self, convention: CallbackSignature, *, patience: float = PATIENCE_SECONDS) -> None:
        self._convention = convention
        self._patience = patience

    async def start(self, task: Task, delivery: Delivery, *, deadline: Deadline, keeper: LeaseKeeper) -> Running:  # noqa: ARG002 - nobody else can stop it: the keeper's event is all there is
        """Schedule the callback."""
        arguments = _arguments(self._convention, task, lambda: TaskContext(task, delivery, keeper))
        if isinstance(arguments, Ended):
            return arguments
        calling = asyncio.create_task(self._call(arguments), name=f"callback of {task.id}")
        return FutureRunning(calling, task.id, stop=calling.cancel, patience=self._patience)

    async def _call(self, arguments: dict[str, Any]) -> Any:
        try:
            return await self._convention.callback(**arguments)
        except SystemExit as error:  # asyncio would end the whole loop, and with it the neighbours (S11)
            _check_code(error)


class ThreadRunner:
    """Runs a plain callback in a thread of this process, which nothing can end but itself.

    A lost lease or a stop therefore leaves it running, unprotected; its task is left to the lease.

    Args:
        convention: whose callback to call.
    """

    def __init__(self, convention: CallbackSignature) -> None:
        self._convention = convention

    async def start(self, task: Task, delivery: Delivery, *, deadline: Deadline, keeper: LeaseKeeper) -> Running:  # noqa: ARG002 - nobody else can stop it: the keeper's event is all there is
        """Start the thread; raises StartFailed."""
        arguments = _arguments(self._convention, task, lambda: thread_context(task, delivery, keeper))
        if isinstance(arguments, Ended):
            return arguments
        try:
            future = _in_thread(lambda: self._convention.callback(**arguments), f"jobq {task.id}")
        except RuntimeError as error:
            raise StartFailed(f"no thread for it: {error}; raise `ulimit -u`", transient=True) from error
        return FutureRunning(future, task.id, stop=_cannot, patience=0.0)


class Ended:
    """An attempt that had ended before it began.

    Args:
        outcome: how.
    """

    def __init__(self, outcome: Outcome) -> None:
        self._outcome = outcome

    async def exited(self) -> None:
        """Return at once."""

    def has_exited(self) -> bool:
        """Return True."""
        return True

    async def ended(self) -> Outcome:
        """Return the outcome."""
        return self._outcome

    def over_limit(self) -> Awaitable[str]:
        """Return what is never done."""
        return never()

    def terminate(self) -> None:
        """Do nothing, as all that follows."""

    def kill(self) -> None:
        """See above."""

    async def close(self) -> None:
        """See above."""


class FutureRunning:
    """An attempt that has ended once a future has.

    Args:
        future: its result is the task's value, its exception a failure.
        task_id: whose.
        stop: what asks it to end sets this.
        patience: seconds that it may take to do so, before it is left to itself, and its task to the lease.
    """

    def __init__(
        self, future: "asyncio.Future[Any]", task_id: str, *, stop: Callable[[], object], patience: float
    ) -> None:
        self._future = future
        self._task_id = task_id
        self._stop = stop
        self._patience = patience
        self._was_killed = False
        self._is_left = False
        self._started = time.monotonic()

    def has_exited(self) -> bool:
        """Return whether it has ended."""
        return self._future.done()

    async def exited(self) -> None:
        """Wait for its end."""
        await first_done(self._future)

    async def ended(self) -> Outcome:
        """Say how it ended, or that it does not."""
        if not self._is_left and self._was_killed:
            await asyncio.wait({self._future}, timeout=self._patience)
        elif not self._is_left:
            await first_done(self._future)
        duration = time.monotonic() - self._started
        if not self._future.done():
            self._leave()
            detail = "the callback cannot be ended and runs on: its task is left to the lease"
            return Outcome(kind=OutcomeKind.LOCK_LOST, detail=detail, duration=duration)
        if self._future.cancelled():
            return Outcome(kind=OutcomeKind.CRASHED, detail="the callback was cancelled", duration=duration)
        error = self._future.exception()
        if error is not None:
            # Text of our own errors only: another's may hold a connection string (A5).
            detail = f"{type(error).__name__}: {error}" if isinstance(error, JobqError) else type(error).__name__
            return Outcome(kind=OutcomeKind.FAILED, detail=detail, duration=duration)
        return with_returned(Outcome(kind=OutcomeKind.SUCCEEDED, duration=duration), self._future.result())

    def _leave(self) -> None:
        if not self._is_left:
            self._is_left = True
            self._future.add_done_callback(_forget)
            _log.error(
                "the callback of task %s does not end when it is asked to; it runs on without a lease", self._task_id
            )

    def over_limit(self) -> Awaitable[str]:
        """Return what is never done."""
        return never()  # its memory is this process's own, and cannot be separated

    def terminate(self) -> None:
        """Ask it to end."""
        self._stop()

    def kill(self) -> None:
        """Ask it to end, and wait for so long only."""
        self._was_killed = True
        self._stop()

    async def close(self) -> None:
        """Leave it, if it runs still."""
        self.kill()
        await self.ended()


def _arguments(convention: CallbackSignature, task: Task, context: Callable[[], object]) -> "dict[str, Any] | Ended":
    """Return what the callback is called with, or that it cannot be called with the task's arguments."""
    try:
        arguments = convention.arguments(task)
    except ArgumentsRefused as refused:
        return Ended(Outcome(kind=OutcomeKind.FAILED, detail=str(refused)))
    return arguments | {CONTEXT: context()} if convention.takes_context else arguments


def _cannot() -> None:
    """Stop a thread: nothing can."""


def _in_thread(function: Callable[[], Any], name: str) -> "asyncio.Future[Any]":
    """Call a function in a thread of its own, which holds up neither the loop's end nor the program's."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[Any] = loop.create_future()

    def settle(value: Any, error: Exception | None) -> None:
        if error is None:
            ended.set_result(value)
        else:
            ended.set_exception(error)

    def call() -> Any:
        try:
            return context.run(function)
        except SystemExit as error:
            _check_code(error)
        except StopIteration:  # which no future takes
            raise CallbackFailed("StopIteration") from None
        except Exception:
            raise
        except BaseException as error:  # noqa: BLE001 - in a future it would end the loop
            raise CallbackFailed(type(error).__name__) from None

    def run() -> None:
        value: Any = None
        fault: Exception | None = None
        try:
            value = call()
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the task's
            fault = error
        with suppress(RuntimeError):  # the loop is closed: the task was left to its lease
            loop.call_soon_threadsafe(settle, value, fault)

    context = contextvars.copy_context()
    threading.Thread(target=run, name=name, daemon=True).start()
    return ended


def _check_code(error: SystemExit) -> None:
    """Return for an exit code 0, as a command succeeds by it; raise for any other."""
    if error.code not in (None, 0):
        raise CallbackFailed(f"it called exit({error.code if isinstance(error.code, int) else '...'})") from None


def _forget(late: "asyncio.Future[Any]") -> None:
    if not late.cancelled() and late.exception() is not None:
        _log.debug("a callback that was left ended: %r", late.exception())
