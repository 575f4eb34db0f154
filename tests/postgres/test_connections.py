"""Each purpose has its own connection: what hangs on one holds up no other; what is lost on one is made up for."""

import asyncio
from datetime import timedelta

import pytest

from jobq.errors import BackendUnavailable
from jobq_postgres import PostgresBackend
from tests.postgres.support import LEASE, NOW, receipt, take, tasks
from tests.support.tcp_proxy import TcpProxy, TcpStrike

pytestmark = pytest.mark.check


async def test_renewal_that_is_given_up_makes_way_at_once(
    queue: PostgresBackend, far: PostgresBackend, proxy: TcpProxy
) -> None:
    """1.3 rule 4: a keeper that cancels its attempt does not wait for it with the next one."""
    await queue.push(tasks(1))
    long = timedelta(minutes=5)
    async with far:
        delivery = await take(far, long)
        await delivery.renew(long)
        proxy.strike(TcpStrike.SWALLOW_ANSWER, lambda sent: receipt(delivery).bytes in sent)
        renewing = asyncio.create_task(delivery.renew(long))
        await proxy.until(lambda: proxy.struck)
        renewing.cancel()
        async with asyncio.timeout(2.0):
            await delivery.renew(long)


async def test_renewal_does_not_wait_behind_a_push_or_a_claim_that_hang(
    queue: PostgresBackend, far: PostgresBackend, proxy: TcpProxy
) -> None:
    """Each purpose has its own connection."""
    await queue.push(tasks(1))
    async with far:
        delivery = await take(far)
        await delivery.renew(LEASE)
        await far.push(tasks(1, "warm"))
        proxy.strike(TcpStrike.HANG, lambda sent: b"slow-0" in sent)
        pushing = asyncio.create_task(far.push(tasks(1, "slow")))
        await proxy.until(lambda: proxy.struck == 1)
        proxy.strike(TcpStrike.HANG, lambda _: True)
        claiming = asyncio.create_task(far.receive(1, LEASE, NOW))
        await proxy.until(lambda: proxy.struck == 2)
        for _ in range(3):
            async with asyncio.timeout(1.0):
                await delivery.renew(LEASE)
        assert not pushing.done()
        assert not claiming.done()
        await proxy.refuse()
        await asyncio.gather(pushing, claiming, return_exceptions=True)


async def test_lost_notifications_are_made_up_for_by_looking(
    queue: PostgresBackend, far: PostgresBackend, proxy: TcpProxy
) -> None:
    """A listener whose connection breaks, or goes silent, gets the next task all the same."""
    async with far:
        for number in range(3):
            waiting = asyncio.create_task(far.receive(1, LEASE, timedelta(seconds=30)))
            await proxy.until(lambda number=number: proxy.accepted >= 2 + number)  # type: ignore[misc]
            proxy.break_all()
            await queue.push(tasks(1, f"n{number}"))
            try:
                found = await waiting
            except BackendUnavailable:
                found = await far.receive(1, LEASE, timedelta(seconds=30))
            assert [delivery.id for delivery in found] == [f"n{number}-00000"]
