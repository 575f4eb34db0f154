"""S5: what is said of a settle, by what was answered; in virtual time."""

import asyncio
from datetime import timedelta

from jobq.backend import Capabilities
from jobq.errors import LockLost, SettlementUnknown
from jobq.lease.keeper import LeaseKeeper
from jobq.lease.timing import LeaseTiming
from jobq.run.retry import Complete
from jobq.run.settlement import Settled, settle
from jobq.testing.clock import VirtualClock
from tests.unit.scripted_delivery import ScriptedDelivery


async def settled(*answers: str, idempotent: bool, seconds: float = 60.0) -> tuple[Settled, int]:
    """Complete a delivery whose settles are answered so; return what is said of it, and how often it was asked."""
    clock = VirtualClock()
    delivery = ScriptedDelivery(clock)

    async def lost() -> None:
        raise SettlementUnknown("no answer")

    async def stale() -> None:
        raise LockLost("409")

    known = {"ok": delivery.accept, "lost": lost, "stale": stale, "refused": delivery.refuse, "hang": delivery.hang}
    delivery.settle_answers = [known[answer] for answer in answers]
    keeper = LeaseKeeper(delivery, since=clock.boottime(), timing=LeaseTiming(lease=60), clock=clock)
    capabilities = Capabilities(default_lease=timedelta(seconds=60), idempotent_settle=idempotent)
    async with keeper:
        work = asyncio.create_task(settle(delivery, keeper, Complete(), None, capabilities=capabilities, clock=clock))
        await clock.advance(seconds)
        return await work, len(delivery.settled)


async def test_an_answer_is_an_answer() -> None:
    assert await settled("ok", idempotent=False) == (Settled.YES, 1)
    assert await settled("stale", idempotent=True) == (Settled.LOST, 1)


async def test_a_refusal_is_repeated() -> None:
    assert await settled("refused", "refused", "ok", idempotent=False) == (Settled.YES, 3)


async def test_a_lost_answer_is_repeated_only_where_that_is_safe() -> None:
    assert await settled("lost", "ok", idempotent=True) == (Settled.YES, 2)
    assert await settled("lost", "ok", idempotent=False) == (Settled.UNKNOWN, 1)
    assert await settled("hang", "ok", idempotent=False) == (Settled.UNKNOWN, 1)


async def test_what_was_once_in_doubt_is_never_called_lost_or_done() -> None:
    assert await settled("lost", "stale", idempotent=True) == (Settled.UNKNOWN, 2)
    assert (await settled(*["lost"] * 100, idempotent=True))[0] is Settled.UNKNOWN
