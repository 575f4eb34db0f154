"""The worker with bad messages, a bad broker and a lease that cannot be kept."""

import asyncio
import sqlite3
import time
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from jobq.backend import Delivery
from jobq.clock import SystemClock
from jobq.errors import AllPutBack, BackendUnavailable, ConfigurationError, QueueNotFound
from jobq.run.spawn.asyncio_spawner import AsyncioSpawner
from jobq.run.spawn.guardian_spawner import GuardianSpawner
from jobq.run.stopping import Stopping
from jobq.run.worker import empty_queue
from jobq.run.worker.leftovers import Leftovers
from jobq.run.worker.worker import Worker
from jobq.settings import Settings
from jobq.testing.clock import VirtualClock
from jobq.testing.faults import Fault, Faults
from jobq_memory import MemoryBackend, Router
from jobq_sqlite import SqliteBackend, StoreFile
from jobq_sqlite.host import this_host
from tests.process.stage import Stage, alive, stage_in, until_true


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    async with stage_in(tmp_path) as stage:
        yield stage


# Its crashes would never be counted, and one more end would not fit: it must not come back for ever.
ENDS = b'{"version": 2, "id": "raw", "command": "exit 1", "counters": {"ends": 2147483647}}'


async def put_raw(stage: Stage, body: bytes) -> None:
    """Write a message that is no task, as a stranger with the file would."""
    with sqlite3.connect(stage.folder / "queue.db") as database:
        database.execute(
            "INSERT INTO task (queue_id, id, state, priority, available_at, body) VALUES (1, 'raw', 'ready', 9, 0, ?)",
            (body,),
        )
    database.close()


@pytest.mark.parametrize("body", [b"", b"\xff\x00", b"{}", b"[" * 10_000, b'{"version": 99, "id": "x"}', ENDS])
async def test_a_malformed_message_is_set_aside_and_the_worker_goes_on(stage: Stage, body: bytes) -> None:
    """L3, L4: original bytes and a reason in the dead-letter place after one receive."""
    await put_raw(stage, body)
    await stage.push("true")
    report = await stage.work()
    assert (report.succeeded, report.dead_lettered, report.exit_code) == (1, 1, 0)
    (dead,) = await stage.backend.dead_letters(10)
    assert (dead.reason, dead.body, dead.deliveries) == ("malformed", body, 1)


async def test_s11_a_fault_in_what_a_start_sees_to_ends_no_worker(tmp_path: Path) -> None:
    class Unprepared(MemoryBackend):
        async def prepare(self) -> None:
            raise RuntimeError("a bug, or an answer that nobody thought of")

    async with Unprepared(Router(SystemClock()), "stage") as backend:
        await backend.create()
        stage = Stage(backend, Faults(), tmp_path)
        await stage.push("true")
        report = await stage.work()
    assert (report.succeeded, report.exit_code) == (1, 0)


async def test_s11_a_fault_in_the_look_for_the_dead_ends_no_worker() -> None:
    asked = []

    class Blind(MemoryBackend):
        async def receive_as(
            self, worker_id: str, max_tasks: int, lease: timedelta | None, wait: timedelta
        ) -> list[Delivery]:
            return list(await self.receive(max_tasks, lease, wait))

        async def holders(self) -> list[str]:
            asked.append("holders")
            raise RuntimeError("a bug, or an answer that nobody thought of")

        async def end_leases(self, worker_ids: Sequence[str]) -> int:
            return 0

    clock = VirtualClock()
    leftovers = Leftovers(Blind(Router(clock), "stage"), clock)
    assert leftovers.hold_as("me")
    for seconds in range(100):
        await leftovers.end_leases_of_the_dead()
        await clock.advance(1)
        assert len(asked) == 1 + (seconds >= 10) + (seconds >= 30) + (seconds >= 70), (
            "not every second, nor never again"
        )


async def test_silent_crashes_are_counted_and_the_last_is_not_even_started(stage: Stage) -> None:
    """S7: deliveries by the service's count minus ends recorded."""
    await stage.push(f"echo ran >> {stage.folder}/ran", budgets={"crashes": 1})
    for _ in range(2):  # two workers that took it and vanished
        assert await stage.backend.receive(1, timedelta(seconds=0.01), timedelta(seconds=5))
    await stage.work(idle_timeout=timedelta(seconds=1))
    (dead,) = await stage.backend.dead_letters(10)
    assert dead.reason == "crashed"
    assert not (stage.folder / "ran").exists()


