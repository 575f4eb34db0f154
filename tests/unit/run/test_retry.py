"""S7: the budgets are exact. Pure arithmetic, so all of it can be tried."""

import contextlib
import random
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobq.errors import MalformedTask
from jobq.run.attempt.retry import (
    MOST_MISFITS,
    Backoff,
    Leave,
    Reason,
    check_counters,
    misplaced,
    refusal,
    unburied,
    unspent,
    verdict,
    verdict_of_caller,
)
from jobq.settlement import Complete, MoveToDeadLetters, Release, Requeue
from jobq.task import Counters, Outcome, OutcomeKind, Task

BACKOFF = Backoff()


def outcome(kind: OutcomeKind) -> Outcome:
    return Outcome(kind=kind, detail="why")


@pytest.mark.parametrize(("ends", "deliveries", "can_be"), [(0, 1, True), (1, 1, False), (1, 2, True), (2, 2, False)])
def test_an_envelope_cannot_record_the_end_of_the_delivery_that_begins(
    ends: int, deliveries: int, can_be: bool
) -> None:
    task = Task.new(command="x").requeued(ends=ends)
    assert task.counters.ends == ends
    with contextlib.nullcontext() if can_be else pytest.raises(MalformedTask, match=r"counters\.ends"):
        check_counters(task, deliveries)


def test_success_completes_and_a_lost_lock_is_left_alone() -> None:
    task = Task.new(command="x")
    assert verdict(task, 1, outcome(OutcomeKind.SUCCEEDED), BACKOFF) == Complete()
    assert verdict(task, 1, outcome(OutcomeKind.LOCK_LOST), BACKOFF) == Leave()


def test_a_failure_consumes_one_retry_and_raises_the_generation() -> None:
    told = verdict(Task.new(command="x"), 1, outcome(OutcomeKind.FAILED), BACKOFF)
    assert isinstance(told, Requeue)
    assert told.counters == Counters(failures=1, ends=1)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (OutcomeKind.FAILED, Reason.FAILED),
        (OutcomeKind.TIMED_OUT, Reason.TIMED_OUT),
        (OutcomeKind.CRASHED, Reason.CRASHED),
        (OutcomeKind.PREEMPTED, Reason.PREEMPTED),
    ],
)
@pytest.mark.parametrize("budget", [0, 1, 4])
def test_each_budget_has_its_own_cap(kind: OutcomeKind, reason: Reason, budget: int) -> None:
    task = Task.new(command="x", budgets={"retries": budget, "crashes": budget, "preemptions": budget})
    for delivery in range(1, budget + 1):
        told = verdict(task, delivery, outcome(kind), BACKOFF)
        assert isinstance(told, Requeue)
        task = task.counted(told.counters)
        assert refusal(task, delivery + 1) is None
    last = verdict(task, budget + 1, outcome(kind), BACKOFF)
    assert isinstance(last, MoveToDeadLetters)
    assert last.reason is reason
    assert "why" in last.description


@pytest.mark.parametrize(("budget", "tries"), [(0, 1), (1, 2), (5, 2)])
def test_what_could_not_be_started_is_tried_once_more_at_most(budget: int, tries: int) -> None:
    task = Task.new(command="x", budgets={"crashes": budget})
    not_started = Outcome(kind=OutcomeKind.CRASHED, detail="no such program", start_failed=True)
    for delivery in range(1, tries):
        told = verdict(task, delivery, not_started, BACKOFF)
        assert isinstance(told, Requeue)
        task = task.counted(told.counters)
    last = verdict(task, tries, not_started, BACKOFF)
    assert isinstance(last, MoveToDeadLetters)
    assert last.reason is Reason.CRASHED


def test_for_a_caller_a_signal_is_a_failure_and_a_lost_delivery_is_not() -> None:
    """`jobq run`: nothing that ran to an end of its own runs again unasked; what was cut off does."""
    task = Task.new(command="x", budgets={"retries": 0})
    told = verdict_of_caller(task, 1, outcome(OutcomeKind.CRASHED), BACKOFF)
    assert isinstance(told, MoveToDeadLetters)
    assert told.reason is Reason.FAILED
    assert refusal(task, 2) is None
    assert isinstance(verdict_of_caller(task, 1, outcome(OutcomeKind.PREEMPTED), BACKOFF), Requeue)
    assert verdict_of_caller(task, 1, outcome(OutcomeKind.SUCCEEDED), BACKOFF) == Complete()


def test_a_memory_limit_is_a_failure_with_a_reason_of_its_own() -> None:
    """P7: it consumes a retry."""
    killed = Outcome(kind=OutcomeKind.FAILED, detail="killed: 2 GiB in use", over_memory_limit=True)
    task = Task.new(command="x", budgets={"retries": 1})
    told = verdict(task, 1, killed, BACKOFF)
    assert isinstance(told, Requeue)
    assert told.counters.failures == 1
    last = verdict(task.counted(told.counters), 2, killed, BACKOFF)
    assert last == MoveToDeadLetters(Reason.MEMORY_LIMIT, "failed 2 times; last: killed: 2 GiB in use")


