"""The counts of a batch are those of its tasks, whatever is done to it at once; a page of them costs what it holds."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any, Final

import pytest

from jobq.batch_plan import Plan
from jobq.batches import BatchState
from jobq.errors import LockLost
from jobq.journal.store import journal_of
from jobq.pausing import Pause
from jobq.settlement import Complete, MoveToDeadLetters
from jobq.task import Task
from jobq_postgres import PostgresBackend, batch_rows
from jobq_postgres.advance import HOLD_TASKS, IS_LEFT, TAKE
from jobq_postgres.journal import RUNNING_OF_BATCH, UNFINISHED
from jobq_postgres.queue_admin import DEAD_LETTERS
from tests.postgres.server import Database
from tests.postgres.support import DONE, LEASE, NOW, tasks

pytestmark = pytest.mark.check

_DEAD: Final = (1, 10, 0, "", 1_000_000)  # the first letters

_THEN: Final = Plan(then=(Task.new(command="true").encode().decode(),))
_CALL: Final = 210  # tasks of the largest push


class Crowd:
    """Those who do something to one batch at once, each over connections of its own."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._is_over = asyncio.Event()
        self._is_pushed = asyncio.Event()
        self.acknowledged = 0
        self.sums: list[tuple[int, int, int]] = []  # acknowledged before, the sum of the counts, and acknowledged after

    async def push(self) -> None:
        async with self._handle() as pusher:
            for number in range(30):
                count = _CALL if number % 10 == 5 else 20
                self.acknowledged += len(await pusher.push(tasks(count, f"p{number}", batch="s7")))
        self._is_pushed.set()

    async def work(self, number: int) -> None:
        async with self._handle() as worker:
            while not self._is_over.is_set():
                for place, delivery in enumerate(await worker.receive(7, LEASE, timedelta(seconds=0.2))):
                    dies = (place + number) % 3 == 0 and not delivery.id.startswith("jobq.")
                    with suppress(LockLost):  # it was cleared
                        await delivery.settle(MoveToDeadLetters("failures", "") if dies else Complete(DONE))

    async def disturb(self) -> None:
        async with self._handle() as operator:
            number = 0
            while not self._is_pushed.is_set():
                dead = [letter.id for letter in await operator.dead_letters(40)]
                await operator.redrive(dead[:5])
                await journal_of(operator).cancel(dead[:2])
                await operator.purge_dead(dead[5:8])
                number += 1
                if number % 8 == 0:
                    await operator.clear_some("")
                    await self.forget()
            await operator.purge_dead([letter.id for letter in await operator.dead_letters(3)])
            await operator.clear_some("")

    async def forget(self) -> None:
        """Let retention find what has ended so far, by the sweep of a new process."""
        old = "UPDATE jobq.submission SET ended_at = ended_at - interval '31 days' WHERE ended_at IS NOT NULL"
        self._database.run(old)
        async with self._handle() as sweeper:
            for delivery in await sweeper.receive(1, LEASE, NOW):
                await delivery.settle(Complete(DONE))

    async def look(self) -> None:
        async with self._handle() as looker:
            while not self._is_over.is_set():
                before = self.acknowledged
                found = await looker.batches.find("s7")
                self.sums.append((before, found.total, self.acknowledged))

    def end(self) -> None:
        self._is_over.set()

    def _handle(self) -> PostgresBackend:
        return PostgresBackend(self._database.server(), "q")


