"""S5: what is said of a settle, by what was answered; in virtual time."""

import asyncio
from datetime import timedelta

import pytest

from jobq.backend import Capabilities
from jobq.clock import Moment
from jobq.errors import LockLost, MalformedTask, QueueNotFound, SettlementUnknown
from jobq.lease.keeper import LeaseKeeper
from jobq.lease.timing import LeaseTiming
from jobq.run.attempt.attempt_journal import AttemptJournal
from jobq.run.attempt.retry import Reason, Verdict
from jobq.run.attempt.settle import Settled, settle
from jobq.run.stopping import Stopping
from jobq.settlement import Complete, MoveToDeadLetters, Requeue
from jobq.task import Counters, Outcome, OutcomeKind
from jobq.testing.clock import VirtualClock
from tests.unit.scripted_delivery import ScriptedDelivery


async def settled(
    *answers: str,
    idempotent: bool,
    fenced: bool = False,
    seconds: float = 60.0,
    stopping: Stopping | None = None,
    verdict: Verdict | None = None,
    outcome: Outcome | None = None,
) -> tuple[Settled, int]:
    """Settle a delivery whose settles are answered so; return what is said of it, and how often it was asked."""
    return (
        await told(
            *answers,
            idempotent=idempotent,
            fenced=fenced,
            seconds=seconds,
            stopping=stopping,
            verdict=verdict,
            outcome=outcome,
        )
    )[:2]


async def told(
    *answers: str,
    idempotent: bool,
    fenced: bool = False,
    seconds: float = 60.0,
    stopping: Stopping | None = None,
    verdict: Verdict | None = None,
    outcome: Outcome | None = None,
) -> tuple[Settled, int, list[str]]:
    """As `settled`, with the verbs that were sent."""
    clock = VirtualClock()
    delivery = ScriptedDelivery(clock)

    async def lost() -> None:
        raise SettlementUnknown("no answer")

    async def stale() -> None:
        raise LockLost("409")

    async def missing() -> None:
        raise QueueNotFound("there is no queue")

    async def outgrown() -> None:
        raise MalformedTask("is larger than a Storage Queue takes")

    known = {
        "missing": missing,
        "outgrown": outgrown,
        "ok": delivery.accept,
        "lost": lost,
        "stale": stale,
        "refused": delivery.refuse,
        "hang": delivery.hang,
    }
    delivery.settle_answers = [known[answer] for answer in answers]
    keeper = LeaseKeeper(AttemptJournal(delivery), since=Moment.of(clock), timing=LeaseTiming(lease=60), clock=clock)
    capabilities = Capabilities(default_lease=timedelta(seconds=60), idempotent_settle=idempotent, fenced_settle=fenced)
    async with keeper:
        settling = settle(
            delivery,
            keeper,
            verdict or Complete(),
            outcome,
            capabilities=capabilities,
            clock=clock,
            stopping=stopping,
        )
        work = asyncio.create_task(settling)
        await clock.advance(seconds)
        assert work.done()
        return await work, len(delivery.settled), delivery.settled


async def test_an_answer_is_an_answer() -> None:
    assert await settled("ok", idempotent=False) == (Settled.YES, 1)
    assert await settled("stale", idempotent=True) == (Settled.LOST, 1)


async def test_a_refusal_is_repeated() -> None:
    assert await settled("refused", "refused", "ok", idempotent=False) == (Settled.YES, 3)


async def test_a_lost_answer_is_repeated_only_where_that_is_safe() -> None:
    assert await settled("lost", "ok", idempotent=True) == (Settled.YES, 2)
    assert await settled("lost", "ok", idempotent=False) == (Settled.UNKNOWN, 1)
    assert await settled("hang", "ok", idempotent=False) == (Settled.UNKNOWN, 1)


async def test_a_lost_answer_is_repeated_where_the_receipt_fences_the_repetition() -> None:
    """A finished task ran again after one 500, though hours of its lease were left."""
    assert await settled("lost", "hang", "lost", "ok", idempotent=False, fenced=True, seconds=55) == (Settled.YES, 4)
    assert await settled("lost", "stale", idempotent=False, fenced=True) == (Settled.UNKNOWN, 2)


async def test_what_was_once_in_doubt_is_never_called_lost_or_done() -> None:
    assert await settled("lost", "stale", idempotent=True) == (Settled.UNKNOWN, 2)
    assert (await settled(*["lost"] * 100, idempotent=True))[0] is Settled.UNKNOWN


