"""Push, claim and settle per second on SQLite, beside the bare database doing the same transactions.

Both sides use one file each with the same schema, pragmas, rows and group sizes: a push is one transaction of N
inserts, a claim one of N selects-and-updates, a settle one of N fenced updates. The bare side does nothing but SQL,
with everything prepared beforehand; ours goes through Task, the backend protocol, the event loop and its thread.
"""

import asyncio
import sqlite3
import statistics
import time
from datetime import timedelta
from pathlib import Path

from jobq.clock import SystemClock
from jobq.settings import Settings
from jobq.spec import resolve
from jobq.task import Task, TaskResult
from jobq_sqlite import store
from jobq_sqlite.host import this_host
from jobq_sqlite.opening import StoreFile
from jobq_sqlite.store import NewRow, Now

TASKS = 3000
GROUPS = (1, 32, 100)


def measure(folder: Path, rounds: int) -> list[dict[str, object]]:
    """Return a row for each verb and group size: both rates per second, medians, and their ratio."""
    rows: list[dict[str, object]] = []
    for group in GROUPS:
        count = TASKS if group > 1 else TASKS // 5
        bare = [_bare(folder / f"bare-{group}-{number}.db", count, group) for number in range(rounds)]
        ours = [asyncio.run(_ours(folder / f"ours-{group}-{number}.db", count, group)) for number in range(rounds)]
        for verb in ("push", "claim", "settle"):
            ours_rate = statistics.median(count / times[verb] for times in ours)
            bare_rate = statistics.median(count / times[verb] for times in bare)
            rows.append(_row(f"sqlite {verb}, {group} in a commit", ours_rate, bare_rate))
        total_ours = statistics.median(count / sum(times.values()) for times in ours)
        total_bare = statistics.median(count / sum(times.values()) for times in bare)
        rows.append(_row(f"sqlite push+claim+settle, {group} in a commit", total_ours, total_bare))
    return rows


def _row(what: str, ours: float, bare: float) -> dict[str, object]:
    return {
        "what": f"{what:42}",
        "jobq": ours,
        "unit": "/s   bare",
        "bare": bare,
        "rel": "/s   ratio",
        "ratio": ours / bare,
    }


async def _ours(path: Path, count: int, group: int) -> dict[str, float]:
    tasks = [Task.new(command=f"echo {number}") for number in range(count)]
    times = dict.fromkeys(("push", "claim", "settle"), 0.0)
    async with resolve(f"sqlite://{path}/bench", Settings()) as queue:
        await queue.create()
        began = time.perf_counter()
        for start in range(0, count, group):
            await queue.push(tasks[start : start + group])
        times["push"] = time.perf_counter() - began
        while True:
            began = time.perf_counter()
            deliveries = await queue.receive(group, None, timedelta(0))
            for delivery in deliveries:
                assert delivery.task.command
            claimed = time.perf_counter()
            if not deliveries:
                return times
            await asyncio.gather(*(delivery.complete(TaskResult()) for delivery in deliveries))
            times["claim"] += claimed - began
            times["settle"] += time.perf_counter() - claimed


def _bare(path: Path, count: int, group: int) -> dict[str, float]:
    clock = SystemClock()
    tasks = [Task.new(command=f"echo {number}") for number in range(count)]
    rows = [NewRow(task.id, 0, None, task.encode(), task.fingerprint()) for task in tasks]
    database = StoreFile(path=path, clock=clock, host=this_host()).opener(create=True)()
    now = Now(clock.boottime(), clock.wall())
    store.create(database, "bench", now)
    queue = store.queue_id(database, "bench")
    times = dict.fromkeys(("push", "claim", "settle"), 0.0)
    began = time.perf_counter()
    for start in range(0, count, group):
        _insert(database, queue, rows[start : start + group], now)
    times["push"] = time.perf_counter() - began
    while True:
        began = time.perf_counter()
        claimed_rows = _claim(database, queue, group, now)
        claimed = time.perf_counter()
        if not claimed_rows:
            break
        _settle(database, claimed_rows, now)
        times["claim"] += claimed - began
        times["settle"] += time.perf_counter() - claimed
    database.close()
    return times


def _insert(database: sqlite3.Connection, queue: int, rows: list[NewRow], now: Now) -> None:
    database.execute("BEGIN IMMEDIATE")
    database.executemany(
        "INSERT INTO task (queue_id, id, state, priority, available_at, body, fingerprint)"
        " VALUES (?, ?, 'ready', 0, ?, ?, ?)",
        [(queue, row.id, now.wall, row.body, row.fingerprint) for row in rows],
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
