"""rules.md 1.3 rule 10: leases count from a boot of one machine, the wall clock decides only another boot's."""

import asyncio
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from jobq.errors import LockLost, StoreUnusable
from jobq.lease.store import Busy, Grant, Request
from jobq.settlement import Complete, MoveToDeadLetters, Requeue
from jobq.testing.clock import VirtualClock
from jobq_sqlite.host import BootedHost, this_host
from tests.sqlite.support import DONE, HOST, LEASE, NOW, ask, backend, tasks, virtual_file

REBOOTED = BootedHost(HOST.machine_id, "boot-2")
OTHER = BootedHost("machine-b", "boot-9")


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
    async with backend(virtual_file(tmp_path, host=BootedHost("another-id", HOST.boot_id))) as queue:
        await queue.stats()
    assert ask(tmp_path / "jobs.db", "SELECT machine_id FROM host") == [(HOST.machine_id,)]


async def test_a_reboot_costs_one_lease(tmp_path: Path) -> None:
    """The leases of the former boot stand to their end, by the wall clock; then the file is the new boot's.

    Deliveries and checkpoints stay (S3, S9), old receipts are refused (S4), the dead and the done stay so.
    """
    before = VirtualClock(boottime=5000)
    async with backend(virtual_file(tmp_path, before)) as queue:
        await queue.create()
        await queue.push(tasks(4))
        held, done, dead, delayed = await queue.receive(4, LEASE, NOW)
        await held.checkpoint("half")
        await done.settle(Complete(DONE))
        await dead.settle(MoveToDeadLetters("failed", "x"))
        await delayed.settle(Requeue(delayed.task.requeued().counters, timedelta(hours=1)))
    after = VirtualClock(boottime=2, wall=before.wall() + 4)
    async with backend(virtual_file(tmp_path, after, host=REBOOTED)) as queue:
        stats = await queue.stats()
        assert (stats.visible, stats.leased, stats.scheduled, stats.dead) == (0, 1, 1, 1)
        waiting = asyncio.create_task(queue.receive(5, LEASE, timedelta(seconds=60)))
        await asyncio.sleep(0.1)
        await after.advance(5.9)
        assert not waiting.done()
        await after.advance(0.2)
        (again,) = await waiting
        assert (again.id, again.deliveries, again.checkpoint_value) == (held.id, 2, "half")
        assert ask(tmp_path / "jobs.db", "SELECT machine_id, boot_id FROM host") == [
            (HOST.machine_id, REBOOTED.boot_id)
        ]
        after.jump_wall(1800)
        assert await queue.receive(1, LEASE, NOW) == [], "the wall clock decides no lease of its own boot"
        await again.settle(Complete(DONE))


async def test_a_machine_with_the_same_id_leaves_the_leases_of_the_other_alone(tmp_path: Path) -> None:
    """Machines are cloned, and images baked, with their id: another boot is no proof of a reboot."""
    one, two = VirtualClock(boottime=5000), VirtualClock(boottime=20)
    async with (
        backend(virtual_file(tmp_path, one)) as first,
        backend(virtual_file(tmp_path, two, host=REBOOTED)) as second,
    ):
        await first.create()
        await first.push(tasks(2))
        (held,) = await first.receive(1, LEASE, NOW)
        (other,) = await second.receive(2, LEASE, NOW)
        assert other.id != held.id
        for _ in range(3):
            for clock in (one, two):
                await clock.advance(9)
            await held.renew(LEASE)
            await other.renew(LEASE)
            assert await first.receive(1, LEASE, NOW) == await second.receive(1, LEASE, NOW) == []
        await held.settle(Complete(DONE))
        await other.settle(Complete(DONE))
        # The latest to come has put the file on its own boot; the former has followed it while anything was leased.
        await second.push(tasks(1, "more"))
        (again,) = await second.receive(1, LEASE, NOW)
        assert ask(tmp_path / "jobs.db", "SELECT boot_id, boottime FROM host") == [(REBOOTED.boot_id, 20.0)]
        assert await first.receive(1, LEASE, NOW) == []
        for clock in (one, two):
            await clock.advance(10)
        (lost,) = await first.receive(1, LEASE, NOW)
        assert lost.deliveries == 2
        with pytest.raises(LockLost):
            await again.settle(Complete(DONE))


