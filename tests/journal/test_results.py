"""What tasks came to: results, `push --wait`, handles; nothing is reported that was not acknowledged (S5)."""

import asyncio
import json
import signal
from datetime import timedelta
from pathlib import Path
from typing import cast

import click
import pytest

import jobq as library
from jobq.backend import Backend, Capabilities, QueueStats
from jobq.cli.interrupts import Interrupted
from jobq.cli.main import cli
from jobq.cli.submit.push_given import Echo, HowToPush
from jobq.cli.submit.wait_for_results import wait_for
from jobq.journal.records import TaskRecord, TaskState
from jobq.settings import Settings
from jobq.spec import resolve
from jobq.submit.input_lines import TaskOptions
from jobq.task_handle import TaskHandle
from tests.cli.conftest import eventually

from .conftest import Place, everywhere

pytestmark = pytest.mark.check


@pytest.mark.slow("workers on each store, and leases of seconds")
@everywhere
def test_what_each_attempt_came_to_is_kept(place: Place) -> None:
    good, bad = place.push(
        "echo out; echo err >&2; echo '{\"n\": 1}' > $JOBQ_RESULT_FILE", "echo no; exit 3", more=("--num-retries", "1")
    )
    place.work()
    found = place.status(good)
    assert (found["state"], found["attempt"], found["last"]["value"]) == ("succeeded", 1, {"n": 1})
    assert (found["last"]["outcome"], found["last"]["then"], found["last"]["exit_code"]) == ("succeeded", "done", 0)
    assert found["last"]["host"]
    assert found["last"]["processes"] >= 1
    assert found["last"]["started"] <= found["last"]["ended"]
    assert set(place("logs", good).lines) == {"out", "err"}
    found = place.status(bad)
    assert (found["state"], found["reason"], found["attempt"]) == ("dead", "failed", 2)
    history = place("status", bad, "--json").objects[0]["attempts"]
    assert [(one["attempt"], one["exit_code"], one["then"]) for one in history] == [(1, 3, "retry"), (2, 3, "dead")]
    assert place("logs", bad, "--attempt", "1").lines == ["no"]
    assert "exit code 3" in place("status", bad).out
    stats = place("stats", "--json").objects[0]
    assert (stats["states"]["succeeded"], stats["states"]["dead"], stats["ended"]) == (
        1,
        1,
        {"failed": 2, "succeeded": 1},
    )


FUNCTIONS = """
def given(): return {"loss": float("nan"), "n": 1}
def odd(): return object()
class Changing(dict):
    def items(self): raise RuntimeError("it changes")
def changing(): return Changing(n=1)
def clears():
    import os
    os.environ.clear()
    return 3
def own():
    import os
    open(os.environ["JOBQ_RESULT_FILE"], "w").write("[1]")
    return 2
async def later(): return "later"
"""


def test_what_a_function_returns_is_its_result(place: Place) -> None:
    (place.jobq.folder / "functions.py").write_text(FUNCTIONS)
    path = {"PYTHONPATH": str(place.jobq.folder)}
    names = ("given", "odd", "own", "later", "changing", "clears")
    ids = [place("push", "--ids", "--call", f"functions:{name}").lines[0] for name in names]
    told = place("worker", "--json", env=path)
    values = [place.status(id_)["last"].get("value") for id_ in ids]
    assert values == [{"loss": "NaN", "n": 1}, None, [1], "later", None, 3]
    assert [place.status(ids[number])["state"] for number in (1, 4)] == ["succeeded"] * 2
    lost = [event["detail"] for event in told.objects if event["event"] == "task.result_not_kept"]
    assert ["not JSON" in detail for detail in lost] == [True, True]
    assert told.objects[-1]["results_not_kept"] == 2


def test_a_result_that_is_too_long_is_said_and_counted(place: Place) -> None:
    (id_,) = place.push("head -c 70000 /dev/zero | tr '\\0' 7 > $JOBQ_RESULT_FILE")
    told = place("worker")
    assert place.status(id_)["state"] == "succeeded"
    assert "longer than 65536 bytes" in place.status(id_)["last"]["detail"]
    assert "has a result that is not kept" in told.err
    assert json.loads(told.err.splitlines()[-1])["results_not_kept"] == 1


