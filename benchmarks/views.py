"""`python -m benchmarks.views [TASKS]`: what a look costs on a deep queue, and what it costs those who claim.

One queue in a file, and one in a PostgreSQL of its own: of 1,000,000 tasks 9 % are ready, 1 % scheduled, 0.1 % leased,
2 % dead, the others done, each of those with a record. Times are medians and 95th percentiles of one run, in ms.
"""

import asyncio
import json
import shutil
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import closing, suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final

from jobq.clock import SystemClock
from jobq.journal.records import TaskState
from jobq.journal.task_filter import TaskFilter
from jobq.journal.views import KeepsViews, Views
from jobq.settlement import Release
from jobq_postgres import PostgresBackend
from jobq_sqlite import SqliteBackend, StoreFile
from jobq_sqlite.host import this_host
from tests.postgres.server import Database, session

_ROUNDS: Final = 30
_CLAIMS: Final = 400
_DEPTH: Final = 20  # pages of 500 rows, after which a page of 50 is read
_NOW: Final = timedelta(0)
_LEASE: Final = timedelta(seconds=60)
_LOOKS: Final = {
    "ready": TaskFilter(states=frozenset({TaskState.READY})),
    "running": TaskFilter(states=frozenset({TaskState.RUNNING})),
    "dead": TaskFilter(states=frozenset({TaskState.DEAD})),
    "succeeded": TaskFilter(states=frozenset({TaskState.SUCCEEDED})),
}
_SEARCHES: Final = {
    "text, none of 50,000 waiting": TaskFilter(states=frozenset({TaskState.READY}), text="*no such word*"),
    "exit, none of 20,000 ended": TaskFilter(states=frozenset({TaskState.SUCCEEDED}), exit="77"),
    "host, one of 200 ended": TaskFilter(states=frozenset({TaskState.SUCCEEDED}), host="node-7"),
    "exit and error, dead": TaskFilter(states=frozenset({TaskState.DEAD}), exit="0", error="CUDA*"),
}