async def test_what_is_refused_for_good_holds_up_no_worker() -> None:
    """L2: renewals go on, so the lease would never end it: a full account, a right that is missing."""
    assert (await settled(*["refused"] * 1000, idempotent=True, seconds=70))[0] is Settled.LOST


async def test_a_pause_ends_with_the_lease() -> None:
    """P1: nothing is waited for any more, and another worker may have the task."""
    clock = VirtualClock()
    delivery = ScriptedDelivery(clock)
    delivery.settle_answers = [delivery.refuse] * 1000
    delivery.always = delivery.refuse
    keeper = LeaseKeeper(AttemptJournal(delivery), since=Moment.of(clock), timing=LeaseTiming(lease=60), clock=clock)
    capabilities = Capabilities(default_lease=timedelta(seconds=60))
    async with keeper:
        settling = settle(delivery, keeper, Complete(), None, capabilities=capabilities, clock=clock)
        work = asyncio.create_task(settling)
        await clock.advance(50.0)
        assert not work.done()
        await clock.advance(1.0)
        assert work.done()
        assert await work is Settled.LOST


async def test_a_place_that_is_missing_holds_up_no_slot() -> None:
    """L5: no waiting makes it, and another task could run meanwhile."""
    verdict = MoveToDeadLetters(Reason.MALFORMED, "not JSON")
    assert await settled("missing", "ok", idempotent=True, verdict=verdict) == (Settled.LOST, 1)
    assert await settled("lost", "missing", idempotent=True, verdict=verdict) == (Settled.UNKNOWN, 2)


async def test_a_failure_that_has_no_room_for_its_count_ends_as_a_failure() -> None:
    """S7: put back without its count it would run for ever."""
    back = Requeue(Counters().raised(failures=1))
    failed = Outcome(kind=OutcomeKind.FAILED, detail="exit code 1")
    said = await told("outgrown", "ok", idempotent=False, verdict=back, outcome=failed)
    assert said == (Settled.YES, 2, ["requeue", "dead_letter failed"])


async def test_another_end_that_has_no_room_for_its_count_is_left_to_its_lease() -> None:
    back = Requeue(Counters().raised(preemptions=1))
    given_back = Outcome(kind=OutcomeKind.PREEMPTED, detail="told to stop")
    said = await told("outgrown", idempotent=False, verdict=back, outcome=given_back)
    assert said == (Settled.LOST, 1, ["requeue"])


async def test_s5_the_journal_records_what_became_of_the_task_not_what_was_wanted() -> None:
    """It cannot be buried, and is put back for that: it was recorded as dead, and waited."""
    clock = VirtualClock()
    delivery = ScriptedDelivery(clock)
    delivery.journaled = True
    journal, failed = AttemptJournal(delivery), Outcome(kind=OutcomeKind.FAILED, detail="exit code 1")
    keeper = LeaseKeeper(journal, since=Moment.of(clock), timing=LeaseTiming(lease=60), clock=clock)

    async def missing() -> None:
        raise QueueNotFound("there is no dead-letter queue")

    delivery.settle_answers = [missing]
    async with keeper:
        await settle(
            delivery,
            keeper,
            MoveToDeadLetters(Reason.FAILED, "failed"),
            failed,
            capabilities=Capabilities(default_lease=timedelta(seconds=60)),
            clock=clock,
            record=lambda verdict: journal.record(verdict, failed),
        )
    assert delivery.settled == ["dead_letter failed", "requeue"]
    assert [record.attempt.then for record in delivery.records if record is not None] == ["dead", "retry"]


@pytest.mark.parametrize(("level", "seconds"), [("stop", 5.0), ("now", 2.0)])
async def test_a_stop_leaves_a_refused_settle_little_time(level: str, seconds: float) -> None:
    stopping = Stopping()
    getattr(stopping, level)("the test says so")
    assert (await settled(*["refused"] * 1000, idempotent=True, seconds=seconds, stopping=stopping))[0] is Settled.LOST


async def test_a_stop_that_comes_while_a_settle_is_refused_is_heard() -> None:
    stopping = Stopping()
    asyncio.get_running_loop().call_soon(stopping.now, "the test says so")
    assert (await settled(*["refused"] * 1000, idempotent=True, seconds=2.2, stopping=stopping))[0] is Settled.LOST
