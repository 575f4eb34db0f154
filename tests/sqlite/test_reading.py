"""What only looks has a connection of its own: however long it takes, no claim, renewal or settle waits for it."""

import asyncio
import sqlite3
import threading
from pathlib import Path
from typing import Any, ClassVar

import pytest

from jobq.settlement import Complete
from jobq_sqlite.journal import COUNTS, OLDEST
from tests.sqlite.support import DONE, LEASE, NOW, ask, backend, tasks, virtual_file
from tests.sqlite.test_leases import request


class Slow(sqlite3.Connection):
    """Begins to count, and goes on when it may."""

    begun: ClassVar[threading.Event]
    may_go_on: ClassVar[threading.Event]

    def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
        if sql == COUNTS:
            Slow.begun.set()
            assert Slow.may_go_on.wait(30)
        return super().execute(sql, *values)


async def test_a_long_look_holds_up_nothing(tmp_path: Path) -> None:
    Slow.begun, Slow.may_go_on = threading.Event(), threading.Event()
    async with backend(virtual_file(tmp_path, connection_class=Slow)) as queue:
        await queue.create()
        await queue.push(tasks(2))
        journal = queue.journal
        assert journal is not None
        looking = asyncio.create_task(journal.stats(60))
        try:
            await asyncio.to_thread(Slow.begun.wait)
            async with asyncio.timeout(10):
                (delivery,) = await queue.receive(1, LEASE, NOW)
                await delivery.renew(LEASE)
                await delivery.settle(Complete(DONE))
                await queue.leases.acquire(request())
            assert not looking.done()
        finally:
            Slow.may_go_on.set()
        stats = await looking
        assert (stats.states["ready"], stats.states["succeeded"]) == (1, 1), "it sees what was done before it looked"


async def test_the_connection_that_reads_refuses_to_write(tmp_path: Path) -> None:
    async with backend(virtual_file(tmp_path)) as queue:
        await queue.create()

        def write(database: sqlite3.Connection, _queue: int, _now: object) -> None:
            database.execute("DELETE FROM queue")

        with pytest.raises(Exception, match="attempt to write a readonly database"):
            await queue._read(write)


async def test_each_look_sees_what_was_acknowledged_before(tmp_path: Path) -> None:
    async with backend(virtual_file(tmp_path)) as queue:
        await queue.create()
        for number in range(1, 50):
            await queue.push(tasks(1, f"n{number}"))
            assert (await queue.stats()).visible == number


def test_the_oldest_task_is_found_without_walking_over_all(tmp_path: Path) -> None:
    """It was the minimum over an index that is in the order of priorities: each of 1,000,000 tasks was looked at."""

    async def fill() -> None:
        async with backend(virtual_file(tmp_path)) as queue:
            await queue.create()
            for priority in (0, 5, -3):
                await queue.push(tasks(2000, f"p{priority + 10}", priority=priority))

    asyncio.run(fill())
    path = tmp_path / "jobs.db"
    steps = 0

    def step() -> None:
        nonlocal steps
        steps += 1

    with sqlite3.connect(path) as database:
        database.execute("UPDATE task SET available_at = 5 WHERE id = 'p15-00700'")
        database.commit()
        database.set_progress_handler(step, 1)
        assert database.execute(OLDEST, {"queue": 1}).fetchone() == (5.0,)
        database.set_progress_handler(None, 1)
        assert database.execute(OLDEST, {"queue": 7}).fetchone() == (None,)
    database.close()
    assert steps < 1000, "of the virtual machine; it has 6000 tasks"
    assert ask(path, "SELECT count(*) FROM task") == [(6000,)]
