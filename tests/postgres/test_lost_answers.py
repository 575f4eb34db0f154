"""Answers that never arrive, on a real server behind a proxy: unknown is told as unknown, and a repeat is exact."""

import asyncio
import itertools
import time
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from jobq.errors import AnswerLost, BackendUnavailable, PushUnknown, SettlementUnknown
from jobq.server.error_responses import refused_for
from jobq.settlement import Complete, MoveToDeadLetters, Release, Requeue
from jobq_postgres import PostgresBackend
from tests.postgres.support import DONE, LEASE, NOW, receipt, take, tasks
from tests.support.tcp_proxy import TcpProxy, TcpStrike

if TYPE_CHECKING:
    from jobq.testing.harness import Verb

pytestmark = pytest.mark.check


@pytest.mark.parametrize("count", [1, 500])  # one statement; COPY, where the answer that is lost is the COMMIT's
@pytest.mark.parametrize("lost", [TcpStrike.LOSE_ANSWER, TcpStrike.BREAK])
async def test_push_without_an_answer_is_unknown_and_its_repeat_adds_nothing_twice(
    queue: PostgresBackend, far: PostgresBackend, proxy: TcpProxy, count: int, lost: TcpStrike
) -> None:
    """S8: PushUnknown with all ids; whether or not it was committed, the repeat leaves each task once."""
    pushed = tasks(count)
    async with far:
        await far.push(tasks(1, "warm"))
        marker = b"COMMIT" if count > 1 else pushed[0].id.encode()
        proxy.strike(lost, lambda sent: marker in sent)
        with pytest.raises(PushUnknown) as caught:
            await far.push(pushed)
        assert proxy.struck == 1
        assert list(caught.value.ids) == [task.id for task in pushed]
        if lost is TcpStrike.LOSE_ANSWER or count == 1:
            assert (await queue.stats()).visible == (1 + count if lost is TcpStrike.LOSE_ANSWER else 1)
        assert await far.push(pushed) == [task.id for task in pushed]
    assert (await queue.stats()).visible == 1 + count


@pytest.mark.parametrize("verb", ["complete", "requeue", "release", "dead_letter"])
@pytest.mark.parametrize("lost", [TcpStrike.LOSE_ANSWER, TcpStrike.BREAK])
async def test_settle_without_an_answer_is_unknown_and_its_repeat_is_exact(
    queue: PostgresBackend, far: PostgresBackend, proxy: TcpProxy, verb: str, lost: TcpStrike
) -> None:
    """S5: SettlementUnknown; the same settle again is answered, with one effect in all."""
    async with far:
        await far.push(tasks(1))
        delivery = await take(far)
        again = delivery.task.requeued(failures=1)
        calls: dict[str, Verb] = {
            "complete": lambda: delivery.settle(Complete(DONE)),
            "requeue": lambda: delivery.settle(Requeue(again.counters, timedelta(hours=1))),
            "release": lambda: delivery.settle(Release()),
            "dead_letter": lambda: delivery.settle(
                MoveToDeadLetters("failures", "with a NUL \0 and half a pair \ud800")
            ),
        }
        await delivery.renew(LEASE)  # the connection is open: what is lost is the settle, not its beginning
        proxy.strike(lost, lambda sent: receipt(delivery).bytes in sent)
        with pytest.raises(SettlementUnknown):
            await calls[verb]()
        assert proxy.struck == 1
        await calls[verb]()
        before = await queue.stats()
        await calls[verb]()
        after = await queue.stats()
    assert before == after
    expected = {"complete": (0, 0, 0), "requeue": (0, 1, 0), "release": (1, 0, 0), "dead_letter": (0, 0, 1)}
    assert (after.visible, after.scheduled, after.dead) == expected[verb]
    assert after.leased == 0


