"""What the rows keep and forget: ids, leases of dead workers, statements that stay cheap, no leaks."""

import sqlite3
import threading
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest

from jobq.errors import DuplicateTask, LockLost
from jobq.servable import served
from jobq.settlement import Complete, MoveToDeadLetters
from jobq.task import Task
from jobq.testing.clock import VirtualClock
from jobq_sqlite import batch_sql, journal, push_sql, queue_admin, task_sql
from tests.sqlite.support import DONE, LEASE, NOW, ask, backend, real_file, states, tasks, virtual_file

pytestmark = pytest.mark.check

MONTH = 30 * 86400


async def test_a_claim_that_is_asked_again_takes_over_no_lease_that_is_over(tmp_path: Path) -> None:
    """S4: another may have the task by now, and one that nobody holds is a new delivery."""
    clock = VirtualClock()
    async with backend(virtual_file(tmp_path, clock)) as queue:
        await queue.create()
        await queue.push(tasks(1))
        await served(queue).claim(1, LEASE, NOW, key="unanswered", former=())
        (again,) = await served(queue).claim(1, LEASE, NOW, key="again", former=["unanswered"])
        assert again.deliveries == 1
        await clock.advance(LEASE.total_seconds() + 1)
        (later,) = await served(queue).claim(1, LEASE, NOW, key="later", former=["unanswered", "again"])
        assert later.deliveries == 2


async def test_ids_of_done_tasks_are_remembered_for_a_month(tmp_path: Path) -> None:
    """S8: a repeated push of a task that is done changes nothing; another payload is an error; then it is forgotten."""
    clock = VirtualClock()
    async with backend(virtual_file(tmp_path, clock)) as queue:
        await queue.create()
        await queue.push(tasks(1))
        await (await queue.receive(1, LEASE, NOW))[0].settle(Complete(DONE))
        await clock.advance(MONTH - 1)
        assert await queue.push(tasks(1)) == ["t-00000"]
        assert await queue.receive(1, LEASE, NOW) == []
        with pytest.raises(DuplicateTask, match=r"'t-00000' is taken .*\(done\)"):
            await queue.push([Task.new(command="false", id="t-00000")])
        await clock.advance(2)
        await queue.push(tasks(1, "other"))
        assert list(states(tmp_path / "jobs.db")) == ["other-00000"]
        await queue.push(tasks(1))
        assert len(await queue.receive(5, LEASE, NOW)) == 2


async def test_nothing_but_done_tasks_is_ever_forgotten(tmp_path: Path) -> None:
    """S1: no age removes what waits, is leased, delayed or dead; a purge takes old done rows a piece at a time."""
    clock = VirtualClock()
    async with backend(virtual_file(tmp_path, clock)) as queue:
        await queue.create()
        await queue.push(tasks(500, "done"))
        for delivery in await queue.receive(500, LEASE, NOW):
            await delivery.settle(Complete(DONE))
        await queue.push([*tasks(1, "dead"), *tasks(1, "leased")])
        dead, _ = await queue.receive(2, timedelta(days=9999), NOW)
        await dead.settle(MoveToDeadLetters("failed", "x"))
        await queue.push([*tasks(1, "ready"), *tasks(1, "delayed", not_before=clock.wall() + 9 * MONTH)])
        await clock.advance(3 * MONTH)
        sizes = []
        for number in range(4):
            await queue.push(tasks(1, f"later-{number}"))
            sizes.append(list(states(tmp_path / "jobs.db").values()).count("done"))
        assert sizes == sorted(sizes, reverse=True)
        assert sizes[-1] == 0
        kept = {id_: state for id_, state in states(tmp_path / "jobs.db").items() if not id_.startswith("later")}
    assert kept == {
        "dead-00000": "dead",
        "leased-00000": "leased",
        "ready-00000": "ready",
        "delayed-00000": "scheduled",
    }


@pytest.mark.parametrize(
    ("sql", "values", "indexes"),
    [
        (task_sql.CLAIM, [0] * 2, ["task_ready"]),
        (task_sql.LOOK, {"queue": 0}, ["task_leased", "task_ready", "task_scheduled"]),
        (task_sql.PROMOTE_DUE, [0] * 3, ["task_scheduled"]),
        (task_sql.EXPIRED, [0] * 3, ["task_leased"]),
        (push_sql.OLD, [0] * 3, ["task_done"]),
        (queue_admin.HOLDS, {"queue": 0}, ["task_dead", "task_leased", "task_ready", "task_scheduled"]),
        (queue_admin.END_ALL_LEASES, [0], ["task_leased"]),
        (journal.UNFINISHED, [0, "", 1], ["task_id"]),
    ],
    ids=["claim", "look", "due", "expired", "forget", "delete if empty", "delete", "unfinished"],
)
async def test_statements_under_the_lock_use_partial_indexes(
    tmp_path: Path, sql: str, values: object, indexes: list[str]
) -> None:
    """O(log n): no table is scanned and nothing is sorted, however deep the queue."""
    async with backend(virtual_file(tmp_path)) as queue:
        await queue.create()
    plan = _plan(tmp_path / "jobs.db", sql, values)
    assert not [step for step in plan if step.startswith("SCAN task") or "TEMP B-TREE" in step], plan
    used = {word for step in plan for word in step.split() if word.startswith("task_")}
    assert sorted(used) == indexes, plan


