"""The library's face on a real file: `queue.lease`, with `async` and without, and on a backend without leases."""

import asyncio
import threading
from datetime import timedelta
from pathlib import Path

import pytest

import jobq
import jobq.sync
from jobq.errors import LeaseHeld, LockLost
from jobq.lease.store import LeaseState
from jobq.settings import Settings

SHORT = Settings(allow_short_lease=True, kill_margin=timedelta(seconds=0.2), schedule_margin=timedelta(seconds=0.1))
TTL = timedelta(seconds=2)


async def test_a_lease_outlasts_its_ttl_and_is_free_afterwards(tmp_path: Path) -> None:
    spec = f"sqlite://{tmp_path}/jobs.db/demo"
    async with jobq.connect(spec, settings=SHORT) as queue:
        async with queue.lease("nightly", ttl=TTL) as lease:
            await asyncio.sleep(2.5)
            lease.check()
            with pytest.raises(LeaseHeld):
                await queue.lease("nightly", ttl=TTL, wait=False).__aenter__()
            (record,) = await queue.list_leases()
            assert record.state is LeaseState.ACTIVE
            assert record.renewals is not None
            assert record.renewals >= 3
        async with queue.lease("nightly", ttl=TTL, wait=False) as second:
            assert second.token == lease.token + 1


def test_without_async_it_is_kept_while_the_program_is_busy(tmp_path: Path) -> None:
    spec = f"sqlite://{tmp_path}/jobs.db/demo"
    with jobq.sync.connect(spec, settings=SHORT) as queue, queue.lease("nightly", ttl=TTL) as lease:
        done = threading.Event()
        assert not done.wait(2.5)  # a program that has no time for anybody
        assert not lease.lost
        lease.save("half")
        assert lease.remaining() > 0
        with pytest.raises(LeaseHeld), queue.lease("nightly", ttl=TTL, wait=False):
            pass
        assert lease.confirm("done").token == lease.token == 1
        assert queue.confirm_lease("nightly", 1, "done").value == "done"
        queue.release_lease("nightly", 1)
    with jobq.sync.connect(spec, settings=SHORT) as queue:
        with queue.lease("nightly", ttl=TTL) as again:
            assert (again.token, again.cursor) == (2, "half")
            queue.release_lease("nightly", 2)
            again.check()
            with pytest.raises(LockLost):
                again.save("late")
        assert queue.list_leases()[0].state is LeaseState.RELEASED
