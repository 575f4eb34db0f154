"""`--on-exit WHEN=queue:NAME`: the task goes on in another queue; nothing is lost, and here it has ended."""

import asyncio
import json
import signal
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from jobq.backend import Backend
from jobq.errors import PushUnknown
from jobq.formats.exit_rules import parse
from jobq.queue import Queue
from jobq.run.attempt import retry
from jobq.run.attempt.exit_action import action_for
from jobq.settings import Settings
from jobq.settlement import MoveToDeadLetters, Requeue
from jobq.spec import parse as parse_spec
from jobq.spec import resolve
from jobq.task import Outcome, OutcomeKind, Task, new_id
from tests.azure.emulator import ACCOUNT, Azurite
from tests.cli.conftest import Jobq
from tests.service.server import running
from tests.support.http_proxy import HttpProxy, Strike

from .conftest import SHORT, Place, everywhere


def _other(place: Place, name: str) -> Place:
    return replace(place, spec=str(replace(parse_spec(place.spec), queue=name)))


@everywhere
def test_a_task_goes_on_in_another_queue(place: Place) -> None:
    """With fresh budgets and its own variables; whoever waits hears where it went, and its exit code."""
    name = f"big-{new_id()[-12:]}"
    big = _other(place, name)
    big("create")
    task = f'echo "$SIZE"; test "$JOBQ_QUEUE_NAME" = {name} || exit 9'
    waiting = place.jobq.start(
        place.spec, "push", "--wait", "--json", "--num-retries", "0", "--on-exit", f"9=queue:{name}", "--env", "SIZE=7",
        "-c", task, stderr=-3,
    )  # fmt: skip
    assert waiting.stdout is not None
    id_ = place.until_line(waiting.stdout)
    place.work(env={"JOBQ_ONWARD_QUEUES": f"small, {name}"})
    assert waiting.wait(20) == 9
    told = json.loads(waiting.stdout.readline())
    assert (told["state"], told["exit_code"], told["outcome"]) == ("moved", 9, "failed")
    assert f"sent on to queue {name} as {id_}+1." in told["detail"]
    big.work()
    there = big.record(new_id_ := told["detail"].rpartition(" ")[2])
    assert (there.state, there.attempt) == ("succeeded", 1)
    assert big("logs", new_id_).lines == ["7"]
    stats = place("stats", "--json").objects[0]["states"]
    assert (stats["moved"], stats["succeeded"], stats["canceled"]) == (1, 0, 0)


def test_a_queue_that_is_not_there(place: Place) -> None:
    """Makes a dead letter that says so, with retries left; what cannot be a queue is refused at the push."""
    (id_,) = place.push("exit 9", more=("--on-exit", "9=queue:nowhere"))
    place.work("--onward-queues", "nowhere")
    record = place.record(id_)
    assert record.state == "dead"
    assert "could not be sent on to queue nowhere" in (record.description or "")
    for rule, told in (("9=queue:a/b", "no name of a queue"), (f"9=queue:{place.spec.rpartition('/')[2]}", "itself")):
        assert told in place("push", "-c", "true", "--on-exit", rule, code=2).err


@everywhere
def test_a_worker_sends_only_where_its_own_list_says(place: Place) -> None:
    """Who may push to one queue must not have workers push to all that their rights reach (A8): it runs, then dies."""
    name = f"secret-{new_id()[-12:]}"
    secret = _other(place, name)
    secret("create")
    (id_,) = place.push("echo ran; exit 9", more=("--on-exit", f"9=queue:{name}"))
    worked = place.work(env={"JOBQ_ONWARD_QUEUES": "small"})
    record = place.record(id_)
    assert (record.state, record.attempt) == ("dead", 1)
    assert f"queue {name}: the worker's JOBQ_ONWARD_QUEUES" in (record.description or "")
    assert place("logs", id_).lines == ["ran"]
    assert secret("peek", "--json").objects == []
    told = f"queue {name} by its rule, which JOBQ_ONWARD_QUEUES (--onward-queues) does not list"
    assert len([line for line in worked.err.splitlines() if told in line]) == 1


