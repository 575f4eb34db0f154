"""A proxy before any TCP service that loses answers, breaks connections, goes silent, slow or away.

Lives in the loop of the test; clients may be in other processes. It knows no protocol: a strike is aimed by the bytes
that a client sends in one go.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from tests.support.proxy import HOST, Proxy, Streams

_CHUNK: Final = 1 << 20
Matches = Callable[[bytes], bool]


class TcpStrike(StrEnum):
    """What can befall what a client sends."""

    LOSE_ANSWER = "lose_answer"  # passed on, and answered; then the connection breaks instead
    SWALLOW_ANSWER = "swallow_answer"  # passed on; no answer ever comes, the connection stays
    BREAK = "break"  # not passed on; the connection breaks
    HANG = "hang"  # not passed on; no answer, the connection stays: a black hole
    LATE_ANSWER = "late_answer"  # passed on; its answer comes after `late_answer_seconds`


class Direction(StrEnum):
    """Which direction is silent."""

    BOTH = "both"
    REQUESTS = "requests"  # what clients send never arrives
    ANSWERS = "answers"  # what clients send arrives and is done; they never hear of it


@dataclass
class _Plan:
    strike: TcpStrike
    matches: Matches
    left: float


@dataclass
class TcpProxy(Proxy):
    """Passes bytes on to a port of this machine; an asynchronous context manager.

    Attributes:
        struck: how many strikes have hit: pieces that were lost, held or aimed at, connections that were broken.
        accepted: how many connections were taken.
        late_answer_seconds: how late a late answer is.
    """

    struck: int = 0
    accepted: int = 0
    late_answer_seconds: float = 0.0
    _plans: list[_Plan] = field(default_factory=list)
    _silent: Direction | None = None
    _late_seconds: float = 0.0

    def strike(self, strike: TcpStrike, matches: Matches, *, count: float = 1) -> None:
        """Let something befall the next bytes that match, `count` times."""
        self._plans.append(_Plan(strike, matches, count))

    def silence(self, way: Direction = Direction.BOTH) -> None:
        """Pass nothing on any more, also of new connections: a black hole, or half of one, until `heal`."""
        self._silent = way

    def delay(self, seconds: float) -> None:
        """Hold each piece for so long, in either direction, until `heal`."""
        self._late_seconds = seconds

    async def refuse(self) -> None:
        """Refuse connections, and break those that are open."""
        self.hit(len(self._connections))
        await super().refuse()

    async def heal(self) -> None:
        """Pass everything on again; connections that were struck, or silent, are broken."""
        self._plans.clear()
        self._late_seconds = 0.0
        if self._silent:
            self._silent = None
            self.break_all()
        await self._listen()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, upstream: Streams) -> None:
        self.accepted += 1
        self._changed.set()
        answers, to_service = await asyncio.open_connection(HOST, self.target)
        upstream.append(to_service)
        await _Passage(self, reader, writer, answers, to_service).run()

    def strike_of(self, sent: bytes) -> TcpStrike | None:
        """Return what befalls these bytes; for the passages."""
        if self._silent is Direction.BOTH or self._silent is Direction.REQUESTS:
            self.hit()
            return TcpStrike.HANG
        if self._silent is Direction.ANSWERS:
            self.hit()
            return TcpStrike.SWALLOW_ANSWER
        for plan in self._plans:
            if plan.left > 0 and plan.matches(sent):
                plan.left -= 1
                self.hit()
                return plan.strike
        return None

    def hit(self, count: int = 1) -> None:
        """Note that something was struck; for the passages."""
        self.struck += count
        self._changed.set()

    def swallows_answers(self) -> bool:
        """Return whether no answer is passed on; for the passages."""
        return self._silent in (Direction.BOTH, Direction.ANSWERS)

    async def hold(self) -> None:
        """Return when a piece may be passed on; for the passages."""
        if self._late_seconds:
            self.hit()
            await asyncio.sleep(self._late_seconds)


@dataclass
class _Passage:
    """One connection through the proxy."""

    proxy: TcpProxy
    client: asyncio.StreamReader
    to_client: asyncio.StreamWriter
    service: asyncio.StreamReader
    to_service: asyncio.StreamWriter
    strike: TcpStrike | None = None

    async def run(self) -> None:
        """Return when either side, or a strike, has ended it."""
        ways = [asyncio.create_task(self._requests()), asyncio.create_task(self._answers())]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.wait(ways)

    async def _requests(self) -> None:
        with suppress(OSError):
            while sent := await self.client.read(_CHUNK):
                self.strike = self.strike or self.proxy.strike_of(sent)
                if self.strike is TcpStrike.BREAK:
                    return
                await self.proxy.hold()
                if self.strike is not TcpStrike.HANG:
                    self.to_service.write(sent)
                    await self.to_service.drain()

    async def _answers(self) -> None:
        with suppress(OSError):
            while answer := await self.service.read(_CHUNK):
                if self.strike is TcpStrike.LOSE_ANSWER:
                    return
                if self.strike is TcpStrike.LATE_ANSWER:
                    await asyncio.sleep(self.proxy.late_answer_seconds)
                    self.strike = None
                await self.proxy.hold()
                if self.strike is None and not self.proxy.swallows_answers():
                    self.to_client.write(answer)
                    await self.to_client.drain()
        if self.strike in (TcpStrike.SWALLOW_ANSWER, TcpStrike.HANG):
            await asyncio.Event().wait()  # the service has closed it; the client does not learn it
