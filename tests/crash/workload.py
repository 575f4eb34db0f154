"""What is interrupted: every verb of the embedded store, one after the other; and what the file holds after each."""

import asyncio
import contextlib
import os
import sqlite3
import time
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from jobq.clock import SystemClock
from jobq.errors import QueueNotFound
from jobq.lease.store import Grant, Request
from jobq.settlement import Complete, MoveToDeadLetters, Release, Requeue
from jobq.task import Task
from jobq.testing.clock import VirtualClock
from jobq_sqlite import SqliteBackend, StoreFile
from jobq_sqlite.host import BootedHost, this_host
from tests.sqlite.support import DONE, NOW, ask, tasks

LEASE: Final = timedelta(seconds=1000)
LONGER: Final = timedelta(seconds=9000)
_FAR: Final = timedelta(days=10)
Opens = type[sqlite3.Connection]
Content = tuple[object, ...] | None  # None = there is no queue


class Store(sqlite3.Connection):
    """A log that is copied into the file, and begun anew, several times within the workload."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.execute("PRAGMA wal_autocheckpoint = 30")


def backend(path: Path, opens: Opens = Store) -> SqliteBackend:
    """Return the queue in a file of this machine."""
    return SqliteBackend(StoreFile(path=path, clock=SystemClock(), host=this_host(), connection_class=opens), "q")


async def steps(queue: SqliteBackend) -> AsyncIterator[str]:
    """Use each verb; yield its name when it was acknowledged."""
    await queue.create()
    yield "create"
    await queue.push(tasks(3))
    yield "push"
    first, second, third = await queue.receive(3, LEASE, NOW)
    yield "receive"
    await first.renew(LONGER)
    yield "renew"
    await first.checkpoint("7", 1)
    yield "checkpoint"
    await first.settle(Complete(DONE))
    yield "complete"
    await second.settle(Requeue(second.task.requeued(failures=1).counters, NOW))
    yield "requeue"
    await third.settle(MoveToDeadLetters("failed", "by the test"))
    yield "dead letter"
    await queue.push(tasks(2, "large", env={"PADDING": "x" * 20_000}))
    yield "push of large tasks"
    (again,) = await queue.receive(1, LEASE, NOW)
    yield "second receive"
    await again.settle(Release())
    yield "release"
    await queue.redrive([third.id])
    yield "redrive"
    await queue.push([Task.new(command="true", id="later", not_before=time.time() + _FAR.total_seconds())])
    yield "push of a scheduled task"
    grant = await queue.leases.acquire(Request(name="one", key="k", holder="a", ttl=LEASE))
    assert isinstance(grant, Grant)
    yield "acquire"
    await queue.leases.save(grant, "half", 1)
    yield "save"
    await queue.leases.renew(grant, LONGER)
    yield "renewal of a named lease"
    await queue.leases.confirm("one", grant.token, "seat 5")
    yield "confirm"
    await queue.leases.release("one", grant.token)
    yield "release of a named lease"
    await queue.clear()
    yield "clear"


def work(path: Path, opens: Opens = Store) -> Callable[[int], None]:
    """Return what a child runs: each step is told once it is acknowledged."""

    def run(telling: int) -> None:
        async def main() -> None:
            async with backend(path, opens) as queue:
                async for step in steps(queue):
                    os.write(telling, f"{step}\n".encode())

        asyncio.run(main())
        os.write(telling, b"closed\n")

    return run


def contents(folder: Path) -> list[Content]:
    """Return what the file holds before the first step, after each, and after it was closed."""
    path = folder / "jobs.db"

    async def main() -> list[Content]:
        found: list[Content] = [None]
        async with backend(path) as queue:
            found += [content(path) async for _ in steps(queue)]
        return [*found, content(path)]

    return asyncio.run(main())


def content(path: Path) -> Content:
    """Return what a file holds, without what differs from run to run: times, receipts, identities."""
    if not path.exists() or not ask(path, "SELECT 1 FROM sqlite_master WHERE name = 'queue'"):
        return None
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        if not (queues := database.execute("SELECT name FROM queue").fetchall()):
            return None
        rows = database.execute(
            "SELECT id, state, deliveries, checkpoint, receipt IS NULL, reason,"
            " expires_at - (SELECT boottime FROM host) > 5000, body FROM task ORDER BY id"
        ).fetchall()
        attempts = database.execute("SELECT seq, attempt, outcome FROM attempt ORDER BY seq, attempt").fetchall()
        leases = database.execute(
            "SELECT name, token, state, cursor, version, confirmation, expires_at - (SELECT boottime FROM host) > 5000"
            " FROM lease ORDER BY name"
        ).fetchall()
    return tuple(queues), tuple((*row[:-1], _counts(row[-1])) for row in rows), tuple(attempts), tuple(leases)


def _counts(body: bytes) -> tuple[int, ...] | None:
    if not body:
        return None
    task = Task.decode(bytes(body))
    counters = task.counters
    return task.generation, counters.failures, counters.ends, len(str(task.env))


def fault_of(path: Path, told: int, expected: list[Content], opens: Opens = Store, *, is_rebooted: bool = False) -> str:
    """Return what is wrong with a file after so many steps were acknowledged; "" = nothing.

    It must hold exactly what was acknowledged, or besides that the whole of the next step (S1, S2, S5, S6, S9). The
    real backend opens it first, as whoever comes after the crash does, and goes on with it.

    Args:
        path: of the file; of its folder only this is used.
        told: how many steps were acknowledged.
        expected: what `contents` has returned.
        opens: as for `backend`.
        is_rebooted: whether the machine has another boot, days later: then every lease is over.
    """
    try:
        return asyncio.run(_looked_at(path, told, expected, opens, is_rebooted=is_rebooted))
    except Exception as error:  # noqa: BLE001 - whatever keeps it from being used is the finding
        return f"{type(error).__name__}: {error}"


async def _looked_at(path: Path, told: int, expected: list[Content], opens: Opens, *, is_rebooted: bool) -> str:
    queue = backend(path, opens)
    if is_rebooted:
        clock = VirtualClock(boottime=20.0, wall=time.time() + 2 * _FAR.total_seconds())
        host = BootedHost(this_host().machine_id or "any", "another boot")
        file = StoreFile(path=path, clock=clock, host=host, connection_class=opens, adopt=not this_host().machine_id)
        queue = SqliteBackend(file, "q")
    allowed = expected[told : told + 2]
    async with queue:
        with contextlib.suppress(QueueNotFound):
            await queue.stats()
        found = content(path)
        if found not in allowed:
            return f"it holds {found}, not {' nor '.join(map(str, allowed))}"
        await queue.create()
        if ask(path, "PRAGMA integrity_check") != [("ok",)]:
            return "its integrity check fails"
        await queue.push([Task.new(command="true", id="after")])
        waiting = {id_ for (id_,) in ask(path, "SELECT id FROM task WHERE state NOT IN ('done', 'dead', 'leased')")}
        if is_rebooted:
            waiting |= {id_ for (id_,) in ask(path, "SELECT id FROM task WHERE state = 'leased'")}
        else:
            waiting.discard("later")
        taken = {delivery.id for delivery in await queue.receive(100, LEASE, NOW)}
        return "" if taken == waiting else f"of {sorted(waiting)} it handed out {sorted(taken)}"