async def test_lives_through_a_broker_that_refuses(stage: Stage) -> None:
    """L4: no broker error ends a worker that has once been served."""
    await stage.push("true", "true")
    stage.faults.next("complete", Fault.REFUSE, times=3)
    worker = asyncio.create_task(stage.work(idle_timeout=timedelta(seconds=1)))
    await stage.faults.begun("receive")
    stage.faults.next("receive", Fault.REFUSE, times=2)
    report = await worker
    assert (report.succeeded, report.exit_code) == (2, 0)
    assert len(stage.told("worker.receive_failed")) == 2


async def test_l4_what_was_put_back_whole_is_no_outage(tmp_path: Path) -> None:
    """A fresh worker comes to what waits behind it; it paused longer and longer, and ended with 75."""

    class Puts(MemoryBackend):
        left = 12

        async def _receive(self, *asked: Any) -> list[Delivery]:
            self.left -= 1
            if self.left >= 0:
                raise AllPutBack("nothing but tasks that cannot be handed out here")
            return await super()._receive(*asked)

    async with Puts(Router(SystemClock()), "stage") as backend:
        await backend.create()
        stage = Stage(backend, Faults(), tmp_path)
        await stage.push("true")
        report = await stage.work()
    assert (report.succeeded, report.exit_code) == (1, 0)
    assert backend.left < 0
    assert not stage.told("worker.receive_failed")


async def test_a_lost_answer_to_complete_is_asked_again_and_counts_once(stage: Stage) -> None:
    """S5: repeated only because this backend answers a repetition like the first."""
    await stage.push(f"echo ran >> {stage.folder}/ran")
    stage.faults.next("complete", Fault.LOSE_ANSWER)
    report = await stage.work(idle_timeout=timedelta(seconds=3))
    assert (report.succeeded, report.lost) == (1, 0)
    assert (stage.folder / "ran").read_text() == "ran\n"


async def test_a_settle_that_nobody_can_vouch_for_is_never_reported_as_done(stage: Stage) -> None:
    """S5: nothing unacknowledged is ever reported."""
    await stage.push("true")
    stage.faults.always("complete", Fault.REFUSE)
    stage.faults.always("renew", Fault.REFUSE)
    report = await stage.work(max_tasks=1)
    assert (report.succeeded, report.lost) == (0, 1)
    assert stage.told("task.not_settled")


async def test_the_queue_must_exist(tmp_path: Path) -> None:
    file = StoreFile(path=tmp_path / "none.db", clock=SystemClock(), host=this_host())
    async with SqliteBackend(file, "none") as backend:
        with pytest.raises(QueueNotFound, match="first push makes it"):
            await Worker(backend, Settings()).run()


async def test_a_lease_that_cannot_be_kept_is_refused_at_start(stage: Stage) -> None:
    """Rule 1.3(4)."""
    with pytest.raises(ConfigurationError, match="cannot be kept"):
        await stage.work(visibility_timeout=timedelta(seconds=1), kill_margin=timedelta(seconds=1))