@pytest.mark.parametrize("lost", [TcpStrike.LOSE_ANSWER, TcpStrike.BREAK])
async def test_claim_without_an_answer_is_asked_for_again_and_costs_nothing(
    queue: PostgresBackend, far: PostgresBackend, proxy: TcpProxy, lost: TcpStrike
) -> None:
    """S1, S7: what was claimed for an answer that never came is given to the next call; no crash is counted."""
    pushed = await queue.push(tasks(6))
    async with far:
        # Both statements are known to the server then: what is struck is the claim, not its preparation.
        first = [await take(far), await take(far)]
        proxy.strike(lost, lambda sent: len(sent) > 100)
        with pytest.raises(BackendUnavailable):
            await far.receive(3, LEASE, NOW)
        assert proxy.struck == 1
        assert (await queue.stats()).leased == (5 if lost is TcpStrike.LOSE_ANSWER else 2)
        found = first + await far.receive(2, LEASE, NOW)
        while len(found) < len(pushed):
            found += await far.receive(1, LEASE, timedelta(seconds=5))
            assert found
        assert [delivery.deliveries for delivery in found] == [1] * 6
        for delivery in found:
            await delivery.settle(Complete(DONE))


async def test_claim_whose_answer_was_lost_is_handed_out_once(
    queue: PostgresBackend, far: PostgresBackend, proxy: TcpProxy
) -> None:
    """S3: two slots of one process never have one task, however often it asks what it may have claimed."""
    await queue.push(tasks(5))
    async with far:
        await take(far)
        await take(far)
        proxy.strike(TcpStrike.LOSE_ANSWER, lambda sent: len(sent) > 100)
        with pytest.raises(BackendUnavailable):
            await far.receive(3, LEASE, NOW)
        assert proxy.struck == 1
        claimer = (await far._linked()).claimer
        for number in (1, 2, 0, 0):
            claimer._ask_again_at = 0.0  # it may ask at any time
            found = await far.receive(number or 3, LEASE, NOW)
            assert [delivery.deliveries for delivery in found] == [1] * number
            for delivery in found:
                await delivery.renew(LEASE)


async def test_claim_that_nobody_asks_for_again_comes_back(
    queue: PostgresBackend, far: PostgresBackend, proxy: TcpProxy
) -> None:
    """S1: when its lease has run out, as any other."""
    await queue.push(tasks(2))
    async with far:
        await take(far)
        await take(far)
        await queue.push(tasks(1, "n"))
        proxy.strike(TcpStrike.LOSE_ANSWER, lambda sent: len(sent) > 100)
        with pytest.raises(BackendUnavailable):
            await far.receive(3, timedelta(seconds=1), NOW)
    (found,) = await queue.receive(1, LEASE, timedelta(seconds=10))
    assert (found.id, found.deliveries) == ("n-00000", 2)


async def test_black_hole_holds_up_a_renewal_no_longer_than_one_attempt(
    queue: PostgresBackend, far: PostgresBackend, proxy: TcpProxy
) -> None:
    """1.3 rule 4: the lane gives up with the attempt, and the next goes over a new connection."""
    await queue.push(tasks(1))
    async with far:
        delivery = await take(far)
        await delivery.renew(LEASE)
        proxy.strike(TcpStrike.HANG, lambda sent: receipt(delivery).bytes in sent)
        began = time.monotonic()
        with pytest.raises(SettlementUnknown):
            await delivery.renew(LEASE)
        assert time.monotonic() - began < LEASE.total_seconds() / 8 + 2
        await delivery.renew(LEASE)
        await delivery.settle(Complete(DONE))


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


@pytest.mark.parametrize("lost", [TcpStrike.LOSE_ANSWER, TcpStrike.BREAK])
async def test_a_verb_of_an_administrator_without_an_answer_is_not_told_as_refused(
    queue: PostgresBackend, far: PostgresBackend, proxy: TcpProxy, lost: TcpStrike
) -> None:
    """S5: whether it was done or not, nobody claims that nothing was changed; the service says 504, not 503."""
    async with far:
        await far.clear()  # the statements are known to the server: what is struck is an execution
        await far.push(tasks(2))
        requests = itertools.count(1)
        proxy.strike(lost, lambda sent: len(sent) > 0 and next(requests) == 2)  # the first one looks how far to go
        with pytest.raises(AnswerLost) as caught:
            await far.clear()
        assert proxy.struck == 1
        assert (await queue.stats()).visible == (0 if lost is TcpStrike.LOSE_ANSWER else 2)
        await far.clear()  # a repetition is safe
    assert (await queue.stats()).visible == 0
    refusal = refused_for(caught.value)
    assert (refusal.status, refusal.code) == (504, "unknown")
    assert "nothing was changed" not in refusal.message