def test_a_silent_crash_is_seen_at_the_next_delivery() -> None:
    """Nobody recorded an end, so the service's count alone tells."""
    task = Task.new(command="x", budgets={"crashes": 2})
    assert [refusal(task, deliveries) is None for deliveries in (1, 2, 3, 4)] == [True, True, True, False]
    dead = refusal(task, 4)
    assert dead is not None
    assert dead.reason is Reason.CRASHED


def test_the_breaker_gives_a_task_back_with_its_budgets_whole() -> None:
    task = Task.new(command="x")
    told = unspent(task)
    assert told.counters.failures == 0
    assert told.counters.ends == 1, "an end that was recorded is no crash either"
    assert refusal(task.counted(told.counters), 2) is None


KINDS = st.sampled_from(["failed", "timed_out", "crashed", "preempted", "silent", "released"])


@settings(deadline=None)  # a machine may be busy
@given(
    st.lists(KINDS, min_size=60, max_size=60),
    st.integers(0, 4),
    st.integers(0, 4),
    st.integers(0, 4),
)
def test_starts_are_bounded_whatever_happens(kinds: list[str], retries: int, preemptions: int, crashes: int) -> None:
    """S7: starts <= 1 + retries + preemptions + crashes; every path ends in the dead-letter place."""
    task = Task.new(command="x", budgets={"retries": retries, "preemptions": preemptions, "crashes": crashes})
    starts = deliveries = 0
    for kind in kinds:
        deliveries += 1
        if refusal(task, deliveries) is not None:
            break
        if kind == "released":
            task = task.released()
            continue
        starts += 1
        if kind == "silent":
            continue
        told = verdict(task, deliveries, outcome(OutcomeKind(kind)), BACKOFF)
        if isinstance(told, MoveToDeadLetters):
            break
        assert isinstance(told, Requeue)
        task = task.counted(told.counters)
    assert starts <= 1 + retries + preemptions + crashes


def test_backoff_doubles_to_its_bound_with_full_jitter() -> None:
    bounds = [max(Backoff(jitter=random.Random(seed)).delay(n) for seed in range(300)) for n in range(1, 10)]
    assert bounds[0] <= timedelta(seconds=5)
    assert timedelta(seconds=9) < bounds[1] <= timedelta(seconds=10)
    assert timedelta(minutes=9) < bounds[8] <= timedelta(minutes=10)
    assert Backoff().delay(10**9) <= timedelta(minutes=10)
    assert min(Backoff(jitter=random.Random(seed)).delay(1) for seed in range(300)) < timedelta(seconds=0.2)


@settings(deadline=None)  # a machine may be busy
@given(
    kind=st.sampled_from(OutcomeKind),
    failures=st.integers(0, 4),
    preemptions=st.integers(0, 4),
    lost=st.integers(0, 4),
    start_failed=st.booleans(),
)
def test_what_is_given_up_never_starts_again_though_nobody_can_bury_it(
    kind: OutcomeKind, failures: int, preemptions: int, lost: int, start_failed: bool
) -> None:
    """S7: it is put back with its end recorded, or its crashes refuse it by themselves."""
    ends = failures + preemptions
    task = Task.new(command="x", budgets={"retries": 3, "preemptions": 2, "crashes": 1}).requeued(
        failures=min(failures, 3), preemptions=min(preemptions, 2), ends=ends
    )
    deliveries = 1 + ends + lost
    told = verdict(task, deliveries, replace(outcome(kind), start_failed=start_failed), BACKOFF)
    if isinstance(told, MoveToDeadLetters) and refusal(task, deliveries) is None:
        record = unburied(task, deliveries, told)
        again = task if record is None else task.counted(record.counters)
        refused = refusal(again, deliveries + 1)
        assert refused is not None
        assert unburied(again, deliveries + 1, refused) is None, "it is recorded once"
        check_counters(again, deliveries + 1)
        assert refusal(again.redriven(deliveries=deliveries + 1), deliveries + 2) is None
    elif isinstance(told, Requeue) and refusal(task, deliveries) is None:
        assert refusal(task.counted(told.counters), deliveries + 1) is None, (
            "whoever may run again is not taken for one given up"
        )


def test_s7_what_nobody_can_run_waits_for_long_and_not_for_ever() -> None:
    """No budget pays for it; what asks for nothing is not counted, for it would fit any worker."""
    delay = timedelta(seconds=7)
    task = Task.new(command="x", gpus=2, needs=["a100"], budgets={"retries": 0, "preemptions": 0, "crashes": 0})
    for number in range(1, MOST_MISFITS):
        assert misplaced(task, delay) == Release(delay, misfits=1)
        task = task.released(misfits=1)
        assert task.counters == Counters(ends=number, misfits=number)
    assert refusal(task, MOST_MISFITS) is None
    told = misplaced(task, delay)
    assert isinstance(told, MoveToDeadLetters)
    assert told.reason is Reason.UNPLACEABLE
    assert "1000 times" in told.description
    assert "(gpus=2 needs a100)" in told.description
    assert misplaced(Task.new(command="x"), delay) == Release(delay)
