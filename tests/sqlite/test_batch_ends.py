"""The end of a batch in a file that others use, too: who hears of it, and whom it must not hold up."""

import json
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest

from jobq.batch_plan import Plan
from jobq.batches import BatchState
from jobq.errors import QueueNotFound
from jobq.settings import Settings
from jobq.settlement import Complete
from jobq.spec import resolve
from jobq.task import Task
from jobq.testing.harness import DONE
from jobq_sqlite.backend import SqliteBackend

THEN = Task.new(command="true", id="then").encode().decode()
NOW = timedelta(0)


@pytest.fixture
async def queue(tmp_path: Path) -> AsyncIterator[SqliteBackend]:
    async with resolve(f"sqlite://{tmp_path}/jobs.db/q", Settings(home=tmp_path)) as made:
        assert isinstance(made, SqliteBackend)
        await made.create()
        yield made


async def test_a_queue_that_was_made_anew_is_found_again(queue: SqliteBackend, tmp_path: Path) -> None:
    """As by the other verbs: a service has it open for weeks."""
    await queue.batches.begin("s7", Plan())
    async with resolve(f"sqlite://{tmp_path}/jobs.db/q", Settings(home=tmp_path)) as other:
        assert isinstance(other, SqliteBackend)
        await other.delete()
        await other.create()
    with pytest.raises(QueueNotFound):
        await queue.batches.seal("s7")
    assert (await queue.batches.begin("s7", Plan())).state is BatchState.OPEN


async def test_what_a_newer_jobq_is_to_run_at_an_end_keeps_nobody_from_settling(
    queue: SqliteBackend, tmp_path: Path
) -> None:
    """Its batch waits for one that can read it; each transaction of this process failed, whatever it was about."""
    await queue.batches.begin("new", Plan())
    newer = json.dumps({"then": ['{"version": 4, "id": "a"}']})
    with closing(sqlite3.connect(tmp_path / "jobs.db", isolation_level=None)) as database:
        database.execute("UPDATE batch SET plan = ?", (newer,))
        await queue.push([Task.new(command="true", batch="new"), Task.new(command="true")])
        await queue.batches.seal("new")
        for held in await queue.receive(2, None, NOW):
            await held.settle(Complete(DONE))
        await queue.batches.begin("other", Plan())
        assert (await queue.batches.seal("other")).state is BatchState.FINISHED
        found = await queue.batches.find("new")
        assert (found.state, found.counts["succeeded"]) == (BatchState.SEALED, 1)
        database.execute("UPDATE batch SET plan = ? WHERE name = 'new'", (Plan(then=(THEN,)).encode(),))
        assert (await queue.batches.seal("new")).state is BatchState.FINISHED, "who looks at it goes on"
