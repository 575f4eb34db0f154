"""The menu: what befalls one worker, or the store, and how it is known to have struck."""

import asyncio
import math
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import product
from typing import Final, TypeVar

from tests.chaos.checker import Interruption
from tests.chaos.crew import BLOCK_LEASES, Member
from tests.chaos.processes import BLOCK, PAIRS, Case
from tests.chaos.processes import Blow as Hit
from tests.chaos.stores import Store
from tests.support.tcp_proxy import Direction, TcpProxy, TcpStrike

T = TypeVar("T")
# In lengths of the lease.
LONGER_THAN_THE_LEASE: Final = (1.05, 2.0)
PARTITION: Final = (0.5, 2.0)
BROKER_AWAY: Final = (0.0, 1.0)
DELAY: Final = (0.02, 0.8)
LATE_ANSWER: Final = (0.3, 1.5)


class Kind(StrEnum):
    """What may befall."""

    KILL_WORKER = "kill worker"
    KILL_GUARDIAN = "kill guardian"
    KILL_WATCHER = "kill watcher"
    STOP_WORKER = "stop worker"
    STOP_GUARDIAN = "stop guardian"
    STOP_WATCHER = "stop watcher"
    BLOCK_WORKER = "block worker"  # its event loop stands still
    PAIR = "pair"
    REFUSE = "refuse"
    BLACKHOLE = "blackhole"
    REQUESTS_LOST = "requests lost"
    ANSWERS_LOST = "answers lost"
    DELAY = "delay"
    ONE_VERB = "one verb"  # of the store's answers, refuses, hangs, or loses its answers, or they come late
    KILL_BROKER = "kill broker"


PARTITIONS: Final = (Kind.REFUSE, Kind.BLACKHOLE, Kind.REQUESTS_LOST, Kind.ANSWERS_LOST, Kind.DELAY, Kind.ONE_VERB)
_STOPS: Final = (Kind.STOP_WORKER, Kind.STOP_GUARDIAN, Kind.STOP_WATCHER, Kind.BLOCK_WORKER)
_WITH_MARGINS: Final = {*PARTITIONS, Kind.STOP_WORKER, Kind.BLOCK_WORKER, Kind.KILL_WORKER, Kind.KILL_GUARDIAN}
# Those that end with everybody able to guard gone at once are the stated gap of a machine without control groups.
_PAIRS_WITH_WATCHER: Final[list[Case]] = [
    (Hit(verb, "watcher"), Hit(other, "worker")) for verb, other in product(("kill", "stop and continue"), repeat=2)
]
# Of each class in every hand, so that a short campaign has all of them; those that come by turns are below.
_HAND: Final = (Kind.KILL_WORKER, Kind.KILL_WORKER, Kind.KILL_GUARDIAN, Kind.PAIR)
_PARTITIONS_IN_HAND: Final = 3
_ONE_VERB_IN_HAND: Final = 2


def deck(store: Store, choose: random.Random, only: Sequence[Kind] = ()) -> Iterator[Kind]:
    """Yield for ever what is to befall next: hand after hand, each shuffled; or `only` these, by turns."""
    if only:
        yield from _by_turns([kind for kind in only if kind is not Kind.ONE_VERB or store.verbs], choose)
    stops, rare = _by_turns(_STOPS, choose), _by_turns((Kind.KILL_WATCHER, Kind.PAIR), choose)
    partitions = _by_turns([kind for kind in PARTITIONS if kind is not Kind.ONE_VERB], choose)
    while True:
        hand = [*_HAND, next(stops), next(rare), *[Kind.ONE_VERB] * _ONE_VERB_IN_HAND * bool(store.verbs)]
        hand += [next(partitions) for _ in range(_PARTITIONS_IN_HAND) if store.port]
        choose.shuffle(hand)
        yield from hand


def _by_turns(kinds: Sequence[T], choose: random.Random) -> Iterator[T]:
    """Yield all of them for ever, each time in another order."""
    while True:
        yield from choose.sample(kinds, len(kinds))


@dataclass
class Struck:
    """A blow that was dealt.

    Attributes:
        kind: what.
        detail: which pair, or what befell which verb.
        at, until: boottime in seconds.
        keeper: the guardian that was hit; None = the store was.
        has_struck: whether it hit anything while a tree lived.
    """

    kind: Kind
    at: float
    keeper: int | None
    detail: str = ""
    until: float = 0.0
    has_struck: bool = False

    def interruption(self) -> Interruption:
        """Return what the checker is given of it."""
        return Interruption(self.kind, self.keeper, self.at, self.until, has_margin=self.kind in _WITH_MARGINS)