async def test_a_broker_that_never_answers_at_the_start_ends_it(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobq.run.worker.receive._PATIENCE_SECONDS", 0.0)
    stage.faults.always("receive", Fault.REFUSE)
    with pytest.raises(BackendUnavailable):
        await stage.work()


async def test_a_long_task_keeps_its_lease(stage: Stage) -> None:
    await stage.push(f"sleep 5; echo ran >> {stage.folder}/ran")
    report = await stage.work()
    assert (report.succeeded, report.lost) == (1, 0)
    assert stage.faults.count("renew") >= 5
    assert (stage.folder / "ran").read_text() == "ran\n"


@pytest.mark.parametrize("fault", [Fault.REFUSE, Fault.HANG])
async def test_the_group_is_dead_before_its_lease_can_expire(stage: Stage, fault: Fault) -> None:
    """P1: the broker is gone; the whole group dies in time, by the clock that the store judges with."""
    stage.faults.always("renew", fault)
    await stage.push(f"trap '' TERM; sleep 1000 & echo $! > {stage.folder}/child; echo ready; wait")
    worker = asyncio.create_task(stage.work(idle_timeout=timedelta(0), max_tasks=1))
    await stage.until_printed("ready")
    database = sqlite3.connect(stage.folder / "queue.db")
    (expires_at,) = database.execute("SELECT expires_at FROM task").fetchone()
    database.close()
    child = int((stage.folder / "child").read_text())

    async def child_is_dead() -> bool:
        return not alive(child)

    await until_true(child_is_dead)
    assert time.clock_gettime(time.CLOCK_BOOTTIME) < expires_at
    stage.faults.clear()
    report = await worker
    assert (report.lost, report.exit_code) == (1, 0)
    (lost,) = stage.told("task.lease_lost")
    assert {"cause", "last_success", "deadline"} <= lost.fields.keys()


async def test_losing_one_lease_leaves_the_neighbours_alone(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """S11: only the task whose lock is lost is touched; and a lost lock is no failure and no end of the worker."""
    monkeypatch.setattr(empty_queue, "_LONG_WAIT", timedelta(seconds=2))  # what it lost never comes, and is waited for
    await stage.push("echo ready; sleep 1000", id="victim")
    await stage.push(*(f"sleep 2; echo {number} >> {stage.folder}/ran" for number in range(3)))
    worker = asyncio.create_task(stage.work(num_workers=4))
    await stage.until_printed("ready")
    database = sqlite3.connect(stage.folder / "queue.db", isolation_level=None)
    database.execute("DELETE FROM task WHERE id = 'victim'")
    database.close()
    report = await worker
    assert (report.succeeded, report.failed, report.lost) == (3, 0, 1)
    (lost,) = stage.told("task.lease_lost")
    assert lost.fields["task_id"] == "victim"
    assert sorted((stage.folder / "ran").read_text().split()) == ["0", "1", "2"]


async def test_sigterm_mode_warns_inside_the_lease(stage: Stage) -> None:
    """P6: SIGTERM at deadline - grace, while the lease is still ours."""
    stage.faults.always("renew", Fault.REFUSE)
    note = f"read up idle < /proc/uptime; echo $up > {stage.folder}/told; exit 0"
    await stage.push(f"trap '{note}' TERM; echo ready; while :; do sleep 0.02; done")
    grace = timedelta(seconds=0.3)
    worker = asyncio.create_task(stage.work(lock_lost_behavior="sigterm", lock_lost_grace=grace, max_tasks=1))
    await stage.until_printed("ready")
    database = sqlite3.connect(stage.folder / "queue.db")
    (expires_at,) = database.execute("SELECT expires_at FROM task").fetchone()
    database.close()
    assert (await worker).lost == 1
    assert float((stage.folder / "told").read_text()) < expires_at


async def test_a_receive_that_never_answers_does_not_hang_the_worker(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L4: given up after its wait and a little, and asked again."""
    monkeypatch.setattr("jobq.run.worker.receive.RECEIVE_SECONDS", 0.2)
    await stage.push("true")
    stage.faults.next("receive", Fault.HANG)
    report = await stage.work()
    assert report.succeeded == 1
    assert stage.told("worker.receive_failed")


@pytest.mark.parametrize("times", [1, 2, 5])
async def test_however_often_the_answer_is_lost_an_idempotent_settle_is_known_in_the_end(
    stage: Stage, times: int
) -> None:
    """S5: the keeper must not take its own refused renewal of a settled task for a loss."""
    await stage.push("true")
    stage.faults.next("complete", Fault.LOSE_ANSWER, times=times)
    report = await stage.work(visibility_timeout=timedelta(seconds=10))
    assert (report.succeeded, report.lost) == (1, 0)


async def test_a_task_that_ended_in_time_did_not_time_out(stage: Stage) -> None:
    """P7: an escaped child holds the pipe, so the output takes longer than the time limit; the exit did not."""
    await stage.push("setsid sleep 5 & sleep 0.2; exit 0", timeout=0.6, budgets={"retries": 0})
    report = await stage.worker(spawner=AsyncioSpawner()).run()
    assert (report.succeeded, report.dead_lettered) == (1, 0)


async def test_no_sigterm_once_the_lease_has_gone(stage: Stage) -> None:
    """P6: a refused receipt leaves no time for a grace, whatever the mode."""
    await stage.push(
        f"trap 'echo told > {stage.folder}/told' TERM; echo ready; while :; do sleep 0.02; done", id="victim"
    )
    worker = asyncio.create_task(stage.work(lock_lost_behavior="sigterm", lock_lost_grace=timedelta(seconds=0.3)))
    await stage.until_printed("ready")
    await stage.backend.clear()
    assert (await worker).lost == 1
    assert not (stage.folder / "told").exists()


async def test_losing_the_lease_ends_the_grace_of_a_stop(stage: Stage) -> None:
    """P1, P6: a worker that stops may not wait out its grace on a lease that is over."""
    stopping = Stopping()
    await stage.push("trap '' TERM; echo ready; while :; do sleep 0.02; done")
    worker = asyncio.create_task(stage.worker(stopping, AsyncioSpawner(), stop_grace=timedelta(minutes=10)).run())
    await stage.until_printed("ready")
    stage.faults.always("renew", Fault.REFUSE)
    stopping.stop("a test")
    async with asyncio.timeout(10):
        assert (await worker).lost == 1


async def test_success_is_told_only_once_it_is_acknowledged(stage: Stage) -> None:
    """S5: whoever counts events counts no task twice."""
    await stage.push("sleep 0.2")
    stage.faults.always("complete", Fault.REFUSE)
    stage.faults.always("renew", Fault.REFUSE)
    await stage.work()
    assert not stage.told("task.succeeded")
    assert stage.told("task.not_settled")


async def test_a_task_whose_guardian_died_is_left_to_its_lease(stage: Stage) -> None:
    """P1: what is left of its tree may still live, so nobody else may start it before the lease has run out."""
    spawner = GuardianSpawner()
    await stage.push("echo ready; sleep 1000")
    worker = asyncio.create_task(stage.worker(spawner=spawner, max_tasks=1).run())
    await stage.until_printed("ready")
    assert spawner._child is not None
    spawner._child.kill()
    report = await worker
    assert (report.lost, report.failed) == (1, 0)
    assert stage.told("task.lease_lost")
    assert stage.faults.count("requeue") == 0


async def test_a_lost_lock_of_the_only_task_does_not_end_the_worker(stage: Stage) -> None:
    """Issue 3: no reason to end the worker; the task comes back when its lease has run out, and is waited for."""
    await stage.push("[ $JOBQ_ATTEMPT -gt 1 ] || sleep 1000")
    stage.faults.always("renew", Fault.REFUSE)
    worker = asyncio.create_task(stage.work())
    await stage.until(lambda: stage.told("task.lease_lost"))
    stage.faults.clear("renew")
    report = await worker
    assert (report.lost, report.succeeded) == (1, 1)


async def test_a_task_that_could_not_be_settled_in_time_is_waited_for(stage: Stage) -> None:
    """S5: it is not done, whatever it did, and may have been the only one."""
    await stage.push("true")
    stage.faults.always("complete", Fault.REFUSE)
    stage.faults.always("renew", Fault.REFUSE)
    worker = asyncio.create_task(stage.work())
    await stage.until(lambda: stage.told("task.not_settled"))
    stage.faults.clear()
    report = await worker
    assert (report.lost, report.succeeded) == (1, 1)


@pytest.mark.parametrize("slept", [False, True])
async def test_a_suspend_or_a_step_of_the_wall_clock_costs_no_task_of_this_machines_file(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, slept: bool
) -> None:
    """Rule 12: store, worker and clock are one machine's, so nobody else could have taken it meanwhile."""
    go = stage.folder / "go"
    await stage.push(f"echo runs; until [ -e {go} ]; do sleep 0.05; done", budgets={"crashes": 0})
    worker = asyncio.create_task(stage.work())
    await stage.until_printed("runs")
    wall, gettime = time.time, time.clock_gettime
    monkeypatch.setattr(time, "time", lambda: wall() + 600)
    if slept:
        ahead = {time.CLOCK_BOOTTIME: 600.0, time.CLOCK_REALTIME: 600.0}
        monkeypatch.setattr(time, "clock_gettime", lambda clock: gettime(clock) + ahead.get(clock, 0.0))
    renewed = stage.faults.count("renew")
    await stage.faults.begun("renew", renewed + 4)
    go.touch()
    report = await worker
    assert (report.succeeded, report.lost) == (1, 0)
