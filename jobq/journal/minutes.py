"""What ended in each minute, and how many tasks waited then: the figures of the charts, and what is made of them.

Ends are counted from the attempts that the journal holds, so a minute can be computed later; the depth of a queue can
only be looked at while it is so. A minute that nobody has looked at is a gap, and drawn as one.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import Any, Final, Self

from jobq.formats.lazy_dataclass import dataclass
from jobq.journal.notes import MOST_COUNT, checked_count, checked_time, decoded
from jobq.journal.records import RELEASED, TaskState
from jobq.journal.views import QueueLine
from jobq.task import OutcomeKind

MINUTE: Final = 60
HOUR: Final = 3600
MOST_SAMPLED: Final = 1000  # attempts of a minute, for how long they ran and had waited; their number is exact
_LEAST_SECONDS: Final = 0.1
_BOUNDS: Final = 24  # of a histogram: 0.1 s, 0.2 s, 0.4 s ... 4.9 days, and all beyond
_MOST_NAMES: Final = 24  # of outcomes in one note: a worker may send any, and each goes into it
_MOST_NAME: Final = 40  # characters
_OTHER: Final = "other"  # any outcome beyond that
_OWN: Final = frozenset({*OutcomeKind, RELEASED})
_SHOWN: Final = (TaskState.READY, TaskState.SCHEDULED, TaskState.RUNNING, TaskState.EXPIRED, TaskState.DEAD)


def start_of(at: float, step: int = MINUTE) -> int:
    """Return when the minute, or other step, of a time began: seconds since the epoch."""
    return int(at // step) * step


@dataclass(frozen=True, kw_only=True)
class EndedAttempts:
    """The attempts that ended within a time.

    Attributes:
        outcomes: how many, by `jobq.task.OutcomeKind`, or `released`.
        runs: of up to MOST_SAMPLED a minute, how many ran so long: numbers by logarithmic bounds, to be added up.
        waits: of the same, how many had waited so long for their start, likewise; of some it is not known.
        minutes: of how many minutes this is; others of the same time are not known.
    """

    outcomes: Mapping[str, int]
    runs: Sequence[int] = ()
    waits: Sequence[int] = ()
    minutes: int = 1

    @property
    def total(self) -> int:
        """How many attempts."""
        return sum(self.outcomes.values())

    def encode(self) -> str:
        """Return it as JSON."""
        held = {
            "outcomes": dict(self.outcomes),
            "runs": list(self.runs),
            "waits": list(self.waits),
            "minutes": self.minutes,
        }
        return json.dumps(held, separators=(",", ":"))

    @classmethod
    def decode(cls, text: str) -> Self | None:
        """Return what was encoded; None = it is nothing that we know, such as a newer jobq's."""
        return decoded(text, cls._read)

    @classmethod
    def _read(cls, held: Mapping[str, Any]) -> Self:
        return cls(
            outcomes=_few({name: checked_count(number) for name, number in held["outcomes"].items()}),
            runs=_buckets(held["runs"]),
            waits=_buckets(held["waits"]),
            minutes=max(1, checked_count(held["minutes"])),
        )

    @classmethod
    def of(cls, outcomes: Mapping[str, int], ran: Iterable[float], waited: Iterable[float] = ()) -> Self:
        """Return that of attempts that were counted.

        Args:
            outcomes: how many, by how they ended.
            ran: the seconds that some of them ran.
            waited: the seconds that some of them had waited for their start.
        """
        return cls(outcomes=_few(outcomes), runs=_histogram(ran), waits=_histogram(waited))

    @classmethod
    def sum(cls, parts: Iterable[Self]) -> Self:
        """Return that of all these times together."""
        known = list(parts)
        outcomes: dict[str, int] = {}
        for part in known:
            for name, number in part.outcomes.items():
                outcomes[name] = outcomes.get(name, 0) + number
        return cls(
            outcomes=_few(outcomes),
            runs=_added(part.runs for part in known),
            waits=_added(part.waits for part in known),
            minutes=min(MOST_COUNT, sum(part.minutes for part in known)),
        )

    def ran_seconds(self, share: float) -> float | None:
        """Return for how long this share of them ran at most, as the bounds tell it; None = nothing is known.

        Args:
            share: such as 0.95.
        """
        return _seconds(self.runs, share)

    def waited_seconds(self, share: float) -> float | None:
        """Return how long this share of them had waited for their start at most, as the bounds tell it."""
        return _seconds(self.waits, share)


def sampled(outcomes: Mapping[str, int], records: Iterable[str]) -> EndedAttempts:
    """Return that of attempts that were counted, and of the records of some of them, as JSON."""
    ran, waited = list[float](), list[float]()
    for record in records:
        held = json.loads(record)
        if (started := held.get("started")) is not None:
            ran.append(max(0.0, held["ended"] - started))
        if (seconds := held.get("waited")) is not None:
            waited.append(seconds)
    return EndedAttempts.of(outcomes, ran, waited)


def _histogram(seconds: Iterable[float]) -> tuple[int, ...]:
    counts = [0] * _BOUNDS
    for each in seconds:
        counts[_bucket(each)] += 1
    while counts and not counts[-1]:
        counts.pop()
    return tuple(counts)


