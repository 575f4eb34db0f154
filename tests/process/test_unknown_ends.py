"""What nobody can know to be dead is left to its lease, however it came to that (P1): never given back at once.

The spawner is a stand-in: a guardian that dies at just these moments, and a process that SIGKILL does not end, cannot
be had on demand. tests/guardian shows that the real one reports them so.
"""

import asyncio
import signal
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from pathlib import Path
from typing import Self

import pytest

from jobq.clock import Moment, SystemClock
from jobq.run.process.spawner import ExitStatus, Launch, Process, StatusLost
from jobq.run.stopping import Stopping
from jobq.settlement import Release
from jobq.testing.faults import Fault
from tests.process.stage import Stage, stage_in, until_true

GONE = StatusLost("the guardian is gone")
UNDEAD = ExitStatus(signal=signal.SIGKILL, survivors=1)


class StandIn:
    """Spawner and process at once: starts nothing, and ends as the test says."""

    pid = 2**22 + 1  # beyond the largest that Linux gives out

    def __init__(self, end: ExitStatus | StatusLost, *, fails_to_start: bool = False, when: str = "asked") -> None:
        self._end = end
        self._fails = fails_to_start
        self._ended = asyncio.Event()
        if when == "by itself":
            self._ended.set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        return None

    async def spawn(self, launch: Launch) -> Process:
        if self._fails:
            assert isinstance(self._end, StatusLost)
            raise self._end
        return self

    async def wait(self) -> ExitStatus:
        await self._ended.wait()
        if isinstance(self._end, StatusLost):
            raise self._end
        return self._end

    def has_exited(self) -> bool:
        return False

    def signal(self, number: int) -> None:
        return None

    def kill(self) -> None:
        self._ended.set()

    def extend(self, deadline: float) -> None:
        return None


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    async with stage_in(tmp_path) as stage:
        yield stage


CASES: dict[str, Callable[[], StandIn]] = {
    "the guardian died while it started": lambda: StandIn(GONE, fails_to_start=True),
    "the guardian died while it ran": lambda: StandIn(GONE, when="by itself"),
    "the guardian died while it was stopped": lambda: StandIn(GONE),
    "not even SIGKILL ended it": lambda: StandIn(UNDEAD),
    "it ended and left what cannot be killed": lambda: StandIn(UNDEAD, when="by itself"),
}


@pytest.mark.parametrize("reason", ["timeout", "stop"])
@pytest.mark.parametrize("case", CASES)
async def test_p1_it_is_left_to_its_lease(stage: Stage, case: str, reason: str) -> None:
    await stage.push("true", timeout=0.1 if reason == "timeout" else None)
    stopping = Stopping()
    worker = asyncio.create_task(
        stage.worker(
            stopping, CASES[case](), stop_grace=timedelta(seconds=0.05), max_consecutive_failures=0, max_tasks=1
        ).run()
    )
    if reason == "stop":
        await stage.until(lambda: stage.told("task.started") or stage.told("task.lease_lost"))
        stopping.stop("the test says so")
    report = await worker
    assert (report.lost, report.failed, report.given_back) == (1, 0, 0)
    assert (await stage.backend.stats()).leased == 1
    assert not stage.told("task.retry_scheduled")
    # Its lease runs out at the store, and only then it is delivered again; its end was unexplained (S7).
    (again,) = await stage.backend.receive(1, timedelta(seconds=5), timedelta(seconds=10))
    assert (again.deliveries, again.task.counters.ends) == (2, 0)
    await again.settle(Release())


async def test_what_left_survivors_and_succeeded_is_done(stage: Stage) -> None:
    """Nobody will start it again, so nothing can run beside them."""
    await stage.push("true")
    end = ExitStatus(exit_code=0, survivors=1)
    report = await stage.worker(spawner=StandIn(end, when="by itself")).run()
    assert report.succeeded == 1


