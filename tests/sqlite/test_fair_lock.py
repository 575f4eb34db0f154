"""SQLite's write lock has no queue: who has written for long leaves a gap, and who waits looks often enough for it."""

import asyncio
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any, ClassVar

from jobq_sqlite.transaction import GAP_SECONDS
from tests.sqlite.support import backend, real_file, tasks

_TURN_SECONDS = 0.1
_SLACK_SECONDS = 0.2  # one batch may have begun just before the end of a turn


class _Watched(sqlite3.Connection):
    """Counts looks for the lock, and measures for how long others could not have had it."""

    looks: ClassVar[int] = 0
    longest: ClassVar[float] = 0.0
    _since = 0.0  # the first of the transactions that followed one another without a gap
    _ended = 0.0

    def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
        if sql == "BEGIN IMMEDIATE":
            _Watched.looks += 1
            if time.monotonic() - self._ended >= GAP_SECONDS:
                self._since = time.monotonic()
        answer = super().execute(sql, *values)
        if sql == "COMMIT":
            self._ended = time.monotonic()
            _Watched.longest = max(_Watched.longest, self._ended - self._since)
        return answer


async def test_who_writes_without_a_pause_leaves_gaps(tmp_path: Path) -> None:
    async with backend(real_file(tmp_path / "jobs.db", connection_class=_Watched)) as queue:
        await queue.create()
        await queue.push(tasks(1, "first"))
        await asyncio.sleep(2 * GAP_SECONDS)
        _Watched.longest, end = 0.0, time.monotonic() + 2.0

        async def push(part: int) -> None:  # the next batch is handed in while one is written
            number = 0
            while time.monotonic() < end:
                await queue.push(tasks(1, f"{part}-{number}"))
                number += 1

        await asyncio.gather(*(push(part) for part in range(8)))
    assert _Watched.longest < _TURN_SECONDS + _SLACK_SECONDS


async def test_who_waits_for_the_lock_looks_often(tmp_path: Path) -> None:
    async with backend(real_file(tmp_path / "jobs.db", connection_class=_Watched)) as queue:
        await queue.create()
        with closing(sqlite3.connect(tmp_path / "jobs.db", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            _Watched.looks = 0
            pushing = asyncio.ensure_future(queue.push(tasks(1)))
            async with asyncio.timeout(4):
                while _Watched.looks < 100:
                    await asyncio.sleep(0.01)
            other.execute("ROLLBACK")
        assert await pushing
