"""A command that runs while a named lease is held, and dies with it: `jobq lease run` (S10, P1).

The order of things: the lease, then the command under the lease's deadline, which the guardian enforces; the command's
whole tree is dead before the name is given back.
"""

import asyncio
import logging
import os
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from jobq.clock import Clock, SystemClock
from jobq.errors import LockLost
from jobq.lease.named import NamedLease
from jobq.racing import first_done, racing
from jobq.run.process.spawner import Deadline, ExitStatus, Launch, Process, Spawner, StartFailed, StatusLost
from jobq.run.worker.signals import obeying
from jobq.settings import Settings

_log: Final = logging.getLogger(__name__)
NOT_STARTED: Final = 127  # as shells and env(1) have it
_KILLED_BY: Final = 128
# What is between us and our guardian, and no matter of the command's.
_INTERNAL: Final = frozenset({"JOBQ_GUARDIAN_FD", "JOBQ_GUARDIAN_RESTARTED"})


@dataclass(frozen=True, kw_only=True)
class LeaseCommandEnd:
    """How a run ended.

    Attributes:
        exit_code: the command's, 128+n for signal n; 127 when it could not be started; None when the lease was lost.
        cause: what is to be printed, in plain words; empty for nothing.
    """

    exit_code: int | None
    cause: str = ""