class Unnoticed(StandIn):
    """Has ended, and the news of it come just after the first look."""

    def has_exited(self) -> bool:
        self._ended.set()
        return True


async def test_p7_what_had_ended_when_its_time_was_up_was_not_ended_by_that(stage: Stage) -> None:
    await stage.push("true", timeout=0.05)
    report = await stage.worker(spawner=Unnoticed(ExitStatus(exit_code=0))).run()
    assert (report.succeeded, report.failed) == (1, 0)


class NeverStarts(StandIn):
    """A start that hangs, as one on a dead file server does."""

    was_asked = was_cancelled = False

    async def is_asked(self) -> bool:
        return self.was_asked

    async def spawn(self, launch: Launch) -> Process:
        self.was_asked = True
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.was_cancelled = True
            raise
        raise AssertionError


async def test_p1_a_lock_that_is_lost_during_the_start_ends_it(stage: Stage) -> None:
    """Or it would begin when somebody else runs it already."""
    spawner = NeverStarts(GONE)
    await stage.push("true")
    stage.faults.always("renew", Fault.REFUSE)
    report = await stage.worker(spawner=spawner, max_tasks=1).run()
    assert (report.lost, spawner.was_cancelled) == (1, True)
    assert not stage.told("task.started")
    assert stage.told("task.lease_lost")


@pytest.mark.parametrize("reason", ["stop", "timeout"])
async def test_p8_a_start_that_hangs_holds_up_no_stop_and_no_time_limit(
    stage: Stage, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And renews no lease for ever (L2)."""
    monkeypatch.setattr("jobq.run.attempt.supervisor.START_SECONDS", 0.1)
    spawner, stopping = NeverStarts(GONE), Stopping()
    await stage.push("true", timeout=0.1 if reason == "timeout" else None)
    worker = asyncio.create_task(stage.worker(stopping, spawner, max_tasks=1).run())
    if reason == "stop":
        await until_true(spawner.is_asked)
        stopping.stop("the test says so")
    report = await worker
    assert (report.lost, report.given_back, spawner.was_cancelled) == (1, 0, True)


class BeginsWhenCancelled(StandIn):
    """Starts in the very instant in which whoever asked for it is cancelled."""

    attempt: "asyncio.Task[object]"

    async def spawn(self, launch: Launch) -> Process:
        self.attempt.cancel()
        return self


async def test_p5_what_begins_as_its_attempt_is_cancelled_is_ended(stage: Stage) -> None:
    await stage.push("true")
    spawner = BeginsWhenCancelled(ExitStatus(signal=signal.SIGKILL))
    worker = stage.worker(spawner=spawner)
    worker._spawner = spawner
    supervisor = worker._supervisor()
    (delivery,) = await stage.backend.receive(1, timedelta(seconds=2), timedelta(0))
    spawner.attempt = asyncio.create_task(supervisor.execute(delivery, Moment.of(SystemClock())))
    with pytest.raises(asyncio.CancelledError):
        await spawner.attempt
    assert spawner._ended.is_set()  # it was killed
    worker._line.close()  # as `run` does, which is not run here
    worker._folder.close()


class StartsInAMoment(StandIn):
    """Is stopped at once while it starts."""

    def __init__(self, stopping: Stopping) -> None:
        super().__init__(ExitStatus(signal=signal.SIGKILL))
        self._stopping = stopping

    async def spawn(self, launch: Launch) -> Process:
        self._stopping.now("the test says so")
        await asyncio.sleep(0.1)  # many turns of the loop: what is to be seen is that nobody gives it up meanwhile
        return self


async def test_p8_a_start_that_only_takes_its_time_is_given_back_also_when_a_stop_is_at_once(stage: Stage) -> None:
    stopping = Stopping()
    await stage.push("true")
    report = await stage.worker(stopping, StartsInAMoment(stopping)).run()
    assert (report.given_back, report.lost) == (1, 0)
