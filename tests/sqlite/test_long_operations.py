"""What concerns many rows takes many short transactions: whoever shares the file keeps claiming and renewing (S11)."""

import asyncio
import gc
import os
import sqlite3
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar, Self

import pytest

from jobq_sqlite import SqliteBackend
from jobq_sqlite.bulk import ROWS_AT_ONCE
from tests.sqlite.support import LEASE, NOW, ask, backend, real_file, tasks

_STEP = 1000  # instructions of SQLite's machine
_ROWS = 4000
# One transaction may cost what ROWS_AT_ONCE rows cost: 16,000 to 141,000 instructions. The statements of before took
# 250,000 to 600,000 for these rows, and so on with more.
_MOST_STEPS = 150
_MOST_SECONDS = 0.1


class Metered(sqlite3.Connection):
    """Counts what is done between BEGIN and COMMIT, in instructions of SQLite's machine: the same on any computer.

    And the seconds of this thread's own work, without what a busy computer or disk lets it wait.
    """

    longest: ClassVar[int] = 0
    longest_seconds: ClassVar[float] = 0.0
    _steps = 0
    _locked = 0.0

    def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
        if sql == "BEGIN IMMEDIATE":
            self._steps = 0
            self.set_progress_handler(self._step, _STEP)
        answer = super().execute(sql, *values)
        if sql == "BEGIN IMMEDIATE":
            self._locked = time.thread_time()
        if sql == "COMMIT":
            Metered.longest = max(Metered.longest, self._steps)
            Metered.longest_seconds = max(Metered.longest_seconds, time.thread_time() - self._locked)
            self.set_progress_handler(None, 0)
        return answer

    def _step(self) -> int:
        self._steps += 1
        return 0


class Metering:
    """Looks at the longest transaction of a block."""

    def __enter__(self) -> Self:
        Metered.longest, Metered.longest_seconds = 0, 0.0
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.longest, self.longest_seconds = Metered.longest, Metered.longest_seconds


def _metered(folder: Path) -> SqliteBackend:
    return backend(real_file(folder / "jobs.db", connection_class=Metered))


def _fill(path: Path, state: str, count: int, *, attempts: bool = True) -> None:
    """Put rows in, past the backend: by it that takes minutes for a million."""
    body = tasks(1)[0].encode()
    ask(
        path,
        "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?)"
        " INSERT INTO task (queue_id, id, state, available_at, body, finished_at, reason, description, fingerprint)"
        " SELECT 1, printf('%s-%09d', ?, i), ?, 1, ?, 1, 'failed', 'it failed', x'00' FROM n",
        count, state, state, body,
    )  # fmt: skip
    if attempts:
        ask(
            path,
            "INSERT INTO attempt (queue_id, seq, attempt, outcome, ended_at, record, output)"
            " SELECT 1, seq, 1, 'failed', 1, '{}', printf('%.100c', 'x') FROM task WHERE state = ?",
            state,
        )


def _write_out(path: Path) -> None:
    """Have all that was prepared on the disk, or the first commit of what is measured waits for it for seconds."""
    ask(path, "PRAGMA wal_checkpoint(TRUNCATE)")
    os.sync()


Operation = Callable[[SqliteBackend, Path], Awaitable[None]]


async def _clear(queue: SqliteBackend, path: Path) -> None:
    (count,) = ask(path, "SELECT count(*) FROM task WHERE state = 'ready'")[0]
    assert await queue.clear() == count
    assert ask(path, "SELECT (SELECT count(*) FROM task WHERE state = 'ready'), (SELECT count(*) FROM attempt)") == [
        (0, 0)
    ]


async def _purge(queue: SqliteBackend, path: Path) -> None:
    ids = [row[0] for row in ask(path, "SELECT id FROM task WHERE state = 'dead' ORDER BY seq")]
    assert await queue.purge_dead(["unknown", *ids]) == ids
    assert ask(path, "SELECT (SELECT count(*) FROM task), (SELECT count(*) FROM attempt)") == [(0, 0)]


async def _redrive(queue: SqliteBackend, path: Path) -> None:
    ids = [row[0] for row in ask(path, "SELECT id FROM task WHERE state = 'dead' ORDER BY seq")]
    assert await queue.redrive([*ids, *ids[:2]]) == ids
    assert ask(path, "SELECT DISTINCT state FROM task") == [("ready",)]


async def _cancel(queue: SqliteBackend, path: Path) -> None:
    journal = queue.journal
    assert journal is not None
    ids = [row[0] for row in ask(path, "SELECT id FROM task ORDER BY seq")]
    assert set(await journal.cancel(ids)) == {"canceled"}
    assert ask(path, "SELECT DISTINCT outcome FROM task") == [("canceled",)]


