"""Which fault strikes which call: scripted for the next calls, standing, or drawn from a seed; and a record."""

import asyncio
import random
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from jobq.clock import Clock, SystemClock

BACKEND_VERBS: Final = frozenset(
    {"create", "push", "receive", "peek", "stats", "clear", "dead_letters", "redrive", "purge_dead"}
)
SETTLE_VERBS: Final = frozenset({"complete", "requeue", "release", "dead_letter"})
DELIVERY_VERBS: Final = SETTLE_VERBS | {"renew", "checkpoint"}


class Fault(StrEnum):
    """What can befall one call."""

    REFUSE = "refuse"  # BackendUnavailable at once; nothing is done
    HANG = "hang"  # no answer until released or cancelled; nothing is done, then BackendUnavailable
    ANSWER_LATE = "answer_late"  # done at once, answered after an event or a time
    LOSE_ANSWER = "lose_answer"  # done, then PushUnknown, SettlementUnknown or BackendUnavailable


@dataclass(frozen=True)
class BackendCall:
    """One call that was begun: the verb, the queue or task ids it was for, and the fault that struck it."""

    verb: str
    subject: str
    fault: Fault | None


@dataclass(frozen=True)
class Planned:
    """The fault of one call, and what ends it: an event, a clock's time, or `Faults.release`."""

    fault: Fault | None = None
    until: asyncio.Event | float | None = None
    clock: Clock = field(default_factory=SystemClock)
    released: asyncio.Event = field(default_factory=asyncio.Event)

    async def held(self) -> None:
        """Wait for whichever end comes first."""
        ends: list[asyncio.Task[object]] = [asyncio.create_task(self.released.wait())]
        if isinstance(self.until, asyncio.Event):
            ends.append(asyncio.create_task(self.until.wait()))
        elif self.until is not None:
            ends.append(asyncio.create_task(self._at(self.until)))
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for end in ends:
                end.cancel()
            await asyncio.wait(ends)

    async def _at(self, boottime: float) -> None:
        await self.clock.sleep_until(boottime)


class Faults:
    """The script of faults and the record of calls; for one event loop.

    Args:
        clock: for an ANSWER_LATE that ends by time.

    Attributes:
        calls: every call that was begun, oldest first.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self.calls: list[BackendCall] = []
        self._clock: Clock = clock or SystemClock()
        self._next: dict[str, deque[Planned]] = {}
        self._always: dict[str, Callable[[], Planned]] = {}
        self._random: random.Random | None = None
        self._rates: dict[Fault, float] = {}
        self._verbs: frozenset[str] = frozenset()
        self._counts: Counter[str] = Counter()
        self._released = asyncio.Event()
        self._awaited: list[tuple[str, int, asyncio.Event]] = []

    def next(self, verb: str, fault: Fault, *, times: int = 1, until: asyncio.Event | float | None = None) -> None:
        """Strike the next calls of a verb; `until` (an event, or a boottime) ends a HANG or lets ANSWER_LATE answer."""
        plan = self._next.setdefault(_known(verb), deque())
        plan.extend(self._planned(fault, until) for _ in range(times))

    def always(self, verb: str, fault: Fault, *, until: asyncio.Event | float | None = None) -> None:
        """Strike every call of a verb that `next` says nothing of, until `clear`."""
        self._always[_known(verb)] = lambda: self._planned(fault, until)

    def seeded(self, seed: int, rates: Mapping[Fault, float], verbs: frozenset[str] | None = None) -> None:
        """Draw faults for all other calls: same seed and same calls, same faults.

        Args:
            seed: of the generator.
            rates: the share of calls that each fault strikes; together at most 1.
            verbs: those struck; None = all.
        """
        if sum(rates.values()) > 1:
            raise ValueError(f"the rates of all faults sum up to {sum(rates.values())}, more than 1")
        self._random = random.Random(seed)  # noqa: S311 - to be repeatable, not secret
        self._rates = dict(rates)
        self._verbs = BACKEND_VERBS | DELIVERY_VERBS if verbs is None else frozenset(_known(verb) for verb in verbs)

    def clear(self, verb: str | None = None) -> None:
        """Strike no more, one verb or all; calls that hang stay so until `release`."""
        for name in [_known(verb)] if verb else [*self._next, *self._always]:
            self._next.pop(name, None)
            self._always.pop(name, None)
        self._verbs = self._verbs - {verb} if verb else frozenset()

    def release(self) -> None:
        """Let every call that hangs or answers late go on now; later ones are held anew."""
        self._released.set()
        self._released = asyncio.Event()

    def count(self, verb: str) -> int:
        """Return how many calls of a verb have begun."""
        return self._counts[_known(verb)]

    async def begun(self, verb: str, number: int = 1) -> None:
        """Return once so many calls of a verb have begun, counted from the start."""
        if self.count(verb) < number:
            reached = asyncio.Event()
            self._awaited.append((verb, number, reached))
            await reached.wait()

    def begin(self, verb: str, subject: str) -> Planned:
        """Record a call and return what strikes it; for the wrappers."""
        planned = self._plan(verb)
        self.calls.append(BackendCall(verb, subject, planned.fault))
        self._counts[verb] += 1
        for wanted, number, reached in self._awaited:
            if wanted == verb and self._counts[verb] >= number:
                reached.set()
        self._awaited = [waiting for waiting in self._awaited if not waiting[2].is_set()]
        return planned

    def _plan(self, verb: str) -> Planned:
        if scripted := self._next.get(verb):
            planned = scripted.popleft()
            # A release before the call was made is not meant for it.
            return Planned(planned.fault, planned.until, self._clock, self._released)
        if verb in self._always:
            return self._always[verb]()
        if self._random is not None and verb in self._verbs:
            return self._planned(self._drawn(self._random.random()), None)
        return Planned()

    def _drawn(self, number: float) -> Fault | None:
        for fault, rate in self._rates.items():
            number -= rate
            if number < 0:
                return fault
        return None

    def _planned(self, fault: Fault | None, until: asyncio.Event | float | None) -> Planned:
        return Planned(fault, until, self._clock, self._released)


def _known(verb: str) -> str:
    if verb not in BACKEND_VERBS | DELIVERY_VERBS:
        raise ValueError(f"{verb!r} is no verb of the protocol")
    return verb
