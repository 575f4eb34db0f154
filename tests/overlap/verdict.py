"""What a campaign proves: no overlap, no tree beyond its lease, enough faults; and the margins, printed."""

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Self

from tests.overlap.blows import COSTLY, LEASE_SECONDS, Blow, Kind
from tests.overlap.campaign import Record
from tests.overlap.store_truth import Attempt
from tests.overlap.task_program import ROLES

ALL: Final = "all that cost a lease"


@dataclass(frozen=True)
class Margins:
    """How long before the expiry of its lease each tree was seen dead, in seconds, smallest first.

    Attributes:
        true: before the last expiry that the store granted, by the store's own record, no matter who heard of it.
        known: before the last expiry that the worker can have heard of: renewals whose answer the fault took away do
            not count. The same as `true` for all faults but late and lost answers.
        took: not a margin: how long after its fault was injected each was seen dead.
    """

    true: Sequence[float]
    known: Sequence[float]
    took: Sequence[float]

    @classmethod
    def of(cls, found: Iterable[tuple[float, float, float]]) -> Self:
        true, known, took = zip(*found, strict=True)
        return cls(sorted(true), sorted(known), sorted(took))


@dataclass(frozen=True)
class Interval:
    """When a tree surely or possibly lived: from its first own stamp until it was seen dead."""

    attempt: Attempt
    first: float
    end: float


def violations(record: Record, floors: Mapping[Kind, int], floor: int) -> list[str]:
    """Return in words whatever must not be; an empty list is a pass.

    Args:
        record: of the campaign.
        floors: how many faults of each kind must have struck.
        floor: how many of those that cost a living tree its lease, in all. A run with fewer is void.
    """
    return [
        *_overlaps(record),
        *_outlived(record),
        *_unborn(record),
        *_unsettled(record),
        *_left(record),
        *_void(record, floors, floor),
    ]


def struck(record: Record) -> Counter[Kind]:
    """Count the faults that struck, by kind. One that hit two trees is one."""
    return Counter(blow.kind for blow in record.blows if blow.has_struck and _is_lost(record, blow))


def margins(record: Record, *, together: bool = False) -> dict[str, Margins]:
    """Return the margins of all trees that faults hit, by kind, or those of COSTLY faults under one name."""
    found: dict[str, list[tuple[float, float, float]]] = defaultdict(list)
    for blow in record.blows:
        for tree in blow.cost:
            assert tree.seen_dead is not None
            expiries = record.leases[tree.attempt].expiries
            heard = blow.renewals.get(tree.attempt.task, float("inf"))
            known = max(expiry for expiry in expiries if expiry == expiries[0] or expiry - LEASE_SECONDS < heard)
            if not together or blow.kind in COSTLY:
                name = ALL if together else blow.kind
                found[name].append((expiries[-1] - tree.seen_dead, known - tree.seen_dead, tree.seen_dead - blow.at))
    return {name: Margins.of(figures) for name, figures in found.items()}


def table(record: Record) -> Iterator[str]:
    """Show the counts and the margins, by kind and in all."""
    counts: Counter[str] = Counter({str(kind): count for kind, count in struck(record).items()})
    counts[ALL] = _costly(struck(record))
    missed = len(record.blows) - sum(struck(record).values())
    lived = f"{len(record.trees)} trees of {len(record.states)} tasks under {len(record.leases)} leases"
    yield f"{lived}; {missed} faults struck nothing and were repeated"
    yield f"{'':<38}|  margin: from dead tree to expiry, s |  as known  | dead after, s"
    yield (
        f"{'fault':<24}{'faults':>7}{'trees':>6} |{'smallest':>10}{'1st pct':>9}{'median':>8}{'largest':>9} |"
        f"{'smallest':>10}  |{'median':>8}{'largest':>8}"
    )
    for name, figures in [*sorted(margins(record).items()), *margins(record, together=True).items()]:
        true, took = figures.true, figures.took
        first = true[0] if len(true) == 1 else statistics.quantiles(true, n=100, method="inclusive")[0]
        yield (
            f"{name:<24}{counts[name]:>7}{len(true):>6} |"
            f"{true[0]:>10.3f}{first:>9.3f}{statistics.median(true):>8.3f}{true[-1]:>9.3f} |"
            f"{figures.known[0]:>10.3f}  |{statistics.median(took):>8.3f}{took[-1]:>8.3f}"
        )


