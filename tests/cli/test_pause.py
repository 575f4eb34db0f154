"""`jobq QUEUE pause` and `resume`: what is handed out, and what is said of it."""

import asyncio
import json
import time

from jobq.task import Task
from tests.cli.conftest import Jobq
from tests.emulators.service_bus.description import Description
from tests.emulators.service_bus.emulator import Emulator


def test_a_pause_is_shown_wherever_one_looks(jobq: Jobq) -> None:
    jobq.fill(Task.new(command="echo ran"))
    assert jobq("demo", "pause", "a new driver").err == "queue demo is paused; go on with: jobq demo resume\n"
    assert ": a new driver" in jobq("demo", "size").lines[2]
    found = jobq("demo", "size", "--json").objects[0]["paused"]
    assert found["reason"] == "a new driver"
    assert time.time() - 60 < found["at"] <= time.time()
    assert "@" in found["by"]
    assert jobq("demo", "stats", "--json").objects[0]["paused"] == found
    assert jobq("demo", "top", "--once", "--json").objects[0]["paused"] == found
    assert "paused for" in jobq("demo", "top", "--once").out
    assert "paused for" in jobq("demo", "stats").lines[0]
    metrics = jobq("demo", "stats", "--prometheus").out
    assert 'jobq_queue_paused{backend="embedded",queue="demo"} 1.0' in metrics
    assert "queue demo goes on; it was paused for" in jobq("demo", "resume").err
    assert jobq("demo", "resume").err == "queue demo was not paused\n"
    assert "paused" not in jobq("demo", "size", "--json").objects[0]
    assert "ran" in jobq("demo", "worker", "--max-tasks", "1").out


def test_a_worker_waits_for_the_end_of_the_pause(jobq: Jobq) -> None:
    jobq.fill(Task.new(command="echo ran"))
    jobq("demo", "pause")
    worker = jobq.start("demo", "worker", "--json")
    assert worker.stdout is not None
    events = (json.loads(line) for line in worker.stdout)
    assert next(each for each in events if each["event"] == "queue.paused")["detail"].startswith("paused for")
    jobq("demo", "resume")
    resumed = time.monotonic()
    names = [each["event"] for each in events]
    assert names[0] == "queue.resumed"
    assert {"task.succeeded", "worker.stopped"} <= set(names)
    assert worker.wait() == 0
    assert time.monotonic() - resumed < 10


def test_what_runs_goes_on_and_nothing_is_started_beside_it(jobq: Jobq) -> None:
    release = jobq.folder / "release"
    jobq.fill(Task.new(command=f"echo begun; until test -e '{release}'; do sleep 0.05; done; echo ended"))
    worker = jobq.start("demo", "worker", "-n", "4", "--idle-timeout", "1s", "--json")
    assert worker.stdout is not None
    events = (json.loads(line) for line in worker.stdout)
    assert next(each for each in events if each["event"] == "task.output")["line"] == "begun"
    jobq("demo", "pause")
    jobq("demo", "push", "-c", "echo never")
    release.touch()
    rest = list(events)
    assert [each["line"] for each in rest if each["event"] == "task.output"] == ["ended"]
    stopped = rest[-1]
    assert stopped["succeeded"] == 1
    assert "1 waiting; the queue is paused for" in stopped["detail"]
    assert worker.wait() == 0


def test_a_reason_is_one_line_that_can_be_shown(jobq: Jobq) -> None:
    jobq("demo", "create")
    for reason in ("two\nlines", "x" * 201, "\x1b[2J"):
        assert "a reason has at most 200 characters" in jobq("demo", "pause", reason, code=3).err


def test_a_queue_that_is_not_there_is_not_made(jobq: Jobq) -> None:
    for words in (["pause"], ["resume"]):
        assert "queue 'demo' does not exist" in jobq("demo", *words, code=4).err


async def test_where_queues_cannot_be_paused_it_is_said(jobq: Jobq) -> None:
    async with Emulator([Description("q")]) as emulator:
        jobq.environment["JOBQ_CONNECTION_STRING"] = emulator.connection_string
        for word in ("pause", "resume"):
            result = await asyncio.to_thread(jobq, "sb://emulator/q", word, code=3)
            assert "a queue of this kind cannot be paused" in result.err
            assert "SIGUSR1" in result.err
