"""Push, claim and settle per second on SQLite, beside the bare database doing the same transactions.

Both sides use one file each with the same schema, pragmas, rows and group sizes: a push is one transaction of N
inserts, a claim one of N selects-and-updates, a settle one of N fenced updates. The bare side does nothing but SQL,
with everything prepared beforehand; ours goes through Task, the backend protocol, the event loop and its thread.
"""

import asyncio
import sqlite3
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

from benchmarks.measure import Figure, Meter, Row, compared
from benchmarks.sections import Options
from jobq.clock import SystemClock
from jobq.settings import Settings
from jobq.settlement import Complete
from jobq.spec import resolve
from jobq.task import Task, TaskResult
from jobq_sqlite import task_sql
from jobq_sqlite.host import this_host
from jobq_sqlite.open_file import StoreFile
from jobq_sqlite.push_sql import NewRow
from jobq_sqlite.task_sql import Now

TASKS = 3000
GROUPS = (1, 32, 100)
VERBS = ("push", "claim", "settle")
TOTAL = "push+claim+settle"
Figures = dict[str, Figure]


def measure(folder: Path, options: Options) -> Iterator[Row]:
    """Yield a row for each group size and verb."""
    for group in GROUPS:
        count = options.scaled(TASKS if group > 1 else TASKS // 5)
        ours: list[Figures] = []
        bare: list[Figures] = []
        for number in range(options.rounds):
            bare.append(_bare(folder / f"bare-{group}-{number}.db", count, group))
            ours.append(asyncio.run(_ours(folder / f"ours-{group}-{number}.db", count, group)))
        for verb in (*VERBS, TOTAL):
            sides = {"jobq": [each[verb] for each in ours], "bare": [each[verb] for each in bare]}
            yield compared(f"sqlite {verb}, {group} in a commit", sides)


def _figures(meters: dict[str, Meter], count: int) -> Figures:
    total = Meter()
    for meter in meters.values():
        total.seconds += meter.seconds
        total.cpu_seconds += meter.cpu_seconds
    return {verb: meter.figure(count) for verb, meter in (*meters.items(), (TOTAL, total))}


async def _ours(path: Path, count: int, group: int) -> Figures:
    tasks = [Task.new(command=f"echo {number}") for number in range(count)]
    meters = {verb: Meter() for verb in VERBS}
    async with resolve(f"sqlite://{path}/bench", Settings()) as queue:
        await queue.create()
        with meters["push"]:
            for start in range(0, count, group):
                await queue.push(tasks[start : start + group])
        for _ in range(0, count, group):
            with meters["claim"]:
                deliveries = await queue.receive(group, None, timedelta(0))
                for delivery in deliveries:
                    assert delivery.task.command
            with meters["settle"]:
                await asyncio.gather(*(delivery.settle(Complete(TaskResult())) for delivery in deliveries))
        assert not await queue.receive(1, None, timedelta(0))
    return _figures(meters, count)


def _bare(path: Path, count: int, group: int) -> Figures:
    clock = SystemClock()
    tasks = [Task.new(command=f"echo {number}") for number in range(count)]
    rows = [NewRow(task, task.encode(), task.fingerprint()) for task in tasks]
    database = StoreFile(path=path, clock=clock, host=this_host()).open(create=True)
    now = Now(clock.boottime(), clock.wall())
    task_sql.create(database, "bench", now)
    queue = task_sql.queue_id(database, "bench")
    meters = {verb: Meter() for verb in VERBS}
    with meters["push"]:
        for start in range(0, count, group):
            _insert(database, queue, rows[start : start + group], now)
    for _ in range(0, count, group):
        with meters["claim"]:
            claimed_rows = _claim(database, queue, group, now)
        with meters["settle"]:
            _settle(database, claimed_rows, now)
    assert not _claim(database, queue, 1, now)
    database.close()
    return _figures(meters, count)


def _insert(database: sqlite3.Connection, queue: int, rows: list[NewRow], now: Now) -> None:
    database.execute("BEGIN IMMEDIATE")
    database.executemany(
        "INSERT INTO task (queue_id, id, state, priority, available_at, body, fingerprint)"
        " VALUES (?, ?, 'ready', 0, ?, ?, ?)",
        [(queue, row.task.id, now.wall, row.body, row.fingerprint) for row in rows],
    )
    database.execute("COMMIT")


def _claim(database: sqlite3.Connection, queue: int, group: int, now: Now) -> list[tuple[int, str]]:
    database.execute("BEGIN IMMEDIATE")
    found = database.execute(
        "SELECT seq, body FROM task WHERE queue_id = ? AND state = 'ready'"
        " ORDER BY priority DESC, available_at, seq LIMIT ?",
        (queue, group),
    ).fetchall()
    database.executemany(
        "UPDATE task SET state = 'leased', deliveries = 1, receipt = ?, expires_at = ? WHERE seq = ?",
        [("0" * 32, now.boottime + 600, seq) for seq, _ in found],
    )
    database.execute("COMMIT")
    return found


def _settle(database: sqlite3.Connection, rows: list[tuple[int, str]], now: Now) -> None:
    database.execute("BEGIN IMMEDIATE")
    database.executemany(
        "UPDATE task SET state = 'done', body = x'', checkpoint = NULL, finished_at = ?, receipt = NULL,"
        " expires_at = NULL, settlements = substr(receipt || ' complete;' || settlements, 1, 512)"
        " WHERE seq = ? AND state = 'leased' AND receipt = ? AND expires_at > ?",
        [(now.wall, seq, "0" * 32, now.boottime) for seq, _ in rows],
    )
    database.execute("COMMIT")
