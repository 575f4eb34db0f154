"""RELIABILITY 1.3 rule 10: leases count from a boot of one machine, and the wall clock decides none."""

from datetime import timedelta
from pathlib import Path

import pytest

from jobq.errors import LockLost, StoreUnusable
from jobq.testing.clock import VirtualClock
from jobq_sqlite.host import Host, this_host
from tests.sqlite.support import DONE, HOST, LEASE, NOW, ask, backend, tasks, virtual_file

REBOOTED = Host(HOST.machine_id, "boot-2")
OTHER = Host("machine-b", "boot-9")


async def test_same_boot_compares_boottime(tmp_path: Path) -> None:
    """A second process of the same boot sees the lease as it is, to the second."""
    clock = VirtualClock()
    async with backend(virtual_file(tmp_path, clock)) as queue, backend(virtual_file(tmp_path, clock)) as other:
        await queue.create()
        await queue.push(tasks(1))
        await queue.receive(1, LEASE, NOW)
        await clock.advance(9.9)
        assert await other.receive(1, LEASE, NOW) == []
        await clock.advance(0.1)
        (again,) = await other.receive(1, LEASE, NOW)
        assert again.deliveries == 2


async def test_same_boot_in_another_container_is_the_same_machine(tmp_path: Path) -> None:
    async with backend(virtual_file(tmp_path)) as queue:
        await queue.create()
    async with backend(virtual_file(tmp_path, host=Host("another-id", HOST.boot_id))) as queue:
        await queue.stats()
    assert ask(tmp_path / "jobs.db", "SELECT machine_id FROM host") == [(HOST.machine_id,)]


async def test_reboot_expires_every_lease(tmp_path: Path) -> None:
    """Deliveries and checkpoints stay (S3, S9), old receipts are refused (S4), the dead and the done stay so."""
    async with backend(virtual_file(tmp_path, VirtualClock(boottime=5000))) as queue:
        await queue.create()
        await queue.push(tasks(4))
        held, done, dead, delayed = await queue.receive(4, timedelta(days=1), NOW)
        await held.checkpoint("half")
        await done.complete(DONE)
        await dead.dead_letter("failed", "x")
        await delayed.requeue(delayed.task.requeued(), timedelta(hours=1))
        # The old process's connection outlives its boot here only because this is a test: its receipt must not work.
        async with backend(virtual_file(tmp_path, VirtualClock(boottime=20), host=REBOOTED)) as after:
            stats = await after.stats()
            assert (stats.visible, stats.leased, stats.scheduled, stats.dead) == (1, 0, 1, 1)
            for refused in (held.complete(DONE), held.renew(LEASE), held.checkpoint("late"), held.release()):
                with pytest.raises(LockLost):
                    await refused
            (again,) = await after.receive(5, LEASE, NOW)
            assert (again.id, again.deliveries, again.checkpoint_value) == (held.id, 2, "half")
    assert ask(tmp_path / "jobs.db", "SELECT machine_id, boot_id, boottime FROM host") == [
        (HOST.machine_id, REBOOTED.boot_id, 20.0)
    ]


async def test_other_machine_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    async with backend(virtual_file(tmp_path)) as queue:
        await queue.create()
        await queue.push(tasks(1))
        (held,) = await queue.receive(1, LEASE, NOW)
        for _ in range(2):
            async with backend(virtual_file(tmp_path, host=OTHER)) as stranger:
                for verb in (stranger.stats(), stranger.create(), stranger.receive(1, None, NOW)):
                    with pytest.raises(StoreUnusable, match="JOBQ_SQLITE_ADOPT=1") as caught:
                        await verb
                assert str(tmp_path / "jobs.db") in str(caught.value)
        await held.complete(DONE)


async def test_adopting_works_once_and_for_all(tmp_path: Path) -> None:
    async with backend(virtual_file(tmp_path)) as queue:
        await queue.create()
        await queue.push(tasks(1))
        await queue.receive(1, timedelta(days=1), NOW)
    async with backend(virtual_file(tmp_path, host=OTHER, adopt=True)) as queue:
        (delivery,) = await queue.receive(1, LEASE, NOW)
        assert delivery.deliveries == 2
        await delivery.requeue(delivery.task.requeued(), NOW)
    async with backend(virtual_file(tmp_path, host=OTHER)) as queue:
        assert (await queue.stats()).visible == 1
    async with backend(virtual_file(tmp_path)) as former:
        with pytest.raises(StoreUnusable, match="another machine"):
            await former.stats()


@pytest.mark.parametrize("stored", ["", "machine-a"])
@pytest.mark.parametrize("ours", ["", "machine-b"])
async def test_empty_machine_ids_are_never_the_same_machine(tmp_path: Path, stored: str, ours: str) -> None:
    async with backend(virtual_file(tmp_path, host=Host(stored, "boot-1"))) as queue:
        await queue.create()
    async with backend(virtual_file(tmp_path, host=Host(ours, "boot-2"))) as queue:
        with pytest.raises(StoreUnusable, match="another machine"):
            await queue.stats()


@pytest.mark.parametrize("jump", [3600.0, -3600.0])
async def test_jump_of_the_wall_clock_changes_no_lease(tmp_path: Path, jump: float) -> None:
    clock = VirtualClock()
    async with backend(virtual_file(tmp_path, clock)) as queue:
        await queue.create()
        await queue.push(tasks(2))
        kept, lost = await queue.receive(2, LEASE, NOW)
        clock.jump_wall(jump)
        assert await queue.receive(1, LEASE, NOW) == []
        await kept.renew(LEASE)
        await clock.advance(9.9)
        assert await queue.receive(1, LEASE, NOW) == []
        await kept.complete(DONE)
        await clock.advance(0.2)
        (again,) = await queue.receive(2, LEASE, NOW)
        assert again.id == lost.id
        with pytest.raises(LockLost):
            await lost.complete(DONE)


def test_this_machine_has_a_boot_id() -> None:
    assert this_host().boot_id
    assert this_host() == this_host()