async def test_their_sum_is_what_was_acknowledged(database: Database, queue: PostgresBackend) -> None:
    """Pushes, settles, clears, purges, redrives, cancels, forgetting, looks at once; the end is told once a round."""
    await queue.batches.begin("s7", _THEN)
    crowd = Crowd(database)
    others = [asyncio.create_task(each) for each in (crowd.work(0), crowd.work(1), crowd.look())]
    await asyncio.gather(crowd.push(), crowd.disturb())
    await queue.batches.seal("s7")
    async with asyncio.timeout(60):
        while (await queue.batches.find("s7")).state is not BatchState.FINISHED or (await queue.stats()).unfinished:
            await asyncio.sleep(0.05)
    crowd.end()
    await asyncio.gather(*others)
    found = await queue.batches.find("s7")
    assert found.total == crowd.acknowledged
    assert found.counts["gone"] > 0
    assert all(before <= total <= after + _CALL for before, total, after in crowd.sums), crowd.sums
    assert dict(found.rounds[-1].counts) == dict(found.counts)
    then = "SELECT count(*) FROM jobq.submission WHERE id LIKE 'jobq.then.%'"
    assert database.run(then) == [(len(found.rounds),)]


async def test_a_canceled_batch_ends_in_steps_whoever_takes_them(database: Database, queue: PostgresBackend) -> None:
    """More than one step's tasks: who cancels does not come back, and a worker goes on, at a paused queue, too."""
    await queue.batches.begin("s7", _THEN)
    await queue.push(tasks(2300, batch="s7"))
    held = await queue.receive(3, LEASE, NOW)
    await queue.pause(Pause(at=1.0, by="tests"))
    async with PostgresBackend(database.server(), "q") as operator:
        first = await operator.batches.cancel("s7")
    assert first.counts["ready"] >= 2300 - 3 * 500
    async with PostgresBackend(database.server(), "q") as worker, asyncio.timeout(30):
        while (await worker.batches.find("s7")).counts["ready"]:
            assert await worker.receive(1, LEASE, timedelta(seconds=0.1)) == []
        await worker.resume()
        for delivery in held:
            assert (await delivery.renew(LEASE)).cancel
            await delivery.settle(Complete(DONE))
        (then,) = await worker.receive(1, LEASE, timedelta(seconds=5))
    assert then.id == "jobq.then.s7.1"
    found = await queue.batches.find("s7")
    assert (found.state, found.counts["canceled"], found.counts["succeeded"]) == (BatchState.FINISHED, 2297, 3)


async def test_a_batch_is_forgotten_with_its_ids(database: Database, queue: PostgresBackend) -> None:
    """And one that nobody sealed, when it holds nothing; not before what was run at its end is forgotten, too."""
    for name in ("s7", "empty", "new", "held"):
        await queue.batches.begin(name, _THEN if name == "s7" else Plan())
    await queue.push([*tasks(1, batch="s7"), *tasks(1, "held", batch="held")])
    await queue.batches.seal("s7")
    for _ in range(2):
        for delivery in await queue.receive(2, LEASE, NOW):
            if not delivery.id.startswith("held"):
                await delivery.settle(Complete(DONE))
    age = "interval '31 days'"
    database.run(f"UPDATE jobq.batch SET created_at = created_at - {age}, finished_at = finished_at - {age}")
    database.run("UPDATE jobq.batch SET created_at = now() WHERE name = 'new'")
    database.run(f"UPDATE jobq.submission SET ended_at = ended_at - {age} WHERE batch_id IS NOT NULL")
    for left in (["held", "new", "s7"], ["held", "new"]):
        async with PostgresBackend(database.server(), "q") as sweeper:
            await sweeper.receive(1, LEASE, NOW)
        assert database.run("SELECT name FROM jobq.batch ORDER BY name") == [(name,) for name in left]
        database.run(f"UPDATE jobq.submission SET ended_at = ended_at - {age}")


