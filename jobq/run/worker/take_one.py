"""One task for a program that says itself what becomes of it: `Queue.get`."""

import asyncio
import logging
import time
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any

from jobq.backend import Backend
from jobq.errors import JobqError, LockLost
from jobq.racing import first_done
from jobq.run.callbacks.taken_task import HandOut, TakenTask
from jobq.run.stopping import Stopping
from jobq.run.worker.pull_one import PullWay, pull_and_execute
from jobq.settings import Settings

if TYPE_CHECKING:
    from jobq.run.attempt.supervisor import DeliveryReport

_log = logging.getLogger(__name__)


class Taking:
    """Receives a task when it is entered, and lets nothing of it behind when it is left; see `Queue.get`.

    Args:
        backend: entered.
        settings: leases, budgets, limits.
        wait: how long to stay for a task.
    """

    def __init__(self, backend: Backend, settings: Settings, wait: timedelta) -> None:
        self._backend = backend
        self._settings = settings
        self._wait = wait
        self._hand_out: HandOut
        self._stopping: Stopping
        self._pulling: asyncio.Task[DeliveryReport | None] | None = None

    @property
    def is_entered(self) -> bool:
        """Whether there is a task that is held."""
        return self._pulling is not None and not self._pulling.done()

    async def __aenter__(self) -> TakenTask | None:
        end = time.monotonic() + self._wait.total_seconds()
        while True:
            taken, was_one = await self._next(max(0.0, end - time.monotonic()))
            if taken is not None or not was_one:
                return taken  # else it could not be handed out (no task, canceled): look for another

    async def _next(self, seconds: float) -> tuple[TakenTask | None, bool]:
        """Return a task, and whether there was one at all."""
        self._hand_out, self._stopping = HandOut(), Stopping()
        pull = pull_and_execute(
            self._backend,
            self._settings,
            PullWay(inside=self._hand_out),
            wait=timedelta(seconds=seconds),
            stopping=self._stopping,
            on_line=lambda _task, _stream, _line: None,
        )
        self._pulling = asyncio.create_task(pull, name="a task that was taken")
        try:
            ends: set[asyncio.Future[Any]] = {self._pulling, self._hand_out.taken}
            await first_done(*ends)
        except asyncio.CancelledError:
            await self._give_back("the caller was cancelled")
            raise
        if not self._hand_out.taken.done():
            return None, self._pulling.result() is not None
        taken = self._hand_out.taken.result()
        self._pulling.add_done_callback(lambda pulled: _report(taken, pulled))
        return taken, True

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pulling is None or not self._hand_out.taken.done():
            return
        taken = self._hand_out.taken.result()
        if taken.said.done() and not taken.said.cancelled():
            await asyncio.wait({self._pulling})  # its end was reported, and the reporter hears what came of it
        elif error is not None and not isinstance(error, Exception):
            await self._give_back(f"the caller was interrupted: {type(error).__name__}")
        else:
            await self._fail(taken, error)

    async def _fail(self, taken: TakenTask, error: Exception | None) -> None:
        """Say for a program that says nothing that it failed: silence is no success."""
        try:
            await taken.fail(error or "it was left without complete() or fail()")
        except JobqError as lost:
            if error is None:
                raise
            if not isinstance(error, LockLost):
                _log.warning("%s, and what it failed with is not recorded", lost)

    async def _give_back(self, cause: str) -> None:
        assert self._pulling is not None
        self._hand_out.is_left = True
        self._stopping.now(cause)
        await asyncio.wait({self._pulling})


def _report(taken: TakenTask, pulled: "asyncio.Task[DeliveryReport | None]") -> None:
    failed = pulled.cancelled() or pulled.exception() is not None
    taken.reported.set_result(None if failed else pulled.result())