async def _forget(queue: SqliteBackend, path: Path) -> None:
    """By pushes, as it is done: each forgets some of what is older than the journal is kept."""
    pushes = 0
    while ask(path, "SELECT EXISTS (SELECT 1 FROM attempt) OR EXISTS (SELECT 1 FROM task WHERE state = 'done')")[0][0]:
        pushes += 1
        await asyncio.gather(*(queue.push(tasks(10, f"{pushes}-{number}")) for number in range(5)))


async def _expire(queue: SqliteBackend, path: Path) -> None:
    """Leases that ran out, of tasks some of which were to be canceled."""
    found = 0  # they are not kept: a collection of garbage would go through a million, within a transaction
    while more := await queue.receive(100, timedelta(days=1), NOW):  # none of them expires a second time
        found += len(more)
    ended = ask(path, "SELECT count(*) FROM task WHERE outcome = 'canceled'")[0][0]
    assert ended
    assert found + ended == ask(path, "SELECT count(*) FROM task")[0][0]
    assert ask(path, "SELECT count(*) FROM attempt") == ask(path, "SELECT count(*) FROM task"), "all are noted as lost"


async def _trim(_queue: SqliteBackend, path: Path) -> None:
    small = SqliteBackend(real_file(path, connection_class=Metered), "q", most_bytes=10_000)
    async with small:
        while ask(path, "SELECT sum(length(output)) > 10000 FROM attempt")[0][0]:
            await small.receive(1, LEASE, NOW)
            small._receiving._forget_at = 0.0


# What is to be changed first, which is not what is measured.
_PREPARED = {
    "expire": "UPDATE task SET expires_at = 1, receipt = 'r', holder = 'h:1', cancel_requested = seq % 2",
    "trim": "UPDATE attempt SET ended_at = unixepoch() - 0.001 * seq",
}
_OPERATIONS: dict[str, tuple[str, Operation]] = {
    "clear": ("ready", _clear),
    "purge": ("dead", _purge),
    "redrive": ("dead", _redrive),
    "cancel": ("ready", _cancel),
    "forget": ("done", _forget),
    "expire": ("leased", _expire),
    "trim": ("done", _trim),
}


def _prepare(path: Path, name: str, count: int) -> None:
    state, _ = _OPERATIONS[name]
    _fill(path, state, count, attempts=name != "expire")
    if name in _PREPARED:
        ask(path, _PREPARED[name])
    _write_out(path)


@pytest.mark.parametrize("name", _OPERATIONS)
async def test_no_transaction_takes_more_than_a_few_hundred_rows(tmp_path: Path, name: str) -> None:
    """The whole file has one lock for writing: 400,000 rows at one go held it for 12.6 s, and another queue's lease ran
    out meanwhile.
    """
    _, operation = _OPERATIONS[name]
    async with _metered(tmp_path) as queue:
        await queue.create()
        _prepare(tmp_path / "jobs.db", name, _ROWS)
        with Metering() as metering:
            await operation(queue, tmp_path / "jobs.db")
    assert 0 < metering.longest < _MOST_STEPS, f"{metering.longest} thousand instructions for {ROWS_AT_ONCE} rows"


class _Contender:
    """Asks for the lock each millisecond, on a thread of its own, and measures for how long it was not to be had."""

    def __init__(self, path: Path) -> None:
        self.longest = 0.0
        self._path = path
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        with closing(sqlite3.connect(self._path, isolation_level=None, timeout=0)) as database:
            free = time.monotonic()
            while not self._over.wait(0.001):
                try:
                    database.execute("BEGIN IMMEDIATE")
                except sqlite3.OperationalError:
                    self.longest = max(self.longest, time.monotonic() - free)
                else:
                    database.execute("ROLLBACK")
                    free = time.monotonic()


@pytest.mark.night
@pytest.mark.parametrize("name", _OPERATIONS)
async def test_no_lock_is_held_for_long_at_a_million_rows(tmp_path: Path, name: str) -> None:
    """So that a neighbour on the same file claims, renews and settles all the while."""
    _, operation = _OPERATIONS[name]
    path = tmp_path / "jobs.db"
    async with _metered(tmp_path) as queue:
        await queue.create()
        _prepare(path, name, 1_000_000)
        began = time.monotonic()
        gc.collect()
        gc.freeze()  # or a collection of all that pytest has imported takes 70 ms, in the midst of a transaction
        try:
            with Metering() as metering, _Contender(path) as contender:
                await operation(queue, path)
        finally:
            gc.unfreeze()
    held, waited = metering.longest_seconds, contender.longest
    print(f"{name}: {time.monotonic() - began:.0f} s, lock held {held * 1000:.0f} ms, not had {waited * 1000:.0f} ms")
    assert held < _MOST_SECONDS
    assert waited < 1.0, "however busy the computer and its disk are, a neighbour gets it between any two transactions"