def test_push_waits_and_ends_with_the_worst_code(place: Place) -> None:
    place("create")
    place.start_worker("-n", "2")
    waited = place("push", "--wait", "-c", "exit 3", "-c", "true", "-c", "exit 5", "--num-retries", "0", code=5)
    assert "exit code 5" in waited.err
    assert "1 of 3 succeeded, 2 did not" in waited.err
    assert place("push", "--wait", "-c", "true").code == 0
    told = place("push", "--wait", "--json", "-c", "kill -9 $$", "--max-crashes", "0", code=128 + 9)
    ids, ended = told.objects
    assert (ended["id"], ended["state"], ended["outcome"], ended["signal"]) == (ids["id"], "dead", "crashed", 9)


def test_a_wait_ends_at_its_time_and_says_whose_outcome_is_unknown(place: Place) -> None:
    place("create")
    said = place("push", "--wait", "--wait-timeout", "300ms", "-c", "true", "-c", "true", code=75)
    assert said.err.count("outcome unknown") == 2
    assert "0 of 2 succeeded, 2 unknown" in said.err
    told = place("push", "--wait", "--wait-timeout", "300ms", "--json", "-c", "true", code=75).objects
    assert (told[-1]["state"], told[-1]["outcome"]) == ("unknown", "unknown")
    assert "--wait-timeout goes with --wait" in place("push", "--wait-timeout", "1s", "-c", "true", code=2).err


class _Forgetful:
    """A queue that holds nothing, and a journal that nobody has written in: what a worker leaves that had none."""

    capabilities = Capabilities(default_lease=timedelta(seconds=0.2))
    name = "queue"

    @property
    def journal(self) -> "_Forgetful":
        return self

    async def find(self, ids: list[str]) -> list[TaskRecord]:
        return [TaskRecord(id=id_, state=TaskState.EXPIRED, attempt=1) for id_ in ids]

    async def stats(self) -> QueueStats:
        return QueueStats(visible=None, leased=None, scheduled=None, dead=0, total=0)


class _Late(_Forgetful):
    """A journal beside its queue, which has not heard yet of what an earlier process has pushed."""

    capabilities = Capabilities(default_lease=timedelta(seconds=60), journal_lags=True)
    looks = 0

    async def find(self, ids: list[str]) -> list[TaskRecord]:
        self.looks += 1
        if self.looks < 3:
            return []
        return [TaskRecord(id=id_, state=TaskState.SUCCEEDED, attempt=1) for id_ in ids]

    async def output(self, task_id: str, attempt: int | None = None) -> None:
        """Nothing was printed."""


async def test_s5_what_a_journal_has_not_heard_of_is_waited_for(capsys: pytest.CaptureFixture[str]) -> None:
    """`push --resume --wait` after a SIGKILL: queued tasks were told as cleared or purged."""
    async with asyncio.timeout(20):
        assert await wait_for(cast("Backend", _Late()), ["a"], as_json=False) == 0
    assert "cleared or purged" not in capsys.readouterr().err


class _Cleared(_Late):
    """The same: it has heard of the task, which somebody has cleared away then; others keep the queue busy."""

    capabilities = Capabilities(default_lease=timedelta(seconds=0.2), journal_lags=True)

    async def find(self, ids: list[str]) -> list[TaskRecord]:
        self.looks += 1
        return [TaskRecord(id=id_, state=TaskState.READY, attempt=0) for id_ in ids] if self.looks < 3 else []

    async def stats(self) -> QueueStats:
        return QueueStats(visible=None, leased=None, scheduled=None, dead=0, total=9)


async def test_what_was_cleared_is_waited_for_no_longer(capsys: pytest.CaptureFixture[str]) -> None:
    async with asyncio.timeout(20):
        assert await wait_for(cast("Backend", _Cleared()), ["a"], as_json=False) == 1
    assert "cleared or purged" in capsys.readouterr().err


class _ClearedAsItBegan(_Late):
    """The same: its record was deleted as one that waits, in the moment before its worker wrote that it runs."""

    async def find(self, ids: list[str]) -> list[TaskRecord]:
        self.looks += 1
        if self.looks == 2:
            return []
        state = TaskState.READY if self.looks == 1 else TaskState.SUCCEEDED
        return [TaskRecord(id=id_, state=state, attempt=1) for id_ in ids]


