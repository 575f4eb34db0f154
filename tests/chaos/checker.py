"""Compares what the tasks wrote with what the store wrote, in one pass after the run. Pure: no clock, no files."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from typing import Final, NamedTuple

from tests.chaos.history import History, Life
from tests.chaos.store_truth import Attempt, Lease
from tests.chaos.task_program import BEAT_SECONDS

ENDED: Final = frozenset({"done", "dead", "canceled"})
# A wall time of the store, turned into boottime: the millisecond that it is written in, and the two clocks' own.
WALL_SECONDS: Final = 0.01


class Rule(StrEnum):
    """What is checked."""

    OVERLAP = "overlap"  # P1: two trees of one task never live at once
    OUTLIVED = "outlived"  # P1: a tree is dead before its lease expires in the store, or is ended there
    REPEATED = "fencing number repeated"  # S3
    FALLING = "fencing number fell"  # S3
    UNLEASED = "lived without a lease"  # S2, S3
    SETTLED_TWICE = "settled twice"  # S5
    LOST = "lost"  # S1: an acknowledged task ends
    TWO_ENDS = "two ends"  # S1: in one place
    NOWHERE = "from nowhere"  # S2
    STARTS = "more starts than interruptions explain"  # S7, T4
    LEFT = "left alive"  # P5
    WORKER_ENDED = "worker ended unasked"  # L4
    SPOILT = "history spoilt"  # the evidence itself is wrong


class Violation(NamedTuple):
    """One thing that must not be."""

    rule: Rule
    what: str


@dataclass(frozen=True)
class Interruption:
    """A blow that struck; boottime in seconds.

    Attributes:
        kind: for the report.
        keeper: the guardian whose tasks it hit; None = everybody's.
        at: when it began.
        until: when it was over.
        has_margin: whether it is told how long before their expiry the trees were dead that it cost their lease.
    """

    kind: str
    keeper: int | None
    at: float
    until: float
    has_margin: bool = False


@dataclass
class Evidence:
    """All that is known after a campaign.

    Attributes:
        history: what the tasks wrote.
        leases: what the store wrote of each delivery.
        ends: where the store says that each task is, once it has ended or not; a list, for there may be two.
        acknowledged: the tasks whose push succeeded, and how often each starts when nothing interrupts it.
        unknown: those whose push may have succeeded (`PushUnknown`), alike.
        interruptions: the blows that struck.
        lease_seconds: how long after a blow an attempt may still have been hit by what it left.
        left: processes that lived when all was over.
        ended_unasked: workers that no blow had killed.
    """

    history: History
    leases: Mapping[Attempt, Lease]
    ends: Mapping[str, Sequence[str]]
    acknowledged: Mapping[str, int]
    unknown: Mapping[str, int] = field(default_factory=dict)
    interruptions: Sequence[Interruption] = ()
    lease_seconds: float = 5.0
    left: int = 0
    ended_unasked: int = 0


def check(evidence: Evidence) -> list[Violation]:
    """Return whatever must not be; an empty list is a pass."""
    return [
        *_spoilt(evidence),
        *_fencing(evidence),
        *_overlaps(evidence),
        *_outlived(evidence),
        *_settled(evidence),
        *_reconciled(evidence),
        *_starts(evidence),
        *_left(evidence),
    ]


def margins(evidence: Evidence) -> dict[str, list[float]]:
    """Return how long before the last expiry that the store granted each tree was dead that a blow cost its lease.

    By kind of blow, smallest first, in seconds. Those that ended by themselves do not count, nor those that died
    while something else had struck, too. A tree dies at most a beat after its last line: that beat is taken off, so
    the true margins are larger.
    """
    found: dict[str, list[float]] = defaultdict(list)
    for attempt, life in evidence.history.lives.items():
        lease = evidence.leases.get(attempt, Lease())
        if lease.settlements or not lease.expiries or life.has_ended:
            continue
        causes = [each for each in evidence.interruptions if _is_of(each, life) and each.at <= life.last <= each.until]
        if causes and all(each.has_margin for each in causes):
            found[causes[0].kind].append(lease.expiries[-1] - life.last - BEAT_SECONDS)
    return {kind: sorted(each) for kind, each in sorted(found.items())}


def _spoilt(evidence: Evidence) -> Iterator[Violation]:
    yield from (Violation(Rule.SPOILT, text) for text in evidence.history.spoilt)
    for attempt, life in evidence.history.lives.items():
        if not life.starts:
            yield Violation(Rule.SPOILT, f"{attempt} has lines and no start")


def _fencing(evidence: Evidence) -> Iterator[Violation]:
    for attempt, life in evidence.history.lives.items():
        if len(life.starts) > 1 or len(life.tokens) > 1:
            yield Violation(Rule.REPEATED, f"{attempt} started {len(life.starts)} times as {sorted(life.tokens)}")
    for lives in _by_task(evidence).values():
        for earlier, later in pairwise(lives):
            if later.fencing < earlier.fencing:
                yield Violation(Rule.FALLING, f"{later.attempt} began after {earlier.attempt}")


def _overlaps(evidence: Evidence) -> Iterator[Violation]:
    for lives in _by_task(evidence).values():
        latest = lives[0]
        for earlier, later in pairwise(lives):
            latest = max(latest, earlier, key=lambda life: life.last)
            if later.first <= latest.last:
                early = latest.last - later.first
                yield Violation(Rule.OVERLAP, f"{later.attempt} began {early:.3f} s before {latest.attempt} was dead")


def _outlived(evidence: Evidence) -> Iterator[Violation]:
    for attempt, life in evidence.history.lives.items():
        lease = evidence.leases.get(attempt)
        if lease is None or not lease.expiries:
            yield Violation(Rule.UNLEASED, f"{attempt}")
            continue
        ends = {"expired": lease.expiries[-1]}
        if lease.ended is not None:
            ends["was ended"] = lease.ended + WALL_SECONDS
        how, end = min(ends.items(), key=lambda each: each[1])
        if life.last >= end:
            yield Violation(Rule.OUTLIVED, f"{attempt} lived {life.last - end:.3f} s after its lease {how}")


def _settled(evidence: Evidence) -> Iterator[Violation]:
    for attempt, lease in evidence.leases.items():
        if len(lease.settlements) > 1:
            yield Violation(Rule.SETTLED_TWICE, f"{attempt}: {lease.settlements}")


def _reconciled(evidence: Evidence) -> Iterator[Violation]:
    known = evidence.acknowledged.keys() | evidence.unknown.keys()
    for task, ends in evidence.ends.items():
        if task not in known:
            yield Violation(Rule.NOWHERE, f"{task} is {ends} and nobody pushed it")
        if len(ends) > 1:
            yield Violation(Rule.TWO_ENDS, f"{task} is {ends}")
        if not ENDED & set(ends):
            yield Violation(Rule.LOST, f"{task} is {ends} after the drain")
    for task in sorted(evidence.acknowledged.keys() - evidence.ends.keys()):
        yield Violation(Rule.LOST, f"{task} was acknowledged, and is nowhere")
    for task in sorted({attempt.task for attempt in evidence.history.lives} - known):
        yield Violation(Rule.NOWHERE, f"{task} ran and nobody pushed it")


def _starts(evidence: Evidence) -> Iterator[Violation]:
    planned = {**evidence.unknown, **evidence.acknowledged}
    for task, lives in _by_task(evidence).items():
        hit = sum(_was_interrupted(evidence, life) for life in lives)
        starts = sum(len(life.starts) for life in lives)
        if starts > planned.get(task, 0) + hit:
            text = f"{task} started {starts} times: {planned.get(task, 0)} planned, {hit} of its attempts were hit"
            yield Violation(Rule.STARTS, text)


def _left(evidence: Evidence) -> Iterator[Violation]:
    if evidence.left:
        yield Violation(Rule.LEFT, f"{evidence.left} processes")
    if evidence.ended_unasked:
        yield Violation(Rule.WORKER_ENDED, f"{evidence.ended_unasked} times")


def _by_task(evidence: Evidence) -> dict[str, list[Life]]:
    """Return the lives of each task in the order of their beginnings."""
    found: dict[str, list[Life]] = defaultdict(list)
    for life in sorted(evidence.history.lives.values(), key=lambda life: life.first):
        found[life.attempt.task].append(life)
    return found


def _was_interrupted(evidence: Evidence, life: Life) -> bool:
    lease = evidence.leases.get(life.attempt, Lease())
    return any(_touches(each, life, lease, evidence.lease_seconds) for each in evidence.interruptions)


def _touches(blow: Interruption, life: Life, lease: Lease, seconds: float) -> bool:
    """Return whether an attempt lived, or was not settled yet, while a blow or what it left could hit it."""
    unsettled_until = life.last + seconds if lease.ended is None else max(life.last, lease.ended)
    return _is_of(blow, life) and life.first <= blow.until + seconds and unsettled_until >= blow.at


def _is_of(blow: Interruption, life: Life) -> bool:
    return blow.keeper is None or blow.keeper == life.keeper


def counts(violations: Sequence[Violation]) -> dict[str, int]:
    """Count the violations by rule; the rules that held are there, too."""
    found = Counter(each.rule for each in violations)
    return {rule.value: found[rule] for rule in Rule}