async def test_peek_sorts_only_what_its_indexes_have_bounded(tmp_path: Path) -> None:
    async with backend(virtual_file(tmp_path)) as queue:
        await queue.create()
    plan = _plan(tmp_path / "jobs.db", queue_admin.PEEK, {"queue": 0, "wall": 0, "boottime": 0, "limit": 1})
    assert sum("TEMP B-TREE" in step for step in plan) == 1, plan
    used = {word for step in plan for word in step.split() if word.startswith("task_")}
    assert used == {"task_ready", "task_scheduled", "task_leased"}, plan


@pytest.mark.parametrize(
    ("sql", "values", "sorts", "indexes"),
    [
        (journal.RUNNING, [0, 1], 1, {"task_leased"}),
        (journal.RUNNING_OF_BATCH, [0, "s7", 1], 1, {"task_state_in_batch"}),
        (batch_sql.LATELY, {"queue": 0, "since": 0, "most": 1, "batch": 1}, 2, {"task_done", "task_dead"}),
    ],
    ids=["running", "running of a batch", "lately"],
)
async def test_looks_sort_only_what_their_indexes_have_bounded(
    tmp_path: Path, sql: str, values: object, sorts: int, indexes: set[str]
) -> None:
    async with backend(virtual_file(tmp_path)) as queue:
        await queue.create()
    plan = _plan(tmp_path / "jobs.db", sql, values)
    assert sum("TEMP B-TREE" in step for step in plan) == sorts, plan
    assert not [step for step in plan if step.startswith(("SCAN task", "SCAN batch"))], plan
    assert {word for step in plan for word in step.split() if word.startswith("task_")} == indexes, plan


def _plan(path: Path, sql: str, values: object) -> list[str]:
    with closing(sqlite3.connect(path)) as database:
        return [str(row[3]) for row in database.execute(f"EXPLAIN QUERY PLAN {sql}", values)]  # type: ignore[arg-type] # a list or a dict


async def test_thousand_openings_leak_nothing(tmp_path: Path) -> None:
    """Nor while another connection stays open: then SQLite parks one descriptor, and uses that again."""
    file = real_file(tmp_path / "jobs.db")

    async def open_and_close(times: int) -> tuple[int, int]:
        for _ in range(times):
            async with backend(file) as other:
                await other.stats()
        return threading.active_count(), len(list(Path("/proc/self/fd").iterdir()))

    async with backend(file) as queue:
        await queue.create()
        before = await open_and_close(10)
        assert await open_and_close(500) == before
    before = await open_and_close(10)
    assert await open_and_close(500) == before


async def test_l6_leases_of_dead_workers_end_at_once_and_no_others_do(tmp_path: Path) -> None:
    file = virtual_file(tmp_path)
    async with backend(file) as dead, backend(file) as lives, backend(file) as unknown:
        await dead.create()
        await dead.push(tasks(4))
        lost = await dead.receive_as("dead", 2, LEASE, NOW)
        (kept,), (nobody_knows,) = (
            await lives.receive_as("lives", 1, LEASE, NOW),
            await unknown.receive(1, LEASE, NOW),
        )
        assert sorted(await lives.holders()) == ["dead", "lives"]
        assert await lives.end_leases(["dead"]) == 2
        assert await lives.holders() == ["lives"]
        again = await unknown.receive(4, LEASE, NOW)
        assert [(each.id, each.deliveries) for each in again] == [(each.id, 2) for each in lost], "S7: charged"
        for delivery in lost:
            with pytest.raises(LockLost):
                await delivery.renew(LEASE)
        for delivery in (kept, nobody_knows):
            await delivery.settle(Complete(DONE))
        assert await lives.holders() == [], "whoever took them after the dead one is not known by its id"


async def test_s3_a_lease_that_an_older_jobq_took_is_not_the_dead_workers(tmp_path: Path) -> None:
    """It has the file open since before the upgrade, and writes what it knows."""
    async with backend(virtual_file(tmp_path)) as queue:
        await queue.create()
        await queue.push(tasks(1))
        await queue.receive_as("dead", 1, LEASE, NOW)
        ask(tmp_path / "jobs.db", "UPDATE task SET receipt = 'of the older', deliveries = 2, expires_at = 1e9")
        assert await queue.holders() == []
        assert await queue.end_leases(["dead"]) == 0


async def test_only_a_queue_that_ends_with_its_process_waits_for_no_disk(tmp_path: Path) -> None:
    """S1 is FULL (2): of a file that has no name any more nobody could find what was synced."""
    async with backend(real_file(tmp_path / "jobs.db")) as queue:
        await queue.create()
        connection = await queue._opened()

        async def level() -> int:
            found = await connection.submit(
                lambda database, _: database.execute("PRAGMA synchronous").fetchone(), writes=False
            )
            return int(found[0])

        assert await level() == 2
        await queue.push(tasks(1))
        await queue.go_nameless()
        assert await level() == 0
        await queue.push(tasks(1, "later"))
        assert (await queue.stats()).visible == 2
