"""The faults of a campaign: what each does to one worker, and how it is known to have struck."""

import asyncio
import signal
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from jobq.testing.faults import Fault
from tests.overlap.crew import Member
from tests.overlap.observer import News, Observer, Tree, boottime
from tests.overlap.store_truth import Attempt
from tests.process.stage import QUICK

_LEASE: Final = QUICK["visibility_timeout"]
assert isinstance(_LEASE, timedelta)
LEASE_SECONDS: Final = _LEASE.total_seconds()
LIMIT_SECONDS: Final = 2.5 * LEASE_SECONDS  # how long a fault lasts when nothing comes of it
BLOCKED_SECONDS: Final = 1.15 * LEASE_SECONDS
_FIRST_LOOK_SECONDS: Final = 0.1
_SETTLES: Final = ("complete", "requeue", "release", "dead_letter")


class Kind(StrEnum):
    """What befalls a worker that runs one or two trees."""

    REFUSED = "backend refuses"
    HUNG = "backend hangs"
    LATE = "backend answers late"
    LOST = "backend loses answers"
    STOPPED = "worker stopped"
    BLOCKED = "worker blocked"
    KILLED = "worker killed"
    GUARDIAN_KILLED = "guardian killed"
    RECEIVE_LATE = "receive answers late"
    RECEIVE_LOST = "receive loses answer"
    COMPLETE_REFUSED = "complete is refused"
    COMPLETE_HUNG = "complete hangs"
    COMPLETE_LATE = "complete answers late"
    COMPLETE_LOST = "complete loses answer"


# Those that cost a living tree its lease, each time: the ones that count.
COSTLY: Final = tuple(Kind)[:8]
_OF_THE_BROKER: Final = {
    Kind.REFUSED: (Fault.REFUSE, ("renew", "receive", *_SETTLES)),
    Kind.HUNG: (Fault.HANG, ("renew", "receive", *_SETTLES)),
    Kind.LATE: (Fault.ANSWER_LATE, ("renew", *_SETTLES)),
    Kind.LOST: (Fault.LOSE_ANSWER, ("renew", *_SETTLES)),
}
_OF_RECEIVE: Final = {Kind.RECEIVE_LATE: Fault.ANSWER_LATE, Kind.RECEIVE_LOST: Fault.LOSE_ANSWER}
# A worker with a free slot has a receive under way, which a fault cannot strike any more.
NEED_ALL_SLOTS: Final = frozenset(_OF_RECEIVE)
_OF_COMPLETE: Final = {
    Kind.COMPLETE_REFUSED: Fault.REFUSE,
    Kind.COMPLETE_HUNG: Fault.HANG,
    Kind.COMPLETE_LATE: Fault.ANSWER_LATE,
    Kind.COMPLETE_LOST: Fault.LOSE_ANSWER,
}


@dataclass
class Blow:
    """One injected fault.

    Attributes:
        kind: what.
        at: boottime in seconds, read before it was injected.
        trees: what lived below the worker then, whole.
        renewals: when a renewal of a task was first struck.
        unborn: deliveries of which the worker could not know in time: nothing of them may ever live.
        struck_completion: whether a completion was struck.
    """

    kind: Kind
    at: float
    trees: Sequence[Tree]
    renewals: dict[str, float] = field(default_factory=dict)
    unborn: list[Attempt] = field(default_factory=list)
    struck_completion: bool = False

    @property
    def cost(self) -> list[Tree]:
        """The trees that lived when it was injected, were hit, and have died since."""
        hit = [tree for tree in self.trees if self.kind not in _OF_THE_BROKER or tree.attempt.task in self.renewals]
        return [tree for tree in hit if tree.seen_dead is not None and tree.seen_dead >= self.at]

    @property
    def has_struck(self) -> bool:
        if self.kind in _OF_RECEIVE:
            return bool(self.unborn)
        return bool(self.cost) and (self.struck_completion or self.kind not in _OF_COMPLETE)


