"""The worker with real commands: what it runs, how often, and what becomes of it."""

import asyncio
import errno
import logging
import os
import re
import time
from collections.abc import AsyncIterator, Callable, Mapping
from datetime import timedelta
from pathlib import Path

import pytest

from jobq.backend import Delivery
from jobq.clock import Moment
from jobq.lease.timing import timing_for
from jobq.run.attempt.neighbours import Placement
from jobq.run.attempt.supervisor import Supervisor
from jobq.run.process.output import OutputReader, StreamName
from jobq.run.worker.host import WorkerHost
from jobq.settings import Settings
from jobq.task import Task
from tests.process.stage import QUICK, Stage, alive, stage_in

LONG = timedelta(seconds=30)  # where deliveries are counted: a grant that came late on a busy machine is given back


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    async with stage_in(tmp_path) as stage:
        yield stage


async def test_every_task_runs_once_and_is_settled_once(stage: Stage) -> None:
    """T7: without faults starts = tasks and settlements = tasks."""
    await stage.push(*(f"echo {number} >> {stage.folder}/ran" for number in range(100)))
    report = await stage.work(visibility_timeout=LONG, num_workers=8)
    assert (report.succeeded, report.failed, report.lost, report.exit_code) == (100, 0, 0, 0)
    assert sorted(map(int, (stage.folder / "ran").read_text().split())) == list(range(100))
    assert stage.faults.count("complete") == 100
    stats = await stage.backend.stats()
    assert (stats.visible, stats.leased, stats.scheduled, stats.dead) == (0, 0, 0, 0)


async def test_never_more_than_its_slots_run_and_never_more_are_leased(stage: Stage) -> None:
    """architecture 6: a receive never takes more than can start now."""
    program = f"echo + >> {stage.folder}/log; read -t 0.1 <> <(:); echo - >> {stage.folder}/log"
    await stage.push(*[program] * 20)
    await stage.work(num_workers=3)
    running = most = 0
    for line in (stage.folder / "log").read_text().split():
        running += 1 if line == "+" else -1
        most = max(most, running)
    assert most == 3


async def test_a_task_sees_its_own_facts_and_no_other_setting(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """architecture 6, Environment; rules.md 3 A6."""
    monkeypatch.setenv("JOBQ_CONNECTION_STRING", "canary-secret")
    await stage.push("env | sort", id="the-task", env={"MINE": "yes"})
    await stage.work()
    seen = dict(line.partition("=")[::2] for _, _, line in stage.lines)
    assert seen["MINE"] == "yes"
    assert seen.pop("JOBQ_RESULT_FILE").startswith("/")
    token, _, socket = seen.pop("JOBQ_TASK_SOCKET").partition("@")
    assert (len(token), socket[:1]) == (32, "/")
    worker_id = seen.pop("JOBQ_WORKER_ID")
    assert re.fullmatch("[0-9a-f]{32}-[0-9a-f]{12}(-[0-9]+-[0-9]+){2,3}", worker_id), (
        "survivors of a dead guardian are found so"
    )
    ours = {name: value for name, value in seen.items() if name.startswith("JOBQ_")}
    assert ours == {
        "JOBQ_TASK_ID": "the-task",
        "JOBQ_ATTEMPT": "1",
        "JOBQ_LEASE_TOKEN": "0.0.1",
        "JOBQ_QUEUE_NAME": "stage",
    }


async def test_a_failure_is_retried_after_its_backoff_and_the_worker_waits_for_it(stage: Stage) -> None:
    """architecture 6: an empty queue is not finished while a requeue of its own is due."""
    await stage.push(f'echo $JOBQ_ATTEMPT $JOBQ_LEASE_TOKEN >> {stage.folder}/ran; test "$JOBQ_ATTEMPT" = 3')
    report = await stage.work(backoff=timedelta(seconds=0.3))
    assert (report.succeeded, report.failed, len(stage.told("task.failed"))) == (1, 1, 2), "one task, two attempts"
    assert (stage.folder / "ran").read_text().split() == ["1", "0.0.1", "2", "0.1.2", "3", "0.2.3"]


async def test_a_requeue_that_is_due_at_once_is_not_left_behind(stage: Stage) -> None:
    """The empty answer may be older than the requeue: asked for before, it says nothing about it."""
    for _ in range(10):
        await stage.push("exit 3", budgets={"retries": 2})
        report = await stage.work(backoff=timedelta(0))
        assert (report.failed, report.dead_lettered) == (1, 1)
    assert len(stage.told("task.failed")) == 3 * 10


async def test_budgets_end_in_the_dead_letter_place_with_the_output(stage: Stage) -> None:
    """S7: one run and two retries, then dead, with the reason and the tail of what it printed."""
    await stage.push("echo the reason is on stderr >&2; exit 7", budgets={"retries": 2})
    report = await stage.work()
    assert (report.failed, report.dead_lettered, report.exit_code) == (1, 1, 0)
    assert len(stage.told("task.failed")) == 3
    (dead,) = await stage.backend.dead_letters(10)
    assert dead.reason == "failed"
    assert "failed 3 times; last: exit code 7" in dead.description
    assert "the reason is on stderr" in dead.description


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"argv": ["no-such-program-here"]}, "'no-such-program-here' not found on PATH"),
        (
            {"argv": ["echo hi | wc"]},
            "not found on PATH; it looks like a command for the shell, which is pushed with -c",
        ),
        ({"command": "true", "cwd": "/no/such/folder"}, "'/no/such/folder' does not exist"),
    ],
)
async def test_what_cannot_start_says_why_and_consumes_no_retry(
    stage: Stage, fields: dict[str, object], says: str
) -> None:
    """P7: a start that failed is a crash, not a failure of the task; one more try is enough to know."""
    await stage.backend.push([Task.new(command="true"), Task.new(**fields, budgets={"crashes": 3, "retries": 0})])
    report = await stage.work(visibility_timeout=LONG)
    assert (report.succeeded, report.failed, report.dead_lettered, report.exit_code) == (1, 1, 1, 0)
    assert [event.fields["max_attempts"] for event in stage.told("task.crashed")] == [1, 1], "it does not climb"
    (dead,) = await stage.backend.dead_letters(10)
    assert (dead.reason, dead.deliveries) == ("crashed", 2)
    assert says in dead.description