async def test_s5_what_runs_is_not_told_as_cleared(capsys: pytest.CaptureFixture[str]) -> None:
    async with asyncio.timeout(20):
        assert await wait_for(cast("Backend", _ClearedAsItBegan()), ["a"], as_json=False) == 0
        handle = TaskHandle.of("a", cast("Backend", _ClearedAsItBegan()))
        assert (await handle.result()).succeeded
    assert "cleared or purged" not in capsys.readouterr().err


async def test_s5_a_wait_for_what_nobody_recorded_ends(capsys: pytest.CaptureFixture[str]) -> None:
    """The worker died between the settle and its note; nothing can bring it any more."""
    async with asyncio.timeout(20):
        assert await wait_for(cast("Backend", _Forgetful()), ["a", "b"], as_json=False) == 75
    captured = capsys.readouterr()
    assert "nobody has recorded what became of 2 tasks" in captured.err
    assert captured.err.count("outcome unknown") == 2


def test_whoever_waits_may_be_interrupted(place: Place) -> None:
    """The tasks go on without."""
    place("create")
    waiting = place.jobq.start(place.spec, "push", "--wait", "--ids", "-c", "true")
    assert waiting.stdout is not None
    id_ = waiting.stdout.readline().decode().strip()
    waiting.send_signal(signal.SIGINT)
    _, told = waiting.communicate(timeout=20)
    assert waiting.returncode == 130
    assert b"1 of 1 tasks have not ended" in told
    assert place.status(id_)["state"] == "ready"


async def test_an_interrupt_between_push_and_wait_tells_of_both(tmp_path: Path) -> None:
    """The ids are printed before the push has returned; a signal just then ends the push, not the wait."""
    echo = Echo(ids=True, as_json=False, kept=["an-id"])

    async def cut(_: Backend) -> int:
        raise Interrupted("queued 1 task on demo")

    settings, context = Settings(home=tmp_path), click.Context(cli)
    how = HowToPush(ctx=context, settings=settings, template=TaskOptions(), echo=echo, creates=True, names=None)
    async with resolve("demo", settings) as backend:
        with pytest.raises(Interrupted, match=r"queued 1 task on demo; 1 of 1 tasks have not ended"):
            await how.awaited(backend, cut)