async def test_a_machine_that_lost_the_time_waits_one_lease_too(tmp_path: Path) -> None:
    before = VirtualClock(boottime=5000)
    async with backend(virtual_file(tmp_path, before)) as queue:
        await queue.create()
        await queue.push(tasks(1))
        await before.advance(100_000)
        await queue.receive(1, LEASE, NOW)
    after = VirtualClock(boottime=2, wall=1.0)
    async with backend(virtual_file(tmp_path, after, host=REBOOTED)) as queue:
        assert await queue.receive(1, LEASE, NOW) == []
        await after.advance(10)
        assert len(await queue.receive(1, LEASE, NOW)) == 1


@pytest.mark.parametrize("step", [-3600.0, 0.0])
async def test_s3_all_processes_of_a_new_boot_count_its_leases_alike(tmp_path: Path, step: float) -> None:
    """Each by its own reckoning of the former boot's time, one started two copies of a task that ran."""
    before = VirtualClock(boottime=5000)
    async with backend(virtual_file(tmp_path, before)) as queue:
        await queue.create()
        await queue.push(tasks(3))
        await before.advance(100)
        await queue.receive(1, LEASE, NOW)
    after = VirtualClock(boottime=2, wall=before.wall() + step)
    async with backend(virtual_file(tmp_path, after, host=REBOOTED)) as one:
        held, other = await one.receive(3, LEASE, NOW)
        for _ in range(3):
            await after.advance(5)
            await held.renew(LEASE)
            await other.renew(LEASE)
        (former,) = await one.receive(1, LEASE, NOW)
        assert former.deliveries == 2, "the lease of the former boot has ended after its length"
        after.jump_wall(7200)
        async with backend(virtual_file(tmp_path, after, host=REBOOTED)) as two:
            await two.push(tasks(1, "more"))
            (more,) = await two.receive(4, LEASE, NOW)
            assert more.id == "more-00000"
            await after.advance(9)
            assert await two.receive(4, LEASE, NOW) == []
            for each in (held, other, former, more):
                await each.settle(Complete(DONE))


async def test_whoever_is_first_of_a_boot_names_it_and_a_named_lease_keeps_what_is_left_of_it(tmp_path: Path) -> None:
    """One that a clock set back would else keep held for as far as it is behind."""
    before = VirtualClock(boottime=5000)
    async with backend(virtual_file(tmp_path, before)) as queue:
        await queue.create()
        await before.advance(100)
        request = Request(name="n", key="k", holder="h", ttl=timedelta(seconds=60))
        grant = await queue.leases.acquire(request)
        assert isinstance(grant, Grant)
        await before.advance(50)
        await queue.leases.renew(grant, timedelta(seconds=40))
    after = VirtualClock(boottime=2, wall=before.wall() - 3600)
    async with backend(virtual_file(tmp_path, after, host=REBOOTED)) as queue:
        await queue.push(tasks(1))
        assert ask(tmp_path / "jobs.db", "SELECT boot_id, boottime FROM host") == [(REBOOTED.boot_id, 2.0)]
        busy = await queue.leases.acquire(replace(request, key="other"))
        assert isinstance(busy, Busy)
        assert busy.remaining == pytest.approx(40.0)
        await after.advance(40)
        assert isinstance(await queue.leases.acquire(replace(request, key="other")), Grant)


async def test_a_reader_of_a_new_boot_sees_the_leases_before_and_after_anyone_writes(tmp_path: Path) -> None:
    before = VirtualClock(boottime=5000)
    async with backend(virtual_file(tmp_path, before)) as queue:
        await queue.create()
        await queue.push(tasks(2))
        await before.advance(100)
        await queue.receive(1, LEASE, NOW)
    after = VirtualClock(boottime=2, wall=before.wall() - 3600)
    async with (
        backend(virtual_file(tmp_path, after, host=REBOOTED)) as reader,
        backend(virtual_file(tmp_path, after, host=REBOOTED)) as writer,
    ):
        assert (await reader.stats()).leased == 1
        await after.advance(6)
        (held,) = await writer.receive(2, LEASE, NOW)
        for seconds, leased in ((9.9, 2), (0.2, 0)):
            await after.advance(seconds)
            stats = await reader.stats()
            assert (stats.visible, stats.leased) == (2 - leased, leased)
        with pytest.raises(LockLost):
            await held.settle(Complete(DONE))