async def test_a_worker_that_starts_nothing_gives_back_what_it_cannot_start_and_ends(stage: Stage) -> None:
    """Its machine may lack what others have: no task pays for that, however often such a worker is started."""
    (id_,) = await stage.backend.push([Task.new(argv=["late-program"], budgets={"crashes": 0, "retries": 0})])
    for _ in range(3):
        report = await stage.work(visibility_timeout=LONG)
        assert (report.failed, report.dead_lettered, report.exit_code) == (1, 0, 1)
        (tripped,) = stage.told("worker.breaker_tripped")
        assert "'late-program' not found on PATH" in tripped.fields["detail"]
        stage.events.clear()
    program = stage.folder / "late-program"
    program.write_text("#!/bin/sh\necho here now\n")
    program.chmod(0o700)
    path = {"PATH": f"{stage.folder}:{os.environ['PATH']}"}
    report = await stage.worker(environment=path, visibility_timeout=LONG).run()
    assert (report.succeeded, stage.lines) == (1, [(id_, "stdout", "here now")])


async def test_tasks_for_a_callback_are_left_to_others_uncharged(stage: Stage) -> None:
    """S7: they are of another kind; a worker started on the wrong queue makes no dead letters of them."""
    await stage.backend.push([Task.new(kwargs={"n": n}, budgets={"crashes": 0}) for n in range(2)])
    report = await stage.work(visibility_timeout=LONG)
    assert (report.failed, report.dead_lettered, report.exit_code) == (0, 0, 0)
    assert {event.fields["detail"] for event in stage.told("task.not_allowed")} == {
        "this task is meant for a library callback; `jobq worker` runs commands"
    }
    assert not stage.told("worker.breaker_tripped")
    assert (await stage.backend.stats()).unfinished == 2


async def test_tasks_that_cannot_start_count_for_the_breaker(stage: Stage) -> None:
    """After one success it takes one more; and they are given back with their budgets whole."""
    tasks = [Task.new(argv=[f"no-such-program-{n}"], budgets={"crashes": 0}) for n in range(5)]
    await stage.backend.push([Task.new(command="true"), *tasks])
    report = await stage.work(visibility_timeout=LONG, max_consecutive_failures=2)
    assert (report.dead_lettered, report.exit_code) == (0, 1)
    assert (await stage.backend.stats()).unfinished == 5


async def test_death_by_a_signal_is_a_crash(stage: Stage) -> None:
    """P7: only a code, a time-out or a memory limit consumes retries."""
    await stage.push("kill -SEGV $$", budgets={"retries": 0, "crashes": 2})
    await stage.work(visibility_timeout=LONG)
    (dead,) = await stage.backend.dead_letters(10)
    assert dead.reason == "crashed"
    assert len(stage.told("task.started")) == 3, "S7: one that waits for room is delivered once more, and not started"
    assert "signal 11" in dead.description


async def test_a_task_that_comes_back_at_once_is_not_granted_to_a_receive_that_is_cut_short(stage: Stage) -> None:
    """P7: a receive that ends with the last attempt would give the task back, and have cost a delivery for nothing."""
    await stage.push("false", budgets={"retries": 60})
    await stage.work(visibility_timeout=LONG, backoff=timedelta(0), num_workers=2)
    (dead,) = await stage.backend.dead_letters(10)
    assert dead.deliveries == 61


async def test_a_timeout_ends_the_whole_group_and_consumes_a_retry(stage: Stage) -> None:
    """P3, P7; the shell ignores SIGTERM, so SIGKILL has to come after the grace."""
    await stage.push(
        f"trap '' TERM; sleep 1000 & echo $! > {stage.folder}/child; wait", timeout=0.3, budgets={"retries": 0}
    )
    report = await stage.work(stop_grace=timedelta(seconds=0.2))
    assert report.dead_lettered == 1
    assert not alive(int((stage.folder / "child").read_text()))
    (dead,) = await stage.backend.dead_letters(1)
    assert dead.reason == "timed_out"


