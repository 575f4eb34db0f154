"""Named leases in the file: another boot, many who make the file, and a commit that nobody can vouch for."""

import asyncio
import uuid
from datetime import timedelta
from pathlib import Path

import pytest

from jobq.errors import LockLost, SettlementUnknown
from jobq.lease.store import Busy, Grant, LeaseState, Request
from jobq.testing.clock import VirtualClock
from jobq_sqlite.host import BootedHost
from jobq_sqlite.open_file import SCHEMA_VERSION
from tests.sqlite.support import HOST, ask, backend, intact, virtual_file
from tests.sqlite.test_unknown import Failing

REBOOTED = BootedHost(HOST.machine_id, "boot-2")


def request(name: str = "one", **more: timedelta) -> Request:
    return Request(name=name, key=str(uuid.uuid4()), holder="a", ttl=timedelta(days=1), **more)


async def test_reboot_ends_named_leases_in_time_and_keeps_tokens_cursors_and_confirmations(tmp_path: Path) -> None:
    """rules.md 1.3 rule 10: boottime begins anew, far below the old expiry; the wall clock tells when that is."""
    old = VirtualClock(boottime=5000)
    async with backend(virtual_file(tmp_path, old)) as before:
        held = await before.leases.acquire(request())
        assert isinstance(held, Grant)
        await before.leases.save(held, "half", 1)
        taken = await before.leases.acquire(request("taken"))
        assert isinstance(taken, Grant)
        await before.leases.confirm("taken", taken.token, "seat 5")
        clock = VirtualClock(boottime=20, wall=old.wall())
        async with backend(virtual_file(tmp_path, clock, host=REBOOTED)) as after:
            assert isinstance(await after.leases.acquire(request()), Busy), "it stands to its end"
            await old.advance(86400)
            await clock.advance(86400)
            states = {record.name: record.state for record in await after.leases.list()}
            assert states == {"one": LeaseState.EXPIRED, "taken": LeaseState.CONFIRMED}
            for refused in (before.leases.renew(held, timedelta(1)), before.leases.save(held, "late", 2)):
                with pytest.raises(LockLost):
                    await refused
            again = await after.leases.acquire(request())
            assert isinstance(again, Grant)
            assert (again.token, again.cursor) == (2, "half")


async def test_many_who_make_a_file_at_once_make_one(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    handles = [backend(virtual_file(tmp_path)) for _ in range(8)]
    answers = await asyncio.gather(*(_entered_and_asked(handle) for handle in handles))  # all at once
    assert sum(isinstance(answer, Grant) for answer in answers) == 1
    assert ask(path, "PRAGMA user_version") == [(SCHEMA_VERSION,)]
    ((identity,),) = ask(path, "SELECT identity FROM host")
    assert len(identity) == 32
    assert intact(path)


async def _entered_and_asked(handle: object) -> Grant | Busy:
    async with handle as entered:  # type: ignore[attr-defined] # a backend
        answer: Grant | Busy = await entered.leases.acquire(request())
        return answer


@pytest.mark.parametrize("after", [False, True])
async def test_a_commit_that_was_not_confirmed_is_unknown_and_repeated_exactly(tmp_path: Path, after: bool) -> None:
    """S4: whether it took effect or not, the repetition is answered as if it came first."""
    async with backend(virtual_file(tmp_path, connection_class=Failing)) as queue:
        await queue.create()
        leases, asked = queue.leases, request()

        async def twice(call: object) -> object:
            Failing.fail("COMMIT", after=after)
            with pytest.raises(SettlementUnknown):
                await call()  # type: ignore[operator] # a verb
            return await call()  # type: ignore[operator] # as above

        grant = await twice(lambda: leases.acquire(asked))
        assert isinstance(grant, Grant)
        assert grant.token == 1
        await twice(lambda: leases.renew(grant, timedelta(hours=1)))
        await twice(lambda: leases.save(grant, "half", 1))
        assert str(await twice(lambda: leases.confirm("one", 1, "x"))).endswith("value='x')")
        await twice(lambda: leases.release("one", 1))
        record = await leases.read("one")
        assert record is not None
        assert (record.state, record.token, record.cursor) == (LeaseState.RELEASED, 1, "half")
