"""Looking at a whole file: by indexes alone, for a bounded time, and on nobody else's connection."""

import asyncio
import sqlite3
import threading
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar

import pytest

from jobq.errors import BackendUnavailable, QueueNotFound, StoreUnusable
from jobq.journal.records import TaskState
from jobq.journal.task_filter import TaskFilter
from jobq.journal.task_search import TaskOrder
from jobq.settlement import Complete
from jobq_sqlite import (
    bounded_read,
    dead_groups,
    lease_listing,
    observations,
    queue_admin,
    queue_lines,
    task_walk,
)
from jobq_sqlite.views import SqliteViews
from tests.sqlite.support import DONE, LEASE, NOW, ask, backend, real_file, tasks, virtual_file

VALUES = {
    "asks_body": True,
    "queue": 1, "batch": 1, "boottime": 0, "wall": 0, "look": 50, "want": 50, "oldest": 0, "newest": 0,
    "key0": 0, "key1": 0, "key2": 0, "state": "done", "outcome": None, "others": 49, "most": 10, "since": 0,
    "body": b"x",
}  # fmt: skip
_INDEXES = {
    TaskOrder.EXPIRED: "task_leased",
    TaskOrder.RUNNING: "task_leased",
    TaskOrder.READY: "task_ready",
    TaskOrder.DUE: "task_scheduled",
    TaskOrder.SCHEDULED: "task_scheduled",
    TaskOrder.DEAD: "task_dead",
    TaskOrder.ENDED: "task_done",
}
_ORDERS = {str(order): (walk, _INDEXES[order]) for order, walk in task_walk.ORDERS.items()}
_WALKS = [(name, known) for name, (order, _) in _ORDERS.items() for known in range(len(order.columns) + 1)]


async def _plan(folder: Path, sql: str, values: Any) -> list[str]:
    async with backend(virtual_file(folder)) as queue:
        await queue.create()
    with closing(sqlite3.connect(folder / "jobs.db")) as database:
        return [str(row[3]) for row in database.execute(f"EXPLAIN QUERY PLAN {sql}", values)]


@pytest.mark.parametrize(("name", "known"), _WALKS)
async def test_each_order_is_walked_by_its_index(tmp_path: Path, name: str, known: int) -> None:
    """Whatever the depth: the index is entered at the place, and what is leased alone is sorted."""
    order, index = _ORDERS[name]
    for sql in (task_walk.listed(order, known, "instr(body, :body)"), task_walk.edge_of(order, known)):
        plan = await _plan(tmp_path, sql, VALUES)
        assert {word for step in plan for word in step.split() if word.startswith("task_")} == {index}, plan
        assert sum("TEMP B-TREE" in step for step in plan) == (index == "task_leased"), plan
        (entered,) = [step for step in plan if index in step]
        assert entered.startswith("SEARCH task"), plan
        if known and index != "task_leased":  # each part of the place that is known bounds it
            bounds = entered.partition("(")[2].replace("rowid", "seq")
            *same, last = order.columns[:known]
            assert all(f"{column.name}=?" in bounds for column in same), plan
            assert f"{last.name}{'<' if last.is_down else '>'}?" in bounds, plan
        assert not [step for step in plan if step.startswith(("SCAN task", "SCAN attempt"))], plan


async def test_a_batch_is_walked_by_its_own_index(tmp_path: Path) -> None:
    for sql in (task_walk.listed(task_walk.OF_BATCH, 1, "true"), task_walk.edge_of(task_walk.OF_BATCH, 1)):
        plan = await _plan(tmp_path, sql, VALUES)
        (entered,) = [step for step in plan if "task_state_in_batch" in step]
        assert "(batch_id=? AND state=? AND outcome=? AND rowid>?)" in entered, plan
        assert not [step for step in plan if "TEMP B-TREE" in step], plan


@pytest.mark.parametrize(
    ("sql", "values", "index"),
    [
        *((sql, VALUES, "task_") for sql in queue_lines.COUNTS.values()),
        (queue_lines.OTHERWISE, VALUES, "task_canceled"),
        (queue_lines.ENDED.format("done"), VALUES, "task_done"),
        (queue_lines.ENDED.format("dead"), VALUES, "task_dead"),
        (queue_lines.QUEUES, ("", 1), "sqlite_autoindex_queue_1"),
        (lease_listing.LISTED.format(">"), ("q", "", "z", 1), "sqlite_autoindex_lease_1"),
        (dead_groups.LETTERS, (1, 1), "task_dead"),
        (observations.OUTCOMES, (1, 0.0, 1.0), "COVERING INDEX attempt_ended"),
        (observations.SAMPLE, (1, 0.0, 1.0, 1), "attempt_ended"),
        (observations.PAGE, (1, "depth", "", 1), "PRIMARY KEY"),
        (queue_admin.NOTES_OF_DELETED, (1, "d", 1), "PRIMARY KEY"),
    ],
)
async def test_counts_and_lists_are_read_from_indexes(tmp_path: Path, sql: str, values: Any, index: str) -> None:
    plan = await _plan(tmp_path, sql, values)
    assert any(step.startswith("SEARCH") and index in step for step in plan), plan
    assert not [step for step in plan if step.startswith(("SCAN task", "SCAN lease", "SCAN attempt"))], plan
    assert not [step for step in plan if "ORDER BY" in step], plan