@dataclass
class Striker:
    """Deals blows.

    Attributes:
        store: of the campaign.
        choose: draws lengths, pairs and verbs.
        lease_seconds: of the workers.
        strikes: what may befall one verb.
        struck: all blows so far.
    """

    store: Store
    choose: random.Random
    lease_seconds: float
    strikes: Sequence[TcpStrike]
    struck: list[Struck] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._verbs = _by_turns(list(self.store.verbs), self.choose)

    async def strike(self, kind: Kind, member: Member) -> Struck:
        """Strike one worker; return when the blow is over."""
        blow = Struck(kind, boottime(), member.processes.guardian)
        self.struck.append(blow)
        try:
            if kind in PARTITIONS:
                await self._cut_off(blow, member)
            else:
                await self._hit(blow, member)
        finally:
            blow.until = boottime()
        return blow

    async def strike_store(self, members: Sequence[Member]) -> Struck:
        """Kill the store, and start it again a while later."""
        blow = Struck(Kind.KILL_BROKER, boottime(), None)
        self.struck.append(blow)
        had_trees = any(member.processes.leaders() for member in members)
        try:
            await self.store.kill()
            await asyncio.sleep(self._draw(BROKER_AWAY))  # the time itself is the blow
        finally:
            await self.store.restart()
            blow.until = boottime()
        blow.has_struck = had_trees
        return blow

    async def _hit(self, blow: Struck, member: Member) -> None:
        case, seconds = self._case(blow.kind), self._draw(LONGER_THAN_THE_LEASE)
        blow.detail = ", then ".join(map(str, case)) if blow.kind is Kind.PAIR else ""
        member.processes.aim()
        had_trees = bool(member.processes.leaders()) and not member.has_ended
        member.was_struck = True
        if blow.kind is Kind.BLOCK_WORKER:
            member.processes.send(BLOCK, "worker")
            await asyncio.sleep(BLOCK_LEASES * self.lease_seconds)  # the time itself is the blow
        for thread in member.processes.strike(case, seconds):
            await asyncio.to_thread(thread.join)
        if any(verb == "stop" for verb, _ in case):
            await asyncio.sleep(seconds)  # the time itself is the blow
        member.processes.resume()
        blow.has_struck = had_trees and not (blow.kind is Kind.BLOCK_WORKER and member.has_ended)
        if any(verb == "kill" and target != "leader" for verb, target in case):
            await member.until_dying()

    def _case(self, kind: Kind) -> Case:
        if kind is Kind.PAIR:
            return self.choose.choice([*PAIRS, *_PAIRS_WITH_WATCHER])
        if kind is Kind.BLOCK_WORKER:
            return ()
        verb, target = kind.split(" ")
        return (Hit("stop and continue" if kind in _STOPS else verb, target),)

    async def _cut_off(self, blow: Struck, member: Member) -> None:
        proxy, seconds = member.proxy, self._draw(PARTITION)
        assert proxy is not None
        had_trees, before = bool(member.processes.leaders()), proxy.struck
        try:
            if blow.kind is Kind.ONE_VERB:
                self._strike_verb(proxy, blow)
            else:
                await _partition(proxy, blow.kind, self._draw(DELAY))
            await asyncio.sleep(seconds)  # the time itself is the blow
        finally:
            await proxy.heal()
        blow.has_struck = had_trees and proxy.struck > before

    def _strike_verb(self, proxy: TcpProxy, blow: Struck) -> None:
        verb, strike = next(self._verbs), self.choose.choice(self.strikes)
        blow.detail = f"{verb}: {strike}"
        proxy.late_answer_seconds = self._draw(LATE_ANSWER)
        pattern = self.store.verbs[verb]
        proxy.strike(strike, lambda sent: pattern.match(sent) is not None, count=math.inf)

    def _draw(self, leases: tuple[float, float]) -> float:
        """Return seconds, drawn from a range in lengths of the lease."""
        return self.choose.uniform(*leases) * self.lease_seconds


async def _partition(proxy: TcpProxy, kind: Kind, seconds: float) -> None:
    match kind:
        case Kind.REFUSE:
            await proxy.refuse()
        case Kind.BLACKHOLE:
            proxy.silence()
        case Kind.REQUESTS_LOST:
            proxy.silence(Direction.REQUESTS)
        case Kind.ANSWERS_LOST:
            proxy.silence(Direction.ANSWERS)
        case Kind.DELAY:
            proxy.delay(seconds)


def boottime() -> float:
    """Return CLOCK_BOOTTIME in seconds."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
