"""A queue that the real ai4s-jobq has filled is drained by our worker."""

import asyncio
import json
import os
import re
import subprocess
from datetime import timedelta
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

import click
import pytest

from jobq.cli.main import cli
from jobq.settings import STORAGE, STORAGE_QUEUE, TASK_VARIABLES, Settings, variable_of
from jobq.settlement import Requeue
from jobq.task import Task
from tests.azure.stage import SHORT, Stage

pytestmark = pytest.mark.check

_PYTHON: Final = Path(__file__).parents[2] / ".peer/bin/python"
_TASKS: Final = 12


@pytest.fixture
def peer() -> Path:
    """The Python that has ai4s-jobq."""
    if not _PYTHON.exists():
        if os.environ.get("CI"):
            pytest.fail("ai4s-jobq is not installed: run the tests by `make test`")
        pytest.skip("ai4s-jobq is not installed: `make test` does it")
    return _PYTHON


async def peer_runs(stage: Stage, peer: Path, program: str, *arguments: str) -> tuple[int, str]:
    """Run a program of the tests with the peer's own Python; return its exit code, and what it said of errors."""
    process = await asyncio.create_subprocess_exec(
        *(str(peer), str(Path(__file__).with_name(program)), stage.queue, *arguments),
        env={"PATH": os.environ["PATH"], "PEER_CONNECTION_STRING": stage.azurite.connection_string},
        stderr=asyncio.subprocess.PIPE,
        cwd=stage.folder,
    )
    _, said = await process.communicate()
    assert process.returncode is not None
    return process.returncode, said.decode()


def test_each_of_its_words_is_ours_or_is_on_the_page(peer: Path) -> None:
    """Commands, options and variables, as its own package has them: the page names what jobq has not."""
    page = (Path(__file__).parents[2] / "docs/from-ai4s-jobq.md").read_text()
    said = subprocess.run([peer, Path(__file__).with_name("peer_words.py")], capture_output=True, check=True).stdout
    commands, variables = json.loads(said)
    assert len(commands) > 5
    assert len(variables) > 10
    for name, options in commands.items():
        ours = cli.get_command(click.Context(cli), name) if name else cli
        if ours is None:
            assert f"`{name}" in page
            continue
        known = {option for parameter in ours.params for option in (*parameter.opts, *parameter.secondary_opts)}
        assert [option for option in options if option not in known and option not in page] == [], name
    known = {variable_of(field) for field in Settings.FIELDS} | TASK_VARIABLES | {STORAGE, STORAGE_QUEUE}
    patterns = re.findall(r"JOBQ_[A-Z_]+\*?", page)
    assert [name for name in set(variables) - known if not any(fnmatchcase(name, each) for each in patterns)] == []


async def test_a_queue_has_workers_of_one_kind(stage: Stage, peer: Path) -> None:
    """What docs/from-ai4s-jobq.md says of both: theirs ends at what jobq has put back, which is not lost by that.

    So they are stopped first; their pushers may go on.
    """
    code, said = await peer_runs(stage, peer, "peer_push.py", str(stage.folder), "0")  # one task, with one retry
    assert code == 0, said
    (held,) = await stage.behind.receive(1, timedelta(minutes=1), timedelta(0))
    await held.settle(Requeue(held.task.requeued(failures=1).counters))
    code, said = await peer_runs(stage, peer, "peer_work.py")
    assert code != 0
    assert "JSONDecodeError" in said or "Unsupported Task version 2" in said
    assert await stage.total() == 1, "it is there, and jobq's worker goes on with it when their lease is over"


async def test_back_to_its_own_workers(stage: Stage, peer: Path) -> None:
    """The page's way back: drained by jobq first, the queue holds nothing that ends a worker of ai4s-jobq."""
    code, said = await peer_runs(stage, peer, "peer_push.py", str(stage.folder), "0")  # one task, with one retry
    assert code == 0, said
    (held,) = await stage.behind.receive(1, timedelta(minutes=1), timedelta(0))
    await held.settle(Requeue(held.task.requeued(failures=1).counters))
    result = await stage.run("worker", **SHORT, JOBQ_BACKOFF="100ms")
    assert result.code == 0, result.err
    assert await stage.total() == 0
    code, said = await peer_runs(stage, peer, "peer_push.py", str(stage.folder), "1")
    assert code == 0, said
    code, said = await peer_runs(stage, peer, "peer_work.py")
    assert code == 0, said
    assert (stage.folder / "done").read_text() == "0 grün\n"


async def test_a_queue_of_ai4s_jobq_is_drained(stage: Stage, peer: Path) -> None:
    code, said = await peer_runs(stage, peer, "peer_push.py", str(stage.folder), str(_TASKS))
    assert code == 0, said
    assert await stage.total() == _TASKS + 1
    result = await stage.run("worker", "-n", "4", **SHORT, JOBQ_BACKOFF="100ms")
    assert result.code == 0, result.err
    assert sorted((stage.folder / "done").read_text().split("\n")[:-1]) == sorted(f"{n} grün" for n in range(_TASKS))
    stats = await stage.behind.stats()
    assert (stats.total, stats.dead) == (0, 1)
    (letter,) = await stage.behind.dead_letters(10)
    assert (letter.reason, letter.deliveries) == ("failed", 2)


async def test_what_a_worker_of_ai4s_jobq_has_put_back_runs(stage: Stage, peer: Path) -> None:
    """Its worker adds arguments of its own to a task that failed: to what it puts back, and to its dead letters."""
    code, said = await peer_runs(stage, peer, "peer_push.py", str(stage.folder), "0")  # one task, with one retry
    assert code == 0, said
    await peer_runs(stage, peer, "peer_work.py")
    (waiting,) = await stage.behind.peek(1)
    assert b"_job_id" in waiting.body
    assert Task.decode(waiting.body).command == "exit 3"
    result = await stage.run("worker", **SHORT, JOBQ_BACKOFF="100ms")
    assert result.code == 0, result.err
    (letter,) = await stage.behind.dead_letters(10)
    assert letter.reason == "failed"


async def test_what_a_worker_of_ai4s_jobq_has_given_up_is_a_dead_letter_that_runs_again(
    stage: Stage, peer: Path
) -> None:
    code, said = await peer_runs(stage, peer, "peer_push.py", str(stage.folder), "0")  # one task, with one retry
    assert code == 0, said
    for _ in range(2):
        await peer_runs(stage, peer, "peer_work.py")
    listed = await stage.run("dead", "list", "--json")
    (letter,) = map(json.loads, listed.out.splitlines())
    assert (letter["task"]["command"], letter["reason"]) == ("exit 3", "unknown"), letter
    assert letter["died"] > "2026", "when it was given up"
    assert letter["task"]["budgets"]["retries"] == 0, "it counts them down in the message, so each runs once more"
    assert (await stage.run("dead", "retry", "--all")).code == 0
    code, said = await peer_runs(stage, peer, "peer_work.py")
    assert code != 0, "what is redriven is of jobq's format, as what it puts back"
    assert "Unsupported Task version 2" in said
    while not await stage.behind.peek(1):  # until the lease that it has died with is over
        await asyncio.sleep(0.2)
    result = await stage.run("worker", **SHORT, JOBQ_BACKOFF="100ms")
    assert result.code == 0, result.err
    (again,) = await stage.behind.dead_letters(10)
    assert again.reason == "failed"
    assert await stage.total() == 0