def _few(outcomes: Mapping[str, int]) -> dict[str, int]:
    """Return them by so few names that a note holds them: jobq's own, then the most frequent; the rest as one."""
    found: dict[str, int] = {}
    for name in sorted(outcomes, key=lambda name: (name not in _OWN, -outcomes[name])):
        is_kept = len(found) < _MOST_NAMES and len(name) <= _MOST_NAME
        kept = name if is_kept else _OTHER
        found[kept] = min(MOST_COUNT, found.get(kept, 0) + outcomes[name])
    return found


def _buckets(held: Sequence[Any]) -> tuple[int, ...]:
    return tuple(map(checked_count, held[:_BOUNDS]))


def _added(parts: Iterable[Sequence[int]]) -> tuple[int, ...]:
    return tuple(min(MOST_COUNT, sum(numbers)) for numbers in zip_longest(*parts, fillvalue=0))


def _seconds(counts: Sequence[int], share: float) -> float | None:
    wanted = share * sum(counts)
    for at, number in enumerate(counts):
        if number and wanted <= number:
            below = 0.0 if at == 0 else _LEAST_SECONDS * 2.0 ** (at - 1)
            return below + (_LEAST_SECONDS * 2.0**at - below) * wanted / number
        wanted -= number
    return None


def _bucket(seconds: float) -> int:
    if seconds <= _LEAST_SECONDS:
        return 0
    return min(_BOUNDS - 1, math.ceil(math.log2(seconds / _LEAST_SECONDS)))


@dataclass(frozen=True, kw_only=True)
class QueueDepth:
    """How a queue was at one moment, or within an hour on average.

    Attributes:
        counts: tasks by state, each counted to `jobq.journal.views.MOST_COUNTED`; one that there was no time for is
            missing.
        oldest_seconds: for how long the oldest ready task had waited, as `QueueLine` says it; None = none did.
    """

    counts: Mapping[str, int]
    oldest_seconds: float | None = None

    def encode(self) -> str:
        """Return it as JSON."""
        return json.dumps({"counts": dict(self.counts), "oldest": self.oldest_seconds}, separators=(",", ":"))

    @classmethod
    def decode(cls, text: str) -> Self | None:
        """Return what was encoded; None = it is nothing that we know, such as the mark of who looks just now."""
        return decoded(text, cls._read)

    @classmethod
    def _read(cls, held: Mapping[str, Any]) -> Self:
        oldest = held["oldest"]
        return cls(
            counts={name: checked_count(number) for name, number in held["counts"].items() if name in _SHOWN},
            oldest_seconds=None if oldest is None else checked_time(oldest),
        )

    @classmethod
    def of(cls, line: QueueLine) -> Self:
        """Return that of a queue that was looked at."""
        counts = {str(state): line.counts[state].number for state in _SHOWN if state in line.counts}
        return cls(counts=counts, oldest_seconds=line.oldest_ready_seconds)

    @classmethod
    def mean(cls, parts: Sequence[Self]) -> Self:
        """Return the average of these, and the longest wait of all."""
        names = dict.fromkeys(name for part in parts for name in part.counts)
        known = {name: [part.counts[name] for part in parts if name in part.counts] for name in names}
        waits = [part.oldest_seconds for part in parts if part.oldest_seconds is not None]
        counts = {name: round(sum(found) / len(found)) for name, found in known.items()}
        return cls(counts=counts, oldest_seconds=max(waits, default=None))


@dataclass(frozen=True, kw_only=True)
class SeriesPoint:
    """One step of a chart.

    Attributes:
        at: when it began, seconds since the epoch.
        ended: what ended within it; None = nobody has looked.
        depth: as it was then on average; None = nobody has looked.
    """

    at: int
    ended: EndedAttempts | None
    depth: QueueDepth | None

    def rate(self, outcomes: Iterable[str]) -> float | None:
        """Return how many attempts ended so in a minute that is known; None = none is."""
        if self.ended is None:
            return None
        return sum(self.ended.outcomes.get(each, 0) for each in outcomes) / self.ended.minutes


def in_steps(
    ended: Mapping[int, EndedAttempts], depth: Mapping[int, QueueDepth], since: int, until: int, step: int
) -> list[SeriesPoint]:
    """Return the points of a chart, without a hole.

    Args:
        ended: by the beginning of its minute or hour; what is of no point is left out.
        depth: likewise.
        since: the beginning of the first point, seconds since the epoch.
        until: the end of the last one.
        step: seconds of one.
    """
    ends: dict[int, list[EndedAttempts]] = {}
    depths: dict[int, list[QueueDepth]] = {}
    for at, one in ended.items():
        ends.setdefault((at - since) // step, []).append(one)
    for at, other in depth.items():
        depths.setdefault((at - since) // step, []).append(other)
    return [
        SeriesPoint(
            at=since + number * step,
            ended=EndedAttempts.sum(ends[number]) if number in ends else None,
            depth=QueueDepth.mean(depths[number]) if number in depths else None,
        )
        for number in range(math.ceil((until - since) / step))
    ]
