"""Real workers on a batch that a ledger keeps, killed again and again: its counts, its end, its command line."""

import asyncio
import json
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from jobq.batches import BatchState
from jobq_azure.table_journal.client import TableWire, Verb, Write
from tests.azure.emulator import Azurite
from tests.azure.ledger.ledger_stage import NAME, ledgered, pushed
from tests.azure.ledger.sites import Site, sited
from tests.azure.stage import Stage
from tests.support.http_proxy import Strike

pytestmark = pytest.mark.check

_TABLES: Final = {"JOBQ_JOURNAL": "tables"}
_COMMAND: Final = 'sleep 0.1; echo "$JOBQ_TASK_ID" >> done; test "$JOBQ_TASK_ID" != s7.7 || exit 3'


@pytest.mark.night("kills of many workers: 16 s")
@pytest.mark.timeout(240)
@pytest.mark.parametrize(("count", "kills"), [(60, 8), pytest.param(300, 60, marks=pytest.mark.night)])
async def test_workers_are_killed_and_the_sum_holds(azurite: Azurite, tmp_path: Path, count: int, kills: int) -> None:
    async with sited(azurite, tmp_path) as site:
        await _killed(site, count, kills)


async def _killed(site: Site, count: int, kills: int) -> None:
    line = ["push", "--batch", NAME, "--num-retries", "0", "--max-crashes", "100", "--then", "echo merged >> merged"]
    pushed = await site.run(*line, "--cwd", str(site.folder), *(["-c", _COMMAND] * count))
    assert pushed.code == 0, pushed.err
    assert f"sealed with {count} tasks" in pushed.err
    queue = await site.ledgered(behind=True)
    chance = random.Random(count)

    async def started() -> asyncio.subprocess.Process:
        return await site.start("worker", "-n", "4", "--idle-timeout", "8s", **site.short)

    workers = [await started() for _ in range(2)]
    for number in range(kills):
        await asyncio.sleep(chance.uniform(0.3, 1.2))
        found = await queue.batches.find(NAME)
        assert found.total == count, found
        workers[number % 2].kill()
        await workers[number % 2].wait()
        workers[number % 2] = await started()
    waited = await site.run("batch", "wait", NAME, "--timeout", "90s")
    assert waited.code == 1, waited.err  # one has failed
    for worker in workers:
        await asyncio.wait_for(worker.wait(), 60)
    found = await queue.batches.find(NAME)
    assert (found.state, found.round) == (BatchState.FINISHED, 1)
    assert dict(found.counts) | {"succeeded": count - 1, "dead": 1} == dict(found.counts)
    runs = Counter((site.folder / "done").read_text().split())
    assert len(runs) == count, "a task was lost"
    assert sum(runs.values()) <= count + 4 * kills, "tasks ran again that nobody had killed"
    assert (site.folder / "merged").read_text().split() == ["merged"]
    assert await site.total() == 0
    rows = (await site.run("results", "--batch", NAME)).out.splitlines()
    assert Counter(json.loads(row)["state"] for row in rows) == {"succeeded": count - 1, "dead": 1}


@pytest.mark.slow("leases of seconds on Azurite")
async def test_the_commands_of_a_batch(stage: Stage) -> None:
    (stage.folder / "tasks.txt").write_text("echo a\nexit 3\n")
    again = ["push", "--batch", NAME, "--num-retries", "0", str(stage.folder / "tasks.txt")]
    for _ in range(2):  # the same line again queues nothing twice
        pushed = await stage.run(*again, **_TABLES)
        assert pushed.code == 0, pushed.err
        assert "with 2 tasks" in pushed.err
    assert await stage.total() == 2
    refused = await stage.run("push", "--batch", "s8", "-c", "true")
    assert refused.code == 3
    assert "JOBQ_JOURNAL=tables is set for whoever pushes and works" in refused.err
    assert (await stage.run("worker", **_TABLES)).code == 0
    shown = json.loads((await stage.run("batch", "show", NAME, "--json", **_TABLES)).out)
    assert (shown["state"], shown["counts"]["succeeded"], shown["counts"]["dead"]) == ("finished", 1, 1)
    assert "exit 3" in (await stage.run("dead", "list", "--batch", NAME, **_TABLES)).out
    assert (await stage.run("batch", "retry", NAME, **_TABLES)).code == 0
    assert "round 2" in (await stage.run("batch", "show", NAME, **_TABLES)).out
    assert (await stage.run("batch", "cancel", NAME, "--yes", **_TABLES)).code == 0
    listed = json.loads((await stage.run("batch", "list", "--json", **_TABLES)).out.splitlines()[0])
    assert (listed["state"], listed["round"], listed["counts"]["canceled"]) == ("finished", 2, 1)
    points = ["push", "--batch", "grid", "--grid", "a=1..3", "--", "echo", "{a}"]
    assert (await stage.run(*points, **_TABLES)).code == 0
    assert (await stage.run("worker", **_TABLES)).code == 0
    rows = [json.loads(row) for row in (await stage.run("results", "--batch", "grid", **_TABLES)).out.splitlines()]
    assert [(row["id"], row["param.a"], row["state"]) for row in rows] == [
        (f"grid.{number}", number + 1, "succeeded") for number in range(3)
    ]


async def test_a_queue_is_deleted_with_all_that_the_table_holds_of_it(stage: Stage) -> None:
    queue = await ledgered(stage, behind=True)
    await pushed(queue, 250)
    await queue.batches.seal(NAME)
    other = TableWire(replace(queue._wire.place, queue=f"{queue._wire.place.queue}-b"), 10.0)
    async with other:
        await other.write(other.place.queue, [Write(Verb.INSERT, "l!x", {})])
        refused = await stage.run("delete", **_TABLES)
        assert refused.code == 2
        assert "holds 250 tasks; --force" in refused.err
        stage.tables.strike(Strike.BUSY, "POST")
        assert (await stage.run("delete", "--force", **_TABLES)).code == 75
        deleted = await stage.run("delete", "--force", **_TABLES)
        assert (deleted.code, "is deleted" in deleted.err) == (0, True), deleted
        left, _ = await queue._wire.look(queue._ledger.queue, "!", "~", behind=f'{queue._ledger.queue}"')
        assert left == []
        assert await other.get(other.place.queue, "l!x") is not None, "that is another queue's"
    assert (await stage.run("size", **_TABLES)).code == 4
