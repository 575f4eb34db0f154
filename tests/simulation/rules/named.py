"""Named leases in the simulation: contenders for one name over the network, and the rules S3, S4, S9 and S10."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from random import Random
from typing import Any, Final, cast

from jobq.errors import JobqError, LockLost, SettlementUnknown
from jobq.lease.named import NamedLease
from jobq.lease.store import Busy, Grant, LeaseLimits, LeaseStore, Request
from jobq.lease.timing import timing_for
from jobq.settings import Settings
from tests.simulation.broker import Reset
from tests.simulation.loop import Loop, Machine, Node
from tests.simulation.network import NetworkLink
from tests.simulation.rules.trace import Trace

NAME: Final = "name"
_STEP: Final = 0.1  # of the lease: how often a holder looks whether it still is one, and saves


@dataclass(eq=False)
class _Term:
    """One grant as it should be; times are the server's boottime in seconds."""

    token: int
    key: str
    expires: float
    is_over: bool = False  # released or withdrawn


@dataclass(eq=False)
class NamedRules:
    """Sees each request at the store's door, and who believes to hold the name.

    Attributes:
        trace: takes what is broken.
        server: decides.
        store: the real one.
        excuses: returns whether a node's machine stands still, or has just stood still.
        believers: who is within its `async with`, by node.
    """

    loop: Loop
    trace: Trace
    server: Machine
    store: LeaseStore
    excuses: Callable[[Node], bool]
    believers: dict[Node, NamedLease] = field(default_factory=dict)
    _terms: dict[int, _Term] = field(default_factory=dict)
    _saved: int = 0  # the last cursor that the store took

    async def acquire(self, request: Request) -> Grant | Busy:
        """Take the name: nobody else may hold it (S10), and tokens rise (S3)."""
        answer = await self.store.acquire(request)
        if isinstance(answer, Busy):
            return answer
        now, known = self.server.boottime(), self._terms.get(answer.token)
        if known is None:
            self.trace.counts["named leases"] += 1
            self.trace.note("named lease", answer.token)
            held = [term.token for term in self._terms.values() if not term.is_over and term.expires > now]
            if held:
                self.trace.broken("S10", f"token {answer.token} was granted while {held} hold the name")
            if self._terms and answer.token <= max(self._terms):
                self.trace.broken("S3", f"token {answer.token} came after {max(self._terms)}")
            self._terms[answer.token] = _Term(answer.token, request.key, now + request.ttl.total_seconds())
        elif known.key != request.key or known.is_over or known.expires <= now:
            self.trace.broken("S3", f"token {answer.token} was granted twice")
        else:
            known.expires = now + request.ttl.total_seconds()
        if int(answer.cursor or 0) != self._saved:
            self.trace.broken("S9", f"token {answer.token} begins at {answer.cursor}, and {self._saved} was saved")
        return answer

    async def withdraw(self, name: str, key: str) -> None:
        """Release what a request was granted."""
        await self.store.withdraw(name, key)
        self.trace.note("a named lease is withdrawn")
        for term in self._terms.values():
            term.is_over |= term.key == key

    async def renew(self, grant: Grant, ttl: timedelta) -> None:
        """Extend it, if it is held (S4)."""
        await self._fenced("renew", grant.token, lambda: self.store.renew(grant, ttl))
        self._terms[grant.token].expires = self.server.boottime() + ttl.total_seconds()
        self.trace.note("named lease", grant.token, "is renewed")

    async def save(self, grant: Grant, cursor: str, version: int) -> None:
        """Save the cursor, if it is held and this is the newest (S4, S9)."""
        await self._fenced(
            "save", grant.token, lambda: self.store.save(grant, cursor, version), is_late=int(cursor) < self._saved
        )
        self._saved = max(self._saved, int(cursor))

    async def release(self, name: str, token: int) -> None:
        """Give it back."""
        await self.store.release(name, token)
        self.trace.note("named lease", token, "is released")
        self._terms[token].is_over = True

    async def _fenced(self, verb: str, token: int, do: Callable[[], Awaitable[None]], *, is_late: bool = False) -> None:
        term = self._terms[token]
        is_held = not term.is_over and term.expires > self.server.boottime()
        try:
            await do()
        except LockLost:
            if is_held and not is_late:
                self.trace.broken("S4", f"{verb} under token {token} was refused, and it is held")
            raise
        if not is_held or is_late:
            self.trace.broken("S4", f"a stale {verb} under token {token} was accepted")

    def instant(self) -> None:
        """Nobody believes to hold the name once the server may give it away (1.3), and never two at once (S10)."""
        if not self.believers:
            return
        now, sure = self.server.boottime(), []
        for node, lease in self.believers.items():
            # Who is stopped does nothing with what it believes; it is judged from when it goes on.
            if node.dead or node.pauses or lease.is_lost or self.excuses(node):
                continue
            term = self._terms[lease.token]
            if term.expires <= now:
                late = now - term.expires
                self.trace.broken("1.3", f"{node.name} believes in token {term.token} {late:.3f} s after its end")
            sure.append(term.token)
        if len(sure) > 1:
            self.trace.broken("S10", f"the holders of tokens {sure} all believe to be the one")


class _RemoteLeases:
    """The store as one process sees it."""

    def __init__(self, link: NetworkLink, rules: NamedRules) -> None:
        self._link, self._rules = link, rules

    @property
    def limits(self) -> LeaseLimits:
        return self._rules.store.limits

    async def acquire(self, request: Request) -> Grant | Busy:
        answer: Grant | Busy = await self._ask(lambda: self._rules.acquire(request))
        return answer

    async def withdraw(self, name: str, key: str) -> None:
        await self._ask(lambda: self._rules.withdraw(name, key))

    async def renew(self, grant: Grant, ttl: timedelta) -> None:
        await self._ask(lambda: self._rules.renew(grant, ttl))

    async def save(self, grant: Grant, cursor: str, version: int) -> None:
        await self._ask(lambda: self._rules.save(grant, cursor, version))

    async def release(self, name: str, token: int) -> None:
        await self._ask(lambda: self._rules.release(name, token))

    async def _ask(self, handler: Callable[[], Awaitable[Any]]) -> Any:
        try:
            return await self._link.ask(handler)
        except Reset as error:
            raise SettlementUnknown(str(error)) from None


async def contend(
    link: NetworkLink, rules: NamedRules, node: Node, lease: float, settings: Settings, chance: Random
) -> None:
    """Hold the name again and again, each time for a while, and save a cursor that only rises.

    Args:
        link: to the store.
        rules: see all of it.
        node: whose code this is.
        lease: length of the lease in seconds.
        settings: margins.
        chance: decides for how long, and what is given back.
    """
    store = cast("LeaseStore", _RemoteLeases(link, rules))
    timing = timing_for(timedelta(seconds=lease), settings)
    while True:
        with suppress(JobqError):
            named = NamedLease(store, NAME, timing=timing, holder=node.name, clock=node.machine, chance=chance)
            async with named:
                rules.believers[node] = named
                try:
                    await _work(named, lease, chance)
                finally:
                    del rules.believers[node]
        await asyncio.sleep(chance.uniform(0.0, 0.3) * lease)


async def _work(named: NamedLease, lease: float, chance: Random) -> None:
    cursor = int(named.cursor or 0)
    for _ in range(chance.randint(1, 30)):
        if named.is_lost:
            return
        if chance.random() < 0.5:
            cursor += 1
            await named.save(str(cursor))
        await asyncio.sleep(_STEP * lease * chance.random())