def main() -> None:
    """Measure both."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    folder = Path(tempfile.mkdtemp(prefix="jobq-views-"))
    try:
        asyncio.run(_sqlite(folder / "jobs.db", count))
    finally:
        shutil.rmtree(folder)
    with session() as database:
        asyncio.run(_postgres(database, count))


async def _sqlite(path: Path, count: int) -> None:
    file = StoreFile(path=path, clock=SystemClock(), host=this_host())
    async with SqliteBackend(file, "q") as queue:
        await queue.create()
        await asyncio.to_thread(_fill_file, path, count)
        await _measure(f"SQLite, {count:,} tasks", queue)


def _fill_file(path: Path, count: int) -> None:
    now, boottime = time.time(), SystemClock().boottime()
    with closing(sqlite3.connect(path)) as database:
        database.create_function("body", 1, lambda n: _body(n).encode(), deterministic=True)
        database.create_function("record", 1, _record, deterministic=True)
        database.execute(
            "WITH RECURSIVE n (n) AS (VALUES (0) UNION ALL SELECT n + 1 FROM n WHERE n < :count - 1),"
            " kind AS (SELECT n, CASE WHEN n % 1000 < 90 THEN 'ready' WHEN n % 1000 < 100 THEN 'scheduled'"
            " WHEN n % 1000 = 100 THEN 'leased' WHEN n % 1000 < 121 THEN 'dead' ELSE 'done' END AS state FROM n)"
            " INSERT INTO task (queue_id, id, state, priority, available_at, body, deliveries, finished_at, reason,"
            " description, expires_at, started_at, holder, receipt) SELECT 1, printf('t-%08d', n), state, 0,"
            " CASE state WHEN 'scheduled' THEN :now + 86400 ELSE :now END,"
            " CASE state WHEN 'done' THEN x'' ELSE body(n) END, state IN ('dead', 'done', 'leased'),"
            " CASE WHEN state IN ('dead', 'done') THEN :now - n END, CASE state WHEN 'dead' THEN 'failures' END,"
            " CASE state WHEN 'dead' THEN 'exit code 0' || char(10) || 'last output:' || char(10)"
            " || 'CUDA error ' || n END, CASE state WHEN 'leased' THEN :boottime + 3600 END,"
            " CASE state WHEN 'leased' THEN :now - n END, CASE state WHEN 'leased' THEN 'node-1:77' END,"
            " CASE state WHEN 'leased' THEN hex(randomblob(16)) END FROM kind",
            {"count": count, "now": now, "boottime": boottime},
        )
        database.execute(
            "INSERT INTO attempt (queue_id, seq, attempt, outcome, ended_at, record, output)"
            " SELECT 1, seq, 1, 'succeeded', finished_at, record(seq), '' FROM task WHERE state IN ('done', 'dead')"
        )
        database.commit()


async def _postgres(database: Database, count: int) -> None:
    async with PostgresBackend(database.server(), "q") as queue:
        await queue.create()
        await asyncio.to_thread(_fill_database, database, count)
        await _measure(f"PostgreSQL, {count:,} tasks", queue)


def _fill_database(database: Database, count: int) -> None:
    record = _record(1_000_000_007).replace("'", "''")
    body = _body(1_000_000_007)
    database.run(
        f"""
        CREATE TABLE kind AS SELECT n, 't-' || lpad(n::text, 8, '0') AS id, CASE WHEN n % 1000 < 90 THEN 'ready'
            WHEN n % 1000 < 100 THEN 'scheduled' WHEN n % 1000 = 100 THEN 'leased' WHEN n % 1000 < 121 THEN 'dead'
            ELSE 'done' END AS state FROM generate_series(0, {count - 1}) AS n;
        INSERT INTO jobq.submission (queue_id, id, ended_at)
            SELECT 1, id, CASE state WHEN 'done' THEN clock_timestamp() - n * interval '1 s' END FROM kind;
        INSERT INTO jobq.task (queue_id, id, body, position, due, expires_at, receipt, started_at, holder, deliveries)
            SELECT 1, id, convert_to(replace('{body}', '1000000007', n::text), 'UTF8'),
            CASE state WHEN 'ready' THEN nextval('jobq.position') END,
            CASE state WHEN 'scheduled' THEN now() + interval '1 day' + n * interval '1 us' END,
            CASE state WHEN 'leased' THEN now() + interval '1 hour' END,
            CASE state WHEN 'leased' THEN gen_random_uuid() END,
            CASE state WHEN 'leased' THEN now() - n * interval '1 s' END,
            CASE state WHEN 'leased' THEN 'node-1:77' END, (state = 'leased')::integer
            FROM kind WHERE state IN ('ready', 'scheduled', 'leased') ORDER BY n;
        INSERT INTO jobq.dead (queue_id, id, rank, deliveries, body, reason, description, died_at)
            SELECT 1, id, 0, 1, convert_to(replace('{body}', '1000000007', n::text), 'UTF8'), 'failures',
            convert_to(E'exit code 0\\nlast output:\\nCUDA error ' || n, 'UTF8'),
            clock_timestamp() - n * interval '1 s' FROM kind WHERE state = 'dead';
        INSERT INTO jobq.attempt (queue_id, id, attempt, outcome, ended_at, record, output)
            SELECT 1, id, 1, 'succeeded', clock_timestamp(),
            replace('{record}', '"host": "node-7"', '"host": "node-' || n % 200 || '"'), ''
            FROM kind WHERE state IN ('done', 'dead') ORDER BY n;
        DROP TABLE kind;
        """
    )
    database.run("ANALYZE")


def _body(number: int) -> str:
    fields = {"version": 2, "id": f"t-{number}", "created": 1.7e9, "command": f"python train.py --seed {number}"}
    return json.dumps({**fields, "env": {"WANDB_API_KEY": "x" * 40}}, separators=(",", ":"))


def _record(number: int) -> str:
    host = f"node-{number % 200}"
    return json.dumps(
        {"attempt": 1, "outcome": "succeeded", "then": "done", "ended": 1.7e9, "started": 1.7e9, "host": host}
        | {"pid": 77, "exit_code": 0, "program": "python"}
    )


async def _measure(name: str, queue: Any) -> None:
    assert isinstance(queue, KeepsViews)
    print(name)
    async with queue.views() as views:
        await _timed("queues (one line of this depth)", lambda: views.queues("", 50))
        for state, wanted in _LOOKS.items():
            await _timed(f"50 {state}, first page", partial(views.tasks, "q", wanted, "", 50))
            if (after := await _deep(views, wanted)) is not None:
                deep = f"50 {state}, {_DEPTH * 500:,} deep"
                await _timed(deep, partial(views.tasks, "q", wanted, after, 50))
            await _timed(f"count {state}", partial(views.count, "q", wanted))
        for search, wanted in _SEARCHES.items():
            await _timed(f"50 by {search}", partial(views.tasks, "q", wanted, "", 50))
            await _timed(f"count by {search}", partial(views.count, "q", wanted))
        await _timed("dead groups by exit, error", lambda: views.dead_groups("q", ["exit", "error"], 20))
        await _timed("one task", lambda: views.task("q", "t-00000500"))
        alone = await _claims(queue)
        looking = asyncio.create_task(_look_on(views))
        beside = await _claims(queue)
        looking.cancel()
        with suppress(asyncio.CancelledError):
            await looking
    for what, times in (("alone", alone), ("beside looks without a pause", beside)):
        print(f"  claim and release, {what}: {_shown(times)}")


async def _deep(views: Views, wanted: TaskFilter) -> str | None:
    after: str | None = ""
    for _ in range(_DEPTH):
        after = None if after is None else (await views.tasks("q", wanted, after, 500)).after
    return after


async def _timed(name: str, look: Callable[[], Awaitable[Any]]) -> None:
    await look()
    times = []
    for _ in range(_ROUNDS):
        began = time.perf_counter()
        found = await look()
        times.append(1000 * (time.perf_counter() - began))
    says = "" if getattr(found, "searched_to", None) is None else f", looked at {found.searched_to.looked_at:,}"
    many = getattr(found, "number", len(getattr(found, "rows", ())))
    print(f"  {name}: {_shown(times)} ({many}{says})")


async def _claims(queue: Any) -> list[float]:
    times = []
    for _ in range(_CLAIMS):
        began = time.perf_counter()
        (delivery,) = await queue.receive(1, _LEASE, _NOW)
        await delivery.settle(Release())
        times.append(1000 * (time.perf_counter() - began))
        await asyncio.sleep(0.002)
    return times


async def _look_on(views: Views) -> None:
    while True:
        await views.queues("", 50)
        for wanted in (*_LOOKS.values(), *_SEARCHES.values()):
            await views.tasks("q", wanted, "", 50)
            await views.count("q", wanted)


def _shown(times: list[float]) -> str:
    return f"{statistics.median(times):.2f} ms, p95 {sorted(times)[int(0.95 * len(times))]:.2f} ms"


if __name__ == "__main__":
    main()