class Slow(sqlite3.Connection):
    """Stays in the statement that counts what is ready until it may go on."""

    begun: ClassVar[threading.Event]
    may_go_on: ClassVar[threading.Event]

    def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
        if sql == queue_lines.COUNTS["ready"]:
            Slow.begun.set()
            assert Slow.may_go_on.wait(30)
        return super().execute(sql, *values)


async def test_a_slow_look_makes_no_claim_and_no_other_read_wait(tmp_path: Path) -> None:
    Slow.begun, Slow.may_go_on = threading.Event(), threading.Event()
    file = virtual_file(tmp_path, connection_class=Slow)
    async with backend(file) as queue, queue.views() as views:
        await queue.create()
        await queue.push(tasks(2))
        looking = asyncio.create_task(views.queues("", 10))
        try:
            await asyncio.to_thread(Slow.begun.wait)
            async with asyncio.timeout(10):
                (delivery,) = await queue.receive(1, LEASE, NOW)
                await delivery.renew(LEASE)
                await delivery.settle(Complete(DONE))
                assert (await queue.stats()).visible == 1
            assert not looking.done()
        finally:
            Slow.may_go_on.set()
        await looking


def _cut(database: sqlite3.Connection, sql: str) -> None:
    with bounded_read.bounded(database, timedelta(milliseconds=20)):
        database.execute(sql).fetchall()


async def test_a_statement_that_takes_too_long_is_interrupted(tmp_path: Path) -> None:
    async with backend(real_file(tmp_path / "jobs.db")) as queue, queue.views() as views:
        await queue.create()
        assert isinstance(views, SqliteViews)
        endless = "WITH RECURSIVE n (n) AS (VALUES (1) UNION ALL SELECT n + 1 FROM n) SELECT count(*) FROM n"
        for _ in range(3):
            with pytest.raises(BackendUnavailable, match="interrupted"):
                await views._look(lambda database, _: _cut(database, endless))
            assert [line.name for line in (await views.queues("", 10)).rows] == ["q"], "the next look is whole"


async def test_what_there_was_no_time_to_count_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    endless = "WITH RECURSIVE n (n) AS (VALUES (1) UNION ALL SELECT n + 1 FROM n) SELECT count(*) FROM n"
    monkeypatch.setitem(queue_lines.COUNTS, "dead", endless)
    async with backend(real_file(tmp_path / "jobs.db")) as queue, queue.views() as views:
        await queue.create()
        async with backend(real_file(tmp_path / "jobs.db"), "second") as second:
            await second.create()
        await queue.push(tasks(3))
        page = await views.queues("", 10, budget=timedelta(milliseconds=50))
        (line,) = page.rows
        assert (line.counts[TaskState.READY].number, TaskState.DEAD in line.counts) == (3, False)
        assert (page.after, page.searched_to is not None) == ("q", True)
        count = await views.count("q", TaskFilter(), budget=timedelta(milliseconds=50))
        assert (count.number, count.is_exact) == (3, False)
        page = await views.queues("q", 10, budget=timedelta(milliseconds=50))
        assert [line.name for line in page.rows] == ["second"], "it goes on, however slow each is"


async def test_looks_write_nothing(tmp_path: Path) -> None:
    async with backend(real_file(tmp_path / "jobs.db")) as queue, queue.views() as views:
        await queue.create()
        assert isinstance(views, SqliteViews)
        with pytest.raises(Exception, match="attempt to write a readonly database"):
            await views._look(lambda database, _: database.execute("DELETE FROM queue"))


async def test_a_deleted_queue_is_not_there(tmp_path: Path) -> None:
    """Its row stays, under a name that nobody can give."""
    async with backend(real_file(tmp_path / "jobs.db")) as queue, queue.views() as views:
        await queue.create()
        await queue.push(tasks(2))
        await queue.delete()
        assert (await views.queues("", 10)).rows == []
        for name in ("q", "deleted 1"):
            with pytest.raises(QueueNotFound):
                await views.tasks(name, TaskFilter(), "", 10)


async def test_a_file_that_is_not_there_is_not_made_and_is_found_once_it_is(tmp_path: Path) -> None:
    file = real_file(tmp_path / "jobs.db")
    async with SqliteViews(file) as views:
        with pytest.raises(QueueNotFound):
            await views.queues("", 10)
        assert not (tmp_path / "jobs.db").exists()
        async with backend(file) as queue:
            await queue.create()
        assert [line.name for line in (await views.queues("", 10)).rows] == ["q"]
    with pytest.raises(BackendUnavailable, match="left"):
        await views.queues("", 10)


async def test_another_file_in_its_place_is_said_and_then_looked_at(tmp_path: Path) -> None:
    file = real_file(tmp_path / "jobs.db")
    async with backend(file) as queue:
        await queue.create()
    async with SqliteViews(file) as views:
        assert [line.name for line in (await views.queues("", 10)).rows] == ["q"]
        for each in tmp_path.iterdir():
            each.unlink()
        async with backend(file, "other") as queue:
            await queue.create()
        with pytest.raises(StoreUnusable):
            await views.queues("", 10)
        assert [line.name for line in (await views.queues("", 10)).rows] == ["other"]


async def test_views_leave_no_thread_behind(tmp_path: Path) -> None:
    async with backend(real_file(tmp_path / "jobs.db")) as queue:
        await queue.create()
        await queue.stats()
        before = threading.active_count()
        for _ in range(20):
            async with queue.views() as views:
                await views.queues("", 10)
        assert threading.active_count() == before
    assert ask(tmp_path / "jobs.db", "SELECT count(*) FROM queue") == [(1,)]