class LeaseCommand:
    """Runs one command under one named lease.

    Args:
        lease_of: makes the lease, not yet entered; given what to call with each new deadline.
        spawner: an entered spawner.
        settings: graces, and what the command gets when the lease cannot be kept.
        clock: the machine's, but for tests.
    """

    def __init__(
        self,
        lease_of: Callable[[Callable[[float], None]], NamedLease],
        spawner: Spawner,
        settings: Settings,
        clock: Clock | None = None,
    ) -> None:
        self._spawner = spawner
        self._settings = settings
        self._clock = clock or SystemClock()
        self._deadline = Deadline(self._clock.boottime())
        self._lease = lease_of(self._deadline.move)
        self._process: Process | None = None
        self._asked: list[signal.Signals] = []  # by which signals it is to end
        self._early: list[signal.Signals] = []  # what asks for no end and came before the process was known
        self._asked_to_stop = asyncio.Event()
        self._asked_twice = asyncio.Event()

    async def run(self, argv: Sequence[str], environment: Mapping[str, str]) -> LeaseCommandEnd:
        """Wait for the lease, run the command and give the lease back.

        Args:
            argv: the command.
            environment: what it inherits; jobq adds JOBQ_LEASE_NAME and JOBQ_LEASE_TOKEN.

        Raises:
            LeaseHeld: the name is held elsewhere, for longer than we wait.
            JobqError: the lease could not be had.
        """
        with obeying(self._on_signal):
            if not await self._entered():
                return LeaseCommandEnd(exit_code=_KILLED_BY + self._asked[0])
            ended = LeaseCommandEnd(exit_code=None)
            try:
                ended = await self._run(argv, environment)
            finally:
                gone = await self._left()
            if ended.exit_code is None:
                why = self._lease.loss.cause if self._lease.loss is not None else gone
                return LeaseCommandEnd(
                    exit_code=None, cause=ended.cause or f"the lease was lost, the command was killed: {why}"
                )
            return ended

    async def _entered(self) -> bool:
        """Enter the lease; False when a signal came first."""
        with racing(self._lease.__aenter__(), self._asked_to_stop.wait()) as (entering, asked):
            await first_done(entering, asked)
            if not entering.done():
                entering.cancel()
                await asyncio.wait([entering])
                if entering.cancelled():
                    return False
            entering.result()
        return True

    async def _left(self) -> str:
        """Leave the lease; return why it was lost before, if it was."""
        try:
            await self._lease.__aexit__(None, None, None)
        except LockLost as error:
            return str(error)
        return ""

    async def _run(self, argv: Sequence[str], environment: Mapping[str, str]) -> LeaseCommandEnd:
        try:
            process = await self._started(argv, environment)
        except StartFailed as error:
            return LeaseCommandEnd(exit_code=NOT_STARTED, cause=str(error))
        except StatusLost as error:
            self._lease.leave_to_expire()  # it may live
            return LeaseCommandEnd(exit_code=None, cause=f"{error}; the lease is left to expire")
        if process is None:
            return LeaseCommandEnd(exit_code=None)
        self._process = process
        for number in (*self._early, *self._asked):
            process.signal(number)
        try:
            return self._judged(await self._until_ended(process))
        except StatusLost as error:
            self._lease.leave_to_expire()
            return LeaseCommandEnd(exit_code=None, cause=f"{error}; the lease is left to expire")
        finally:
            process.kill()

    async def _started(self, argv: Sequence[str], environment: Mapping[str, str]) -> Process | None:
        inherited = {name: value for name, value in environment.items() if name not in _INTERNAL}
        launch = Launch(
            argv=tuple(argv),
            env={**inherited, "JOBQ_LEASE_NAME": self._lease.name, "JOBQ_LEASE_TOKEN": str(self._lease.token)},
            stdout=1,
            stderr=2,
            deadline=self._deadline,
        )
        with racing(self._spawner.spawn(launch), self._lease.lost.wait()) as (starting, lost):
            await first_done(starting, lost)
            if not starting.done():
                starting.cancel()  # what starts it kills what may come of it
                await asyncio.wait([starting])
            return None if starting.cancelled() else starting.result()

    async def _until_ended(self, process: Process) -> ExitStatus:
        """Wait for its end, or end it: the lease is lost, or somebody asked."""
        with racing(process.wait(), self._lease.lost.wait(), self._asked_to_stop.wait()) as (end, lost, asked):
            await first_done(end, lost, asked)
            if not end.done() and not lost.done():
                kill_at = self._clock.boottime() + self._settings.stop_grace.total_seconds()
                await self._first_of(end, lost, self._asked_twice.wait(), self._clock.sleep_until(kill_at))
                if not end.done() and not lost.done():
                    process.kill()
                    await asyncio.wait([end])
            if not end.done():
                await self._end_with_lease(process, end)
            status: ExitStatus = end.result()
            return status

    async def _end_with_lease(self, process: Process, end: "asyncio.Future[ExitStatus]") -> None:
        """SIGTERM only while the lease is ours, SIGKILL at its deadline at the latest (P6)."""
        loss = self._lease.loss
        if loss is not None and not loss.refused and loss.deadline > self._clock.boottime():
            process.signal(signal.SIGTERM)
            await self._first_of(end, self._clock.sleep_until(loss.deadline))
        process.kill()
        await asyncio.wait([end])

    @staticmethod
    async def _first_of(*waits: "Awaitable[object] | asyncio.Future[object]") -> None:
        others = [wait for wait in waits if not isinstance(wait, asyncio.Future)]
        with racing(*others) as futures:
            known = [wait for wait in waits if isinstance(wait, asyncio.Future)]
            await first_done(*known, *futures)

    def _judged(self, status: ExitStatus) -> LeaseCommandEnd:
        if status.survivors:
            self._lease.leave_to_expire()
            _log.warning("%d processes could not be killed yet: the lease is left to expire", status.survivors)
        if status.overdue or self._lease.lost.is_set():
            return LeaseCommandEnd(exit_code=None)
        if status.signal is not None:
            return LeaseCommandEnd(exit_code=_KILLED_BY + status.signal)
        return LeaseCommandEnd(exit_code=status.exit_code)

    def _on_signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.signal(number)
        if number is signal.SIGUSR1:
            if self._process is None:  # it may run already, and the word of that be under way
                self._early.append(number)
            return
        if self._asked and number is signal.SIGINT:
            self._asked_twice.set()
        self._asked.append(number)
        self._asked_to_stop.set()


def inherited_by_command() -> dict[str, str]:
    """Return what a command of `lease run` finds: it is the user's own, and gets the user's own environment."""
    return {name: value for name, value in os.environ.items() if name}
