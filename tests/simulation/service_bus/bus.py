"""The far side of Service Bus in the simulation: requests of HTTP and AMQP to the emulator's pure queue.

Each request is done within one instant of the server's clock, but for a long poll, which waits for a message. What each
has changed is reported to the rules.
"""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any, Final, Self, TypeVar
from urllib.parse import parse_qs, urlsplit
from uuid import UUID
from xml.etree import ElementTree as ET

from tests.emulators.service_bus import admin, errors, rest_wire
from tests.emulators.service_bus.broker import Broker as Namespace
from tests.emulators.service_bus.description import Description
from tests.emulators.service_bus.fidelity import Fidelity
from tests.emulators.service_bus.message import Message
from tests.emulators.service_bus.queue import Queue
from tests.simulation.loop import Machine
from tests.simulation.service_bus.copies import Lock
from tests.simulation.service_bus.copy_rules import CopyRules

T = TypeVar("T")
NAME: Final = "queue"
WINDOW_SECONDS: Final = 7 * 86_400.0  # the longest that the service has
_MOST_DELIVERIES: Final = 2000
_GRAIN_SECONDS: Final = 1e-6  # by which a timer may be early
_NO_DEDUP: Final = 0.25  # of the runs


class Bus:
    """One namespace with one queue.

    Args:
        server: its clocks.

    Attributes:
        queue: the queue.
        rules: see all that changes.
    """

    def __init__(self, server: Machine) -> None:
        self._server = server
        self._namespace = Namespace(clock=server, on_timer=self._new_timer)
        self._waiting: dict[asyncio.Future[None], None] = {}  # long polls, first come, first woken
        self._is_due = False
        self._armed: Any = None
        self.name = NAME
        self.queue: Queue
        self.rules: CopyRules

    def make(self, rules: CopyRules, lease: float, chance: Random) -> None:
        """Make the queue; where the service is contested, and whether it deduplicates, is decided by chance."""
        self._namespace.fidelity = Fidelity(
            activation_renumbers=chance.random() < 0.5,
            rest_lost_lock_status=chance.choice([404, 409, 410]),
            rest_renew_returns_properties=chance.random() < 0.5,
        )
        window = 0.0 if chance.random() < _NO_DEDUP else WINDOW_SECONDS
        description = Description(NAME, lock_duration=lease, max_delivery_count=_MOST_DELIVERIES, dedup_window=window)
        self.queue = self._namespace.create(description)
        self.queue.listeners.add(self._wake)
        self.rules = rules
        rules.deduplicates = bool(window)

    # What a run asks of a store

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Nothing is open."""

    async def create(self) -> None:
        """It is made."""

    @property
    def dead(self) -> Queue:
        """The dead-letter sub-queue."""
        assert self.queue.dead is not None
        return self.queue.dead

    # REST

    async def request(
        self, method: str, path: str, body: bytes, headers: Mapping[str, str]
    ) -> tuple[int, dict[str, str], bytes, float, Lock | None]:
        """Do a request; return status, headers, body and date of the answer, and the lock that it was about."""
        try:
            status, answered, content, lock = await self._done(method, path, body, headers)
        except errors.BrokerError as error:
            if is_lost := isinstance(error, errors.LockLost):
                self.rules.refused(path.rpartition("/")[2])
            status = self._namespace.fidelity.rest_lost_lock_status if is_lost else error.status
            answered, lock = {"content-type": "application/xml"}, None
            content = f"<Error><Code>{status}</Code><Detail>{error}</Detail></Error>".encode()
        return status, answered, content, float(int(self._server.wall())), lock

    async def _done(
        self, method: str, path: str, body: bytes, headers: Mapping[str, str]
    ) -> tuple[int, dict[str, str], bytes, Lock | None]:
        parts = urlsplit(path)
        words = parts.path.strip("/").split("/")
        match method, words[1:]:
            case "GET", []:
                return 200, {}, ET.tostring(admin.feed([self.queue])), None
            case "POST", ["messages"]:
                contents = rest_wire.read_contents(headers, body)
                numbers = self.queue.send(contents)
                for content, number in zip(contents, numbers, strict=True):
                    self.rules.sent(content, self._numbered(number))
                return 201, {}, b"", None
            case "POST", ["messages", "head"]:
                message = await self._next(float(parse_qs(parts.query)["timeout"][0]))
                if message is None:
                    return 204, {}, b"", None
                lock = self.rules.locked(message)
                answered = rest_wire.headers_of(message, self._namespace.fidelity.rest_first_delivery_count)
                answered["Location"] = f"https://bus/{NAME}/messages/{message.number}/{message.lock}"
                return 201, {name.lower(): text for name, text in answered.items()}, message.content.body, lock
            case _, ["messages", number, token]:
                return self._on_lock(method, number, UUID(token))
        raise errors.Unsupported(f"{method} {path}")

    def _on_lock(self, method: str, number: str, token: UUID) -> tuple[int, dict[str, str], bytes, Lock | None]:
        message = self.queue.held(token, number)
        if method == "POST":
            until = self.queue.renew(token)
            lock = self.rules.renewed(message)
            if not self._namespace.fidelity.rest_renew_returns_properties:
                return 200, {}, b"", lock
            text = json.dumps({"LockToken": str(token), "LockedUntilUtc": rest_wire.http_date(until)})
            return 200, {"brokerproperties": text}, b"", lock
        if method == "DELETE":
            self.queue.complete(token)
            self.rules.completed(message)
        else:
            self.queue.abandon(token)
            self.rules.unlocked(message)
        return 200, {}, b"", None

    async def _next(self, seconds: float) -> Message | None:
        """Lock the next message, or wait for one."""
        loop = asyncio.get_running_loop()
        end = self._server.boottime() + seconds
        while (message := self.queue.receive()) is None and self._server.boottime() < end - _GRAIN_SECONDS:
            came = loop.create_future()
            self._waiting[came] = None
            timer = loop.call_at(self._server.monotonic_at(end), _wake, came)
            try:
                await came
            finally:
                timer.cancel()
                self._waiting.pop(came, None)
        return message

    # AMQP

    async def dead_letter(self, token: UUID, reason: str, description: str, properties: Mapping[str, Any]) -> None:
        """Move a locked message to the dead letters."""
        message = self.queue.held(token)
        self.queue.dead_letter(token, reason, description, properties)
        self.rules.buried(message, reason)

    async def look(self, first: int, most: int, *, dead: bool) -> list[Message]:
        """Return messages as they are now, from a sequence number on."""
        found = (self.dead if dead else self.queue).peek(first, most)
        return [replace(message, properties=dict(message.properties)) for message in found]

    async def lock_dead(self, count: int) -> list[Message]:
        """Lock the first dead letters that nobody holds."""
        found: list[Message] = []
        while len(found) < count and (message := self.dead.receive()) is not None:
            found.append(replace(message, properties=dict(message.properties)))
        return found

    async def on_dead(self, what: str, tokens: Sequence[UUID]) -> None:
        """Renew, complete or abandon locked dead letters, all or none."""
        for token in tokens:
            self.dead.held(token)
        for token in tokens:
            if what == "renewed":
                self.dead.renew(token)
            elif what == "completed":
                message = self.dead.held(token)
                self.dead.complete(token)
                self.rules.letter_deleted(message)
            else:
                self.dead.abandon(token)

    # Time

    def _numbered(self, number: int) -> Message | None:
        return self.queue.peek(number, 1)[0] if number else None

    def _new_timer(self) -> None:
        if not self._is_due:
            self._is_due = True
            self._server.loop.true_later(0.0, None, self._sweep)

    def _sweep(self) -> None:
        self._is_due = False
        due = self._namespace.sweep()
        if self._armed is not None:
            self._armed.cancel()
        if due is not None:
            left = max(_GRAIN_SECONDS, due - self._server.wall())
            self._armed = self._server.loop.true_later(left, None, self._sweep)

    def _wake(self) -> None:
        for waiting in self._waiting:
            _wake(waiting)


def _wake(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)