async def test_a_background_child_of_a_task_that_ended_well_is_gone(stage: Stage) -> None:
    """P5: clean end, also after exit 0; and the pipe that it held delays nobody."""
    await stage.push(f"sleep 1000 & echo $! > {stage.folder}/child")
    began = time.monotonic()
    report = await stage.work()
    assert report.succeeded == 1
    assert time.monotonic() - began < 10
    assert not alive(int((stage.folder / "child").read_text()))


async def test_no_descriptor_or_folder_is_left(stage: Stage) -> None:
    """P5."""
    await stage.push(*["echo out; echo err >&2"] * 50)
    await stage.backend.stats()  # looks have a connection of their own, which stays open
    descriptors = set(Path("/proc/self/fd").iterdir())
    await stage.work(num_workers=4)
    assert set(Path("/proc/self/fd").iterdir()) == descriptors


async def test_the_breaker_ends_the_worker_and_the_tasks_keep_their_budgets(stage: Stage) -> None:
    """architecture 6: failures of different tasks in a row blame the machine."""
    await stage.push(*["exit 1"] * 10)
    report = await stage.work(max_consecutive_failures=5)
    assert report.exit_code == 1
    assert stage.told("worker.breaker_tripped")
    deliveries = await stage.backend.receive(100, None, timedelta(0))
    assert len(deliveries) == 10
    assert {delivery.task.counters.failures for delivery in deliveries} == {0}
    assert all(delivery.deliveries - 1 - delivery.task.counters.ends == 0 for delivery in deliveries), "nor crashes"


async def test_one_success_in_between_clears_the_machine(stage: Stage) -> None:
    for _ in range(3):
        await stage.push("exit 1", "exit 1", budgets={"retries": 0})
        await stage.push("true")
    report = await stage.work(max_consecutive_failures=3)
    assert (report.exit_code, report.succeeded, report.dead_lettered) == (0, 3, 6)


async def test_one_task_that_fails_again_and_again_trips_nothing(stage: Stage) -> None:
    await stage.push("exit 1", budgets={"retries": 5})
    report = await stage.work(max_consecutive_failures=3, backoff=timedelta(seconds=0.01))
    assert (report.exit_code, report.dead_lettered) == (0, 1)


async def test_a_fault_of_ours_in_one_attempt_harms_no_other(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """S11, L4."""
    execute = Supervisor.execute

    async def faulty(self: Supervisor, delivery: object, since: Moment, place: Placement) -> object:
        assert isinstance(delivery, Delivery)
        if delivery.id == "bad" and delivery.deliveries == 1:
            raise RuntimeError("a bug")
        return await execute(self, delivery, since, place)

    monkeypatch.setattr(Supervisor, "execute", faulty)
    await stage.push("true", id="bad")
    await stage.push("true", "true")
    report = await stage.work(num_workers=2)
    assert (report.succeeded, report.lost) == (3, 1)  # and it is waited for: its lease runs out


def test_quick_settings_can_be_kept() -> None:
    timing_for(timedelta(seconds=2), Settings(**QUICK)).check(allow_short=True)


async def test_what_the_machine_is_short_of_is_no_fault_of_the_task(stage: Stage) -> None:
    """S11, S7: no descriptors left for a moment; nothing at all is charged, and it runs later."""
    left = [OSError(errno.EMFILE, "no descriptors")] * 2

    class FullHost(WorkerHost):
        def output_reader(
            self,
            on_line: Callable[[StreamName, str], None],
            *,
            on_bytes: Mapping[str, Callable[[bytes], None]],
            sink: Callable[[StreamName, bytes], None],
        ) -> OutputReader:
            if left:
                raise left.pop()
            return super().output_reader(on_line, on_bytes=on_bytes, sink=sink)

    await stage.push("true", budgets={"retries": 0, "crashes": 0, "preemptions": 0})
    report = await stage.work(host=FullHost())
    assert (report.succeeded, report.dead_lettered) == (1, 0)
    assert [event.level for event in stage.told("task.preempted")] == [logging.WARNING] * 2
    assert [event.fields["detail"] for event in stage.told("worker.held_back")] == [
        "no pipes for its output: no descriptors; raise `ulimit -n`"
    ] * 2


async def test_the_last_of_max_tasks_is_not_held_for_company_in_its_failure(stage: Stage) -> None:
    """The breaker holds a failure until more is known, and nothing more is taken here."""
    await stage.push("false", "true")
    async with asyncio.timeout(10):  # it was 30 s
        report = await stage.worker(max_tasks=1).run()
    assert report.failed == 1


async def test_what_was_cleared_is_not_waited_for(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobq.run.worker.empty_queue._LONG_WAIT", timedelta(seconds=0.5))
    await stage.push("false")
    worker = asyncio.create_task(stage.work(backoff=timedelta(minutes=10), max_consecutive_failures=0))
    await stage.until(lambda: stage.told("task.retry_scheduled"))
    await stage.backend.clear()
    await stage.push("true")  # wakes it
    async with asyncio.timeout(10):
        assert (await worker).succeeded == 1