async def test_a_batch_is_kept_while_what_is_run_at_its_end_is_known(
    database: Database, queue: PostgresBackend
) -> None:
    """Else what is run at the end of the next one by its name were dropped; one whose name begins alike is not kept."""
    then = (Task.new(command="merge").encode().decode(),) * 2
    for name in ("s", "s7", "s7.1"):
        await queue.batches.begin(name, Plan(then=then) if name == "s7" else Plan())
        await queue.batches.seal(name)
    first, second = await queue.receive(2, LEASE, NOW)
    assert [first.id, second.id] == ["jobq.then.s7.1", "jobq.then.s7:1.1"]
    await first.settle(Complete(DONE))
    age = "interval '31 days'"
    database.run(f"UPDATE jobq.batch SET finished_at = finished_at - {age}")
    database.run(f"UPDATE jobq.submission SET ended_at = ended_at - {age}")
    for left in (["s7"], []):
        for _ in range(2):  # what is told is forgotten first, and batches then
            async with PostgresBackend(database.server(), "q") as sweeper:
                await sweeper.receive(1, LEASE, NOW)
        assert database.run("SELECT name FROM jobq.batch ORDER BY name") == [(name,) for name in left]
        if left:
            await second.settle(Complete(DONE))
            database.run(f"UPDATE jobq.submission SET ended_at = ended_at - {age}")


async def test_pages_and_looks_go_by_the_indexes(database: Database, queue: PostgresBackend) -> None:
    """Ids in what collations order differently than bytes do; no page sorts, and no look reads other tasks."""
    await queue.batches.begin("s7", Plan())
    ids = [f"{letter}{mark}{number}" for letter in "aBc" for mark in "-._" for number in range(100)]
    await queue.push([Task.new(command="true", id=id_, batch="s7") for id_ in ids])
    await queue.push(tasks(500))
    for delivery in await queue.receive(300, LEASE, NOW):
        await delivery.settle(MoveToDeadLetters("failures", ""))
    for state, count in ((None, 900), ("dead", 300)):
        seen, after = list[str](), ""
        while page := await queue.batches.members("s7", after, 70, state):
            after = page[-1].id
            seen += [member.id for member in page]
        assert len(seen) == len(set(seen)) == count
        assert set(seen) <= set(ids)
    connection = await database.server().connect("plan")
    try:
        await connection.execute("ANALYZE jobq.task; ANALYZE jobq.submission; ANALYZE jobq.dead; ANALYZE jobq.outbox")

        async def plan(statement: str, *values: Any) -> str:
            return "\n".join(row[0] for row in await connection.fetch(f"EXPLAIN {statement}", *values))

        await _check(plan)
    finally:
        await connection.close()


async def _check(plan: Callable[..., Any]) -> None:
    for statement, index in (
        (batch_rows.MEMBERS, "submission_of_batch"),
        (batch_rows.DEAD_MEMBERS, "dead_of_batch"),
        (UNFINISHED, "task_by_id"),
    ):
        text = await plan(statement, 1, "", 70)
        assert index in text, text
        assert "Sort" not in text, text
    for text in (await plan(HOLD_TASKS, 1), await plan(IS_LEFT, 1)):
        assert "task_of_batch" in text, text
        assert "Sort" not in text, text
    text = await plan(TAKE, 1, None)
    assert "outbox_pkey" in text, text
    assert "Sort" not in text, text
    text = await plan(batch_rows.FIND, 1, "s7")
    for index in (
        "task_of_batch",
        "submission_ended_of_batch",
        "dead_of_batch",
        "outbox_pkey",
        "batch_queue_id_name_key",
    ):
        assert index in text, text
    assert "Seq Scan" not in text, text
    text = await plan(batch_rows.LATELY, 1, "s7", 0.0)
    for index in ("submission_ended_of_batch", "dead_"):
        assert index in text, text
    assert "Seq Scan" not in text, text
    text = await plan(RUNNING_OF_BATCH, 1, "s7", 10)
    assert "task_leased" in text, text
    for statement, values in ((RUNNING_OF_BATCH, (1, "s7", 10)), (UNFINISHED, (1, "", 10)), (DEAD_LETTERS, _DEAD)):
        text = await plan(statement, *values)
        assert "batch_pkey" in text, text
        assert "Seq Scan" not in text, text