def _is_lost(record: Record, blow: Blow) -> bool:
    """Return whether the store saw at least one of the leases that it cost run out, never settled."""
    if blow.kind not in COSTLY:
        return True
    return any(not record.leases[tree.attempt].settlements for tree in blow.cost)


def intervals(record: Record) -> dict[str, list[Interval]]:
    """Return the life of each tree, by task, in the order of their beginnings."""
    firsts: dict[Attempt, float] = {}
    ends: dict[Attempt, float] = {}
    for (attempt, _), (first, last) in record.stamps.items():
        firsts[attempt] = min(first, firsts.get(attempt, first))
        ends[attempt] = max(last, ends.get(attempt, last))
    for attempt, tree in record.trees.items():
        ends[attempt] = max(ends[attempt], tree.seen_dead or float("inf"))
    found: dict[str, list[Interval]] = defaultdict(list)
    for attempt in sorted(firsts, key=firsts.__getitem__):
        found[attempt.task].append(Interval(attempt, firsts[attempt], ends[attempt]))
    return found


def _overlaps(record: Record) -> Iterator[str]:
    """S3 and P1: two trees of one task never live at once, and their fencing tokens rise."""
    for lives in intervals(record).values():
        latest = lives[0]
        for earlier, later in pairwise(lives):
            latest = max(latest, earlier, key=lambda life: life.end)
            if later.first <= latest.end:
                early = latest.end - later.first
                yield f"overlap: {later.attempt} began {early:.3f} s before {latest.attempt} was dead"
            if later.attempt.number <= earlier.attempt.number:
                yield f"fencing: {later.attempt} began after {earlier.attempt}"


def _outlived(record: Record) -> Iterator[str]:
    """P1: every tree, hit or not, is dead before its lease expires in the store."""
    for life in (life for lives in intervals(record).values() for life in lives):
        late = life.end - record.leases[life.attempt].expiries[-1]
        if late >= 0:
            yield f"outlived: {life.attempt} was dead {late:.3f} s after the expiry of its lease (inf: still lives)"
    for attempt, tree in record.trees.items():
        if tree.token.rpartition(".")[2] != str(attempt.number):
            yield f"fencing: {attempt} was given the token {tree.token}"
        if len(tree.lives) > len(ROLES):
            yield f"overlap: {attempt} was started more than once, it had {len(tree.lives)} processes"
        for pid, process in tree.lives.items():
            if process.seen_dead is not None and record.stamps[attempt, pid][1] > process.seen_dead:
                yield f"observer: {process.role} of {attempt} recorded itself alive after it was seen dead"


def _unborn(record: Record) -> Iterator[str]:
    """1.3(5): nothing is started under a lease of which the worker heard too late."""
    born = {attempt for attempt, _ in record.stamps}
    for blow in record.blows:
        yield from (f"born: {attempt} lived although '{blow.kind}'" for attempt in blow.unborn if attempt in born)


def _unsettled(record: Record) -> Iterator[str]:
    """S1, S5: every task is done, by one accepted completion; no lease was settled twice."""
    completions = Counter(dict.fromkeys(record.states, 0))
    for attempt, lease in record.leases.items():
        completions[attempt.task] += lease.settlements.count("done")
        if len(lease.settlements) > 1:
            yield f"settled: {attempt} was settled more than once: {lease.settlements}"
    for task, state in record.states.items():
        if state != "done" or completions[task] != 1:
            yield f"settled: task {task} is {state}, with {completions[task]} accepted completions"


def _left(record: Record) -> Iterator[str]:
    """P5: no process is left, and no worker ended but by a fault."""
    if record.left_alive:
        yield f"left: {len(record.left_alive)} processes"
    if record.ended_unasked:
        yield f"left: {record.ended_unasked} workers ended although nobody killed them"


def _void(record: Record, floors: Mapping[Kind, int], floor: int) -> Iterator[str]:
    counts = struck(record)
    for kind, wanted in floors.items():
        if counts[kind] < wanted:
            yield f"void: '{kind}' struck {counts[kind]} times of at least {wanted}"
    total = _costly(counts)
    if total < floor:
        yield f"void: {total} faults cost a lease, of at least {floor}"


def _costly(counts: Counter[Kind]) -> int:
    return sum(counts[kind] for kind in COSTLY)