class Striker:
    """Injects faults.

    Args:
        folder: of the campaign.
        observer: sees who lives.
        news: of births, deaths and lines.
    """

    def __init__(self, folder: Path, observer: Observer, news: News) -> None:
        self._ends = folder / "ends"
        self._observer = observer
        self._news = news

    async def strike(self, kind: Kind, member: Member) -> Blow:
        """Inject one fault into a worker with living trees; return when it is over, with the worker dead or healed."""
        blow = Blow(kind, boottime(), self._observer.of(member.keeper))
        before = len(member.said)
        if kind in _OF_THE_BROKER:
            await self._cut_off(blow, member, *_OF_THE_BROKER[kind])
            await self._lift(member)
        elif kind in _OF_RECEIVE:
            await self._cut_off(blow, member, *_OF_THE_BROKER[Kind.REFUSED])
            await self._lose_a_receive(blow, member, _OF_RECEIVE[kind])
        elif kind in _OF_COMPLETE:
            await self._end_one(blow, member, _OF_COMPLETE[kind])
        else:
            await self._hit_processes(blow, member)
        for line in member.lines("struck", before):
            blow.struck_completion |= line["verb"] == "complete"
            if line["verb"] == "renew":
                blow.renewals.setdefault(line["task"], line["at"])
        return blow

    async def _cut_off(self, blow: Blow, member: Member, fault: Fault, verbs: Sequence[str]) -> None:
        """Keep the worker from its backend until its trees are dead."""
        await member.order("strike", "injected", fault=fault, verbs=verbs)
        await self._all_dead(blow)

    async def _lose_a_receive(self, blow: Blow, member: Member, fault: Fault) -> None:
        """Grant deliveries that the worker never hears of, or only when they have expired."""
        # The first receive only looks; its empty answer is held until the next order. The next one stays for a task.
        await self._struck(member, Fault.ANSWER_LATE, _FIRST_LOOK_SECONDS)
        granted = await self._struck(member, fault, LIMIT_SECONDS)
        blow.unborn = [Attempt(line["task"], line["attempt"]) for line in granted]
        if granted and fault is Fault.ANSWER_LATE:
            await _until(granted[0]["at"] + 1.05 * LEASE_SECONDS)
        await self._lift(member)

    async def _struck(self, member: Member, fault: Fault, seconds: float) -> list[dict[str, Any]]:
        """Strike the receives from now on; return what the first of them is granted, if it is in time."""
        before = len(member.said)
        await member.order("strike", "injected", fault=fault, verbs=["receive"])
        struck = await member.heard("struck", since=before, seconds=LIMIT_SECONDS)
        begun = member.said.index(struck) if struck else len(member.said)
        await member.heard("granted", since=begun, seconds=seconds)
        return member.lines("granted", begun)

    async def _end_one(self, blow: Blow, member: Member, fault: Fault) -> None:
        """Let one tree end by itself while the worker cannot know of its completion for longer than the lease."""
        ending = blow.trees[0]
        await member.order("strike", "injected", fault=fault, verbs=["complete", "renew"])
        end = self._ends / ending.attempt.task
        end.touch()
        await self._news.until(lambda: ending.seen_dead, LIMIT_SECONDS)
        end.unlink()
        if fault in (Fault.REFUSE, Fault.HANG):
            await self._live_again([ending])
        else:
            await _until((ending.seen_dead or boottime()) + LEASE_SECONDS)
        await self._lift(member)

    async def _hit_processes(self, blow: Blow, member: Member) -> None:
        match blow.kind:
            case Kind.STOPPED:
                member.signal_worker(signal.SIGSTOP)
                await self._live_again(blow.trees)
                member.signal_worker(signal.SIGCONT)
            case Kind.BLOCKED:
                before = len(member.said)
                await member.order("block", "blocking", seconds=BLOCKED_SECONDS)
                await member.heard("unblocked", since=before)
            case Kind.KILLED:
                member.signal_worker(signal.SIGKILL)
                await self._all_dead(blow)
            case Kind.GUARDIAN_KILLED:
                member.kill_guardian()
                await self._all_dead(blow)

    async def _all_dead(self, blow: Blow) -> None:
        await self._news.until(lambda: all(tree.seen_dead for tree in blow.trees), LIMIT_SECONDS)

    async def _live_again(self, trees: Sequence[Tree]) -> None:
        """Wait until another attempt of each of these tasks lives: the store has found their leases expired."""
        await self._news.until(
            lambda: all(self._latest(tree.attempt.task) > tree.attempt.number for tree in trees), LIMIT_SECONDS
        )

    def _latest(self, task: str) -> int:
        return max(attempt.number for attempt in self._observer.trees if attempt.task == task)

    async def _lift(self, member: Member) -> None:
        await member.order("lift", "lifted")


async def _until(moment: float) -> None:
    """Return at a boottime: what is waited for is the expiry of a lease."""
    await asyncio.sleep(max(0.0, moment - boottime()))