def test_a_worker_warns_once_of_each_queue_that_it_does_not_list(tmp_path: Path) -> None:
    """Also where no rule fires: nobody is to find out by a dead letter."""
    jobq = Jobq(tmp_path)
    for rule in ("9=queue:big", "8=queue:big", "7=queue:other"):
        jobq("demo", "push", "--on-exit", rule, "-c", "true")
    said = jobq("demo", "worker", "--onward-queues", "other", env=SHORT).err
    (line,) = [line for line in said.splitlines() if "JOBQ_ONWARD_QUEUES" in line]
    assert "queue big by its rule" in line


async def test_a_lost_answer_queues_it_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A push that was done but not answered is repeated, and known again (S1, S8)."""
    settings = Settings(home=tmp_path, guardian="off", onward_queues=("big",))
    async with resolve("small", settings) as small, resolve("big", settings) as big:
        await small.create()
        await big.create()
        lost: list[str] = []
        push = type(big).push

        async def unanswered(self: Backend, tasks: list[Task]) -> list[str]:
            ids: list[str] = await push(self, tasks)
            if self.name == "big" and not lost:
                lost.extend(ids)
                raise PushUnknown("the answer was lost", ids)
            return ids

        monkeypatch.setattr(type(big), "push", unanswered)
        id_ = await Queue(small, settings).push(Task.new(command="exit 9", on_exit=["9=queue:big"], env={"A": "1"}))
        await Queue(small, settings).pull_and_execute()
        assert [each.partition(".")[0] for each in lost] == [f"{id_}+1"]
        assert (await big.stats()).visible == 1
        assert (await small.stats()).visible == 0


@pytest.fixture
def azure(azurite: Azurite, tmp_path: Path) -> tuple[Jobq, dict[str, str], str]:
    return Jobq(tmp_path), {"JOBQ_CONNECTION_STRING": azurite.connection_string}, f"q{new_id()[-12:]}"


def test_on_a_storage_queue(azure: tuple[Jobq, dict[str, str], str]) -> None:
    """It is not lost there either: pushed to the other queue before it ends in this one."""
    jobq, env, name = azure
    env = SHORT | {"JOBQ_VISIBILITY_TIMEOUT": "4s"} | env
    big = f"{ACCOUNT}/{name}-big"
    jobq(big, "create", env=env)
    refused = jobq(f"{ACCOUNT}/{name}", "push", "--on-exit", "9=queue:Big", "-c", "true", env=env, code=2)
    assert "Big" in refused.err
    jobq(f"{ACCOUNT}/{name}", "push", "--on-exit", f"9=queue:{name}-big", "-c", "exit 9", env=env)
    jobq(f"{ACCOUNT}/{name}", "worker", "--onward-queues", f"{name}-big", env=env)
    assert jobq(big, "peek", "--json", env=env).objects[0]["task"]["command"] == "exit 9"


def test_rules_and_ids() -> None:
    """A rule is used up by going there, and coming back gives another id, so a chain of queues ends."""
    assert parse("oom=queue:big")[1].queue == "big"
    task = Task.new(command="x", id="a", on_exit=["9=queue:b", "8=queue:c", "7=fail"], budgets={"retries": 1})
    there = task.requeued(failures=1).sent_on("b", "a")
    assert (there.on_exit, there.counters.ends, there.generation) == (("8=queue:c", "7=fail"), 0, 0)
    assert there.id.startswith("a+1.")
    assert there.sent_on("c", "b").id.startswith("a+2.")
    long = Task.new(command="x", id="a" * 100)
    assert long.sent_on("b", "a").id == long.sent_on("b", "a").id
    assert len(long.sent_on("b", "a").id) <= 100


def test_each_life_of_each_task_has_a_name_of_its_own() -> None:
    """Another's, or a later one's, is dropped as a repetition by a queue that knows ids (S1)."""
    task = Task.new(command="x", id="a", created=1.0)
    lives = [(task, "small"), (task, "medium"), (task.in_epoch(7), "small")]
    lives += [(task.copied({"created": 2.0}), "small"), (task.copied({"id": "a+0"}), "small")]
    assert len({each.sent_on("big", origin).id for each, origin in lives}) == len(lives)
    again = task.requeued(preemptions=1)
    assert again.sent_on("big", "small").id == task.sent_on("big", "small").id, "the same life (S8)"


async def test_tasks_of_one_id_from_two_queues_both_go_on(tmp_path: Path) -> None:
    """The second was told as moved, and ran nowhere (S1)."""
    settings = Settings(home=tmp_path, guardian="off", onward_queues=("big",))
    async with (
        resolve("small", settings) as small,
        resolve("medium", settings) as medium,
        resolve("big", settings) as big,
    ):
        await big.create()
        for queue in (small, medium):
            await queue.create()
            await Queue(queue, settings).push(Task.new(command="exit 9", id="sample-17", on_exit=["9=queue:big"]))
            await Queue(queue, settings).pull_and_execute()
        assert (await big.stats()).visible == 2


async def test_p8_a_stop_does_not_wait_for_a_queue_that_is_silent(tmp_path: Path) -> None:
    """The worker was killed at the end of its grace, and what the attempt came to was lost: that counted as a crash."""
    jobq = Jobq(tmp_path)
    with running(f"sqlite://{tmp_path}/jobs.db/a", tmp_path) as server:
        async with HttpProxy(server.port) as proxy:
            near, far = f"http://127.0.0.1:{server.port}", f"http://127.0.0.1:{proxy.port}"
            for name in "ab":
                await asyncio.to_thread(jobq, f"{near}/{name}", "create")
            rule = ("--on-exit", "3=queue:b", "--max-crashes", "0", "--id", "on", "-c", "exit 3")
            await asyncio.to_thread(jobq, f"{near}/a", "push", *rule)
            proxy.strike(
                Strike.HANG, "POST", matches=lambda r: r.path == "/api/tasks" and r.query.get("queue") == "b", count=99
            )
            words, nowhere = ("worker", "--onward-queues", "b", "--idle-timeout", "1h"), subprocess.DEVNULL
            worker = jobq.start(f"{far}/a", *words, stdin=nowhere, stdout=nowhere, stderr=nowhere)
            async with asyncio.timeout(30):
                while not any(request.strike is Strike.HANG for request in proxy.requests):
                    await asyncio.sleep(0.05)
            worker.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(worker.wait, 20) == 0
            (first,) = (await asyncio.to_thread(jobq, f"{near}/a", "history", "on", "--json")).objects
            assert (first["outcome"], first["exit_code"], first["then"]) == ("failed", 3, "retry")
            (where,) = (await asyncio.to_thread(jobq, f"{near}/a", "status", "on", "--json")).objects
            assert where["state"] == "scheduled"


def test_what_no_queue_takes_in_time_is_given_up_after_its_preemptions() -> None:
    task = Task.new(command="exit 3", budgets={"preemptions": 1})
    outcome = Outcome(kind=OutcomeKind.FAILED, exit_code=3, detail="exit code 3")
    first = retry.not_sent_yet(retry.SendOn("b", task), outcome)
    assert isinstance(first, Requeue)
    again = task.copied({"counters": first.counters})
    last = retry.not_sent_yet(retry.SendOn("b", again), outcome)
    assert isinstance(last, MoveToDeadLetters)
    assert "that queue did not answer, again and again" in last.description


def test_a_signal_without_a_name_is_no_exit_code() -> None:
    """A real-time signal's number alone would match the rule for the exit code of that number."""
    task = Task.new(command="true", on_exit=("50=fail",))
    assert action_for(task, Outcome(kind=OutcomeKind.FAILED, signal=50)) is None
    assert action_for(task, Outcome(kind=OutcomeKind.FAILED, exit_code=50)) is not None
