"""What tasks ask for, by number: of what was never committed, nobody keeps the number."""

import asyncio
import resource
import sqlite3
from datetime import timedelta
from pathlib import Path

from jobq.clock import SystemClock
from jobq.errors import BackendUnavailable, PushUnknown
from jobq.resources.room import Room, Space
from jobq.task import Task
from jobq_sqlite import SqliteBackend, StoreFile
from jobq_sqlite.host import this_host

_LEASE = timedelta(seconds=60)
_NOW = timedelta(0)


def _room(**free: object) -> Room:
    return Room(free=Space(**free), total=Space(**free))


async def test_a_number_whose_transaction_failed_is_not_known_any_more(tmp_path: Path) -> None:
    """A push and a claim of one process share a transaction; on a full disk the number goes to another."""
    path = tmp_path / "queue.db"
    card, large = _room(gpus=1000), _room(cpus=64_000)
    async with SqliteBackend(StoreFile(path=path, clock=SystemClock(), host=this_host()), "q") as backend:
        await backend.create()
        _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (path.with_name("queue.db-wal").stat().st_size, most))
        try:
            pushed, *claimed = await asyncio.gather(
                backend.push([Task.new(command="true", gpus=1)]),
                backend.receive_fitting(card, 1, _LEASE, _NOW),
                return_exceptions=True,
            )
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
        assert isinstance(pushed, PushUnknown)
        assert isinstance(claimed[0], BackendUnavailable)
        (wanted,) = await backend.push([Task.new(command="true", cpus=64)])
        assert await backend.receive_fitting(card, 1, _LEASE, _NOW) == []
        assert [each.id for each in await backend.receive_fitting(large, 1, _LEASE, _NOW)] == [wanted]


async def test_nor_one_that_a_cancelled_receive_has_read(tmp_path: Path) -> None:
    """Who waits for room cuts its receives short all the time: here while the transaction waits for the lock."""
    path = tmp_path / "queue.db"
    card, large = _room(gpus=1000), _room(cpus=64_000)
    async with SqliteBackend(StoreFile(path=path, clock=SystemClock(), host=this_host()), "q") as backend:
        await backend.create()
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        pushing = asyncio.create_task(backend.push([Task.new(command="true", gpus=1)]))
        claiming = asyncio.create_task(backend.receive_fitting(card, 1, _LEASE, _NOW))
        await asyncio.sleep(0.2)
        claiming.cancel()
        await asyncio.wait([claiming])
        _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (path.with_name("queue.db-wal").stat().st_size, most))
        try:
            other.execute("ROLLBACK")
            other.close()
            (pushed,) = await asyncio.gather(pushing, return_exceptions=True)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
        assert isinstance(pushed, PushUnknown)
        (wanted,) = await backend.push([Task.new(command="true", cpus=64)])
        assert await backend.receive_fitting(card, 1, _LEASE, _NOW) == []
        assert [each.id for each in await backend.receive_fitting(large, 1, _LEASE, _NOW)] == [wanted]
