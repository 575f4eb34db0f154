"""S3: an id that is pushed again goes on with higher tokens, whatever this file has forgotten."""

import asyncio
from pathlib import Path

from jobq.backend import FencingNumber
from jobq.settlement import Complete
from jobq.testing.clock import VirtualClock
from jobq_sqlite import SqliteBackend
from tests.sqlite.support import DONE, LEASE, NOW, ask, backend, tasks, virtual_file

MONTH = 30 * 86400


async def _token(queue: SqliteBackend, count: int = 1) -> FencingNumber:
    await queue.push(tasks(count))
    return (await queue.receive(count, LEASE, NOW))[0].fencing


async def test_the_first_tokens_are_plain_and_others_do_not_raise_them(tmp_path: Path) -> None:
    async with backend(virtual_file(tmp_path)) as queue:
        await queue.create()
        await queue.push(tasks(3))
        for delivery in await queue.receive(3, LEASE, NOW):
            assert str(delivery.fencing) == "0.0.1"
            await delivery.settle(Complete(DONE))


async def test_retention_and_another_process_that_clears(tmp_path: Path) -> None:
    """A handle learns from the file what others have forgotten; each generation of ids raises the epoch once."""
    clock = VirtualClock()
    file = virtual_file(tmp_path, clock)
    async with backend(file) as queue, backend(file) as other:
        await queue.create()
        assert await _token(queue, 3) == (0, 0, 1)
        await clock.advance(11)
        for delivery in await queue.receive(3, LEASE, NOW):
            await delivery.settle(Complete(DONE))
        await clock.advance(MONTH + 1)
        await queue.push(tasks(1, "sweeps"))
        await queue.clear()
        assert await _token(queue, 3) == (1, 0, 1), "three done tasks and one that was cleared were of one epoch"
        await other.clear()
        assert await _token(queue, 300) == (2, 0, 1)
    assert ask(file.path, "SELECT epoch FROM host") == [(2,)]


async def test_pushes_and_clears_at_once(tmp_path: Path) -> None:
    """Each token that is handed out for an id is higher than the one before, whoever pushes and whoever clears."""
    file = virtual_file(tmp_path)
    seen: list[FencingNumber] = []

    async def go_round(queue: SqliteBackend) -> None:
        for _ in range(20):
            await queue.push(tasks(1))
            seen.extend(each.fencing for each in await queue.receive(1, LEASE, NOW))
            await queue.clear()

    async with backend(file) as first, backend(file) as second:
        await first.create()
        await asyncio.gather(go_round(first), go_round(second))
    assert len(seen) > 20
    assert sorted(set(seen)) == sorted(seen), "no token twice"