@pytest.mark.slow("workers on each store, and leases of seconds")
@everywhere
async def test_a_push_returns_ids_that_know_their_results(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    if place.is_azure:  # what was cleared may run all the same, until two leases of five minutes are over
        monkeypatch.setattr(Capabilities, "record_lag", 1.0)
    settings = Settings(home=place.jobq.home, scheduled_events="off", num_retries=0, **place.settings)
    async with library.connect(place.spec, settings=settings) as queue:
        handle = await queue.push("echo hello; echo [1] > $JOBQ_RESULT_FILE")
        assert isinstance(handle, str)
        assert json.loads(json.dumps(handle)) == handle == handle.id
        with pytest.raises(TimeoutError):
            await handle.result(0.1)
        assert (await handle.status()).state is TaskState.READY
        await queue.worker()
        result = await handle.result()
        assert (result.succeeded, result.exit_code, result.value, result.output_tail) == (True, 0, [1], "hello\n")
        assert result.ended is not None
        assert result.started is not None
        assert result.usage is not None
        handle = await queue.push(library.Task.new(kwargs={"n": 20}))

        def double(n: int) -> int:
            return 2 * n

        await queue.worker(double)
        assert (await queue.task(handle).result(10)).value == 40
        await queue.push("true")
        cleared = (await queue.push(["true"]))[0]
        await queue.clear()
        with pytest.raises(library.JobqError, match="cleared"):
            await cleared.result(5)


def test_handles_block_without_async(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path, scheduled_events="off")
    with library.sync.connect("demo", settings=settings) as queue:
        handle = queue.push("exit 0")
        queue.worker()
        assert handle.result(10).succeeded


def test_a_result_that_is_none_changes_nothing(place: Place) -> None:
    said = {
        "echo '{oops' > $JOBQ_RESULT_FILE": "not JSON",
        "head -c 70000 /dev/zero | tr '\\0' 1 > $JOBQ_RESULT_FILE": "longer than 65536",
        "ln -s /etc/passwd $JOBQ_RESULT_FILE": "",
        "mkfifo $JOBQ_RESULT_FILE": "",
        "mkdir $JOBQ_RESULT_FILE": "",
        "true": "",
    }
    ids = place.push(*said)
    place.work("-n", "2")
    found = place("status", *ids, "--json").objects
    for one, says in zip(found, said.values(), strict=True):
        assert (one["last"]["outcome"], one["last"]["value"]) == ("succeeded", None)
        assert says in one["last"]["detail"]


def test_nothing_is_left_of_results(place: Place) -> None:
    """P5, also when the worker is killed."""
    temporary = place.jobq.folder / "tmp"
    temporary.mkdir()
    place.jobq.environment["TMPDIR"] = str(temporary)
    place.push("echo 1 > $JOBQ_RESULT_FILE")
    place.work()
    assert list(temporary.iterdir()) == []
    place.push("echo 1 > $JOBQ_RESULT_FILE; touch begun; sleep 60")
    guardian = place.start_worker()
    eventually((place.jobq.folder / "begun").exists)
    assert list(temporary.iterdir())
    place.kill_worker_alone(guardian)
    assert list(temporary.iterdir()) == []


def test_what_a_task_prints_breaks_no_terminal_and_no_json(place: Place) -> None:
    (id_,) = place.push("printf '\\033[2J\\000\\377\\r\\n\\342\\200\\256evil'; echo '\"}' > $JOBQ_RESULT_FILE; exit 0")
    place.work()
    for command in ("status", "logs"):
        shown = place(command, id_)
        assert not set("\x1b\x00\r\u202e") & set(shown.out + shown.err)
        assert all(isinstance(one, dict) for one in place(command, id_, "--json").objects)
    assert "\x1b[2J\x00" in place("logs", id_, "--json").objects[0]["output"]


def test_arguments_and_variables_are_forgotten_with_the_task(place: Place) -> None:
    """A5: the journal keeps the first word of what ran, and what the task itself printed or returned."""
    (id_,) = place.push("TOKEN=canary-a true canary-b", more=("--env", "SECRET=canary-c"))
    assert "canary-c" not in place("status", id_, "--json").out
    place.work()
    shown = place("status", id_, "--json").out + place("ps").out
    assert "canary" not in shown
    assert place.status(id_)["last"]["program"] == "true"


def test_without_a_journal_the_rest_works(place: Place) -> None:
    off = {"JOBQ_JOURNAL": "off"}
    (id_,) = place("push", "--ids", "-c", "true", env=off).lines
    place.work(env=off)
    assert place.status(id_)["state"] == "succeeded", "the queue's own row tells"
    assert place("status", id_, "--json").objects[0]["attempts"] == []
    assert "JOBQ_JOURNAL" in place("status", id_, code=3, env=off).err
    refused = place("push", "--wait", "-c", "true", code=3, env=off)
    assert "JOBQ_JOURNAL" in refused.err
    assert place("size", "--json").objects[0]["visible"] == 0, "nothing was queued"


def test_what_has_ended_is_forgotten_in_time(place: Place) -> None:
    (id_,) = place.push("true")
    place.work()
    assert place("status", id_, "--json").objects[0]["attempts"]
    if place.is_embedded:  # PostgreSQL looks once a minute, which tests/postgres/test_journal.py does not wait for
        place.work("--keep", "0s")
        assert place("status", id_, "--json").objects[0]["attempts"] == []
        assert place.status(id_)["state"] == "succeeded"


def test_exit_rules(place: Place) -> None:
    """A task or its queue says which end is worth another try."""
    (hopeless,) = place.push("exit 3", more=("--on-exit", "3=fail"))
    (later,) = place("push", "--ids", "-c", "exit 4", env={"JOBQ_ON_EXIT": "4=delay:1h,3=fail"}).lines
    assert "neither retry" in place("push", "-c", "true", "--on-exit", "3=explode", code=2).err
    place.start_worker()
    assert place.until(hopeless, lambda record: record.state is TaskState.DEAD).attempt == 1
    assert (
        place.until(later, lambda record: record.attempt == 1 and record.state is not TaskState.RUNNING).state
        == "scheduled"
    )