async def test_a_stepped_wall_clock_is_noted_for_other_boots(tmp_path: Path) -> None:
    one = VirtualClock(boottime=5000)
    async with backend(virtual_file(tmp_path, one)) as queue:
        await queue.create()
        await queue.push(tasks(1))
        one.jump_wall(-3600)  # the time was wrong, and is set
        await queue.receive(1, LEASE, NOW)
        two = VirtualClock(boottime=2, wall=one.wall())
        async with backend(virtual_file(tmp_path, two, host=REBOOTED)) as other:
            await two.advance(9)
            assert await other.receive(1, LEASE, NOW) == []
            await two.advance(2)
            assert len(await other.receive(1, LEASE, NOW)) == 1


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
        await held.settle(Complete(DONE))


async def test_adopting_works_once_and_for_all(tmp_path: Path) -> None:
    async with backend(virtual_file(tmp_path)) as queue:
        await queue.create()
        await queue.push(tasks(1))
        await queue.receive(1, timedelta(days=1), NOW)
    async with backend(virtual_file(tmp_path, host=OTHER, adopt=True)) as queue:
        (delivery,) = await queue.receive(1, LEASE, NOW)
        assert delivery.deliveries == 2
        await delivery.settle(Requeue(delivery.task.requeued().counters, NOW))
    async with backend(virtual_file(tmp_path, host=OTHER)) as queue:
        assert (await queue.stats()).visible == 1
    async with backend(virtual_file(tmp_path)) as former:
        with pytest.raises(StoreUnusable, match="another machine"):
            await former.stats()


async def test_who_has_the_file_open_that_another_machine_adopts_loses_its_leases(tmp_path: Path) -> None:
    async with backend(virtual_file(tmp_path)) as former:
        await former.create()
        await former.push(tasks(1))
        (held,) = await former.receive(1, LEASE, NOW)
        async with backend(virtual_file(tmp_path, host=OTHER, adopt=True)) as queue:
            assert len(await queue.receive(1, LEASE, NOW)) == 1
        with pytest.raises(LockLost, match="taken over by another machine"):
            await held.renew(LEASE)
        with pytest.raises(StoreUnusable, match="taken over by another machine"):
            await former.receive(1, LEASE, NOW)


@pytest.mark.parametrize("stored", ["", "machine-a"])
@pytest.mark.parametrize("ours", ["", "machine-b"])
async def test_empty_machine_ids_are_never_the_same_machine(tmp_path: Path, stored: str, ours: str) -> None:
    async with backend(virtual_file(tmp_path, host=BootedHost(stored, "boot-1"))) as queue:
        await queue.create()
    async with backend(virtual_file(tmp_path, host=BootedHost(ours, "boot-2"))) as queue:
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
        await kept.settle(Complete(DONE))
        await clock.advance(0.2)
        (again,) = await queue.receive(2, LEASE, NOW)
        assert again.id == lost.id
        with pytest.raises(LockLost):
            await lost.settle(Complete(DONE))


def test_this_machine_has_a_boot_id() -> None:
    assert this_host().boot_id
    assert this_host() == this_host()


async def test_a_file_that_counted_suspends_is_still_this_machines(tmp_path: Path) -> None:
    """Of a jobq until 0.1, in a container without a machine id; its leases stand to their end by the wall clock."""
    boot = this_host().boot_id
    former, host = BootedHost("", boot.removesuffix(" without suspends")), BootedHost("", boot)
    assert former.boot_id != host.boot_id
    counts, leaves_out = VirtualClock(boottime=9000), VirtualClock(boottime=2000)  # it was suspended for two hours
    async with backend(virtual_file(tmp_path, counts, host=former)) as queue:
        await queue.create()
        await queue.push(tasks(1))
        await queue.receive(1, LEASE, NOW)
    async with backend(virtual_file(tmp_path, leaves_out, host=host)) as queue:
        assert await queue.receive(1, LEASE, NOW) == []
        await leaves_out.advance(10)
        (again,) = await queue.receive(1, LEASE, NOW)
        assert again.deliveries == 2
