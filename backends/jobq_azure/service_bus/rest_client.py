"""Requests to one queue of Service Bus over REST, one method a request; nothing is repeated.

A message is locked, renewed, completed and unlocked by the URI that came with it. How long a lock lasts follows from
two times of that one answer, never from a clock of ours (rules.md 1.3 rule 6).
"""

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import format_datetime, parsedate_to_datetime
from http import HTTPStatus
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from jobq_azure.common.errors import Unreadable
from jobq_azure.service_bus.namespace import Namespace
from jobq_azure.service_bus.responses import Response, check_lock, check_received, check_sent

DEAD_LETTERS: Final = "/$DeadLetterQueue"
_BATCH: Final = "application/vnd.microsoft.servicebus.json"
MOST_DIGITS: Final = 12  # of a number that jobq writes beside a body
GRAIN_SECONDS: Final = 1.0  # the dates of an answer have no finer one
_EXTRA_SECONDS: Final = 10.0  # by which the answer to a long poll may be late


@dataclass(frozen=True, kw_only=True)
class Outgoing:
    """A message to send.

    Attributes:
        body: its bytes.
        message_id: what the broker knows duplicates by.
        at: seconds since the epoch, by the service's clock, before which nobody receives it; None = at once.
        properties: beside the body; names in lower case, since headers know no other.
    """

    body: bytes = field(repr=False)
    message_id: str
    at: float | None = None
    properties: Mapping[str, str | int] = field(default_factory=dict)

    def broker_properties(self) -> dict[str, Any]:
        """Return its broker properties. No time to live: nothing expires by itself (S1)."""
        properties: dict[str, Any] = {"MessageId": self.message_id}
        if self.at is not None:
            properties["ScheduledEnqueueTimeUtc"] = format_datetime(datetime.fromtimestamp(self.at, UTC), usegmt=True)
        return properties

    def in_batch(self) -> str:
        """Return it as an element of a batch; its body must be text."""
        element: dict[str, Any] = {"Body": self.body.decode(), "BrokerProperties": self.broker_properties()}
        if self.properties:
            element["UserProperties"] = dict(self.properties)
        return json.dumps(element, ensure_ascii=False)


@dataclass(frozen=True, kw_only=True)
class Locked:
    """A message as it was handed out under a lock.

    Attributes:
        message_id: the sender's, or the sequence number of one that has none.
        number: the sequence number.
        body: its bytes.
        count: DeliveryCount as sent; whether a first delivery is 0 or 1 is contested.
        seconds: for how long the lock surely lasts, from when it was granted.
        enqueued: seconds since the epoch.
        path: of the lock, below the namespace.
        token: of the lock.
        headers: of the answer; the properties are among them.
    """

    message_id: str
    number: int
    body: bytes = field(repr=False)
    count: int
    seconds: float
    enqueued: float
    path: str = field(repr=False)  # a secret of the worker's (A6), as the next
    token: uuid.UUID = field(repr=False)
    headers: Mapping[str, str] = field(repr=False)

    def text(self, name: str) -> str:
        """Return a property; empty for none."""
        return self.headers.get(name, "").strip('"')

    def number_in(self, name: str, usual: int = 0) -> int:
        """Return a property that is a number."""
        text = self.text(name)
        return int(text) if text.isascii() and text.isdecimal() and len(text) <= MOST_DIGITS else usual


class LockRenewal(NamedTuple):
    """What the answer to a renewal says: the service's time, and for how long the lock surely lasts, if it does."""

    now: float
    seconds: float | None


class RestClient:
    """Requests to one queue, or to its dead-letter sub-queue.

    Args:
        namespace: entered.
        path: of the queue.
    """

    def __init__(self, namespace: Namespace, path: str) -> None:
        self._namespace = namespace
        self._path = f"/{path}"
        self.place = str(namespace.place)

    async def send(self, message: Outgoing) -> float:
        """Add one message; return the service's time."""
        headers = {name: f'"{value}"' if isinstance(value, str) else str(value) for name, value in _items(message)}
        headers["BrokerProperties"] = json.dumps(message.broker_properties())
        headers["Content-Type"] = "application/json"
        return await self._post(message.body, headers)

    async def send_batch(self, elements: Sequence[str]) -> None:
        """Add messages, all or none; each as `Outgoing.in_batch` has it."""
        await self._post(f"[{','.join(elements)}]".encode(), {"Content-Type": _BATCH})

    async def _post(self, body: bytes, headers: Mapping[str, str]) -> float:
        answer = await self._namespace.request("POST", f"{self._path}/messages", body=body, headers=headers)
        check_sent(answer, self.place)
        return answer.date

    async def lock(self, wait_seconds: int) -> Locked | None:
        """Lock the next message; None when there is none for so long."""
        path = f"{self._path}/messages/head?timeout={wait_seconds}"
        answer = await self._namespace.request("POST", path, seconds=wait_seconds + _EXTRA_SECONDS)
        if answer.status == HTTPStatus.NO_CONTENT:
            return None
        check_received(answer, self.place, HTTPStatus.CREATED)
        try:
            return _locked(answer, self._path)
        except (KeyError, TypeError, ValueError) as error:
            # What is locked so comes again when its lock has run out.
            raise Unreadable(f"{self.place}: the answer to a receive cannot be read ({type(error).__name__})") from None

    async def take(self) -> bool:
        """Delete the next message; return whether there was one."""
        answer = await self._namespace.request("DELETE", f"{self._path}/messages/head?timeout=0")
        if answer.status == HTTPStatus.NO_CONTENT:
            return False
        check_received(answer, self.place, HTTPStatus.OK)
        return True

    async def renew(self, locked: Locked) -> LockRenewal:
        """Extend a lock. That the answer says for how long is not promised."""
        answer = await self._on_lock("POST", locked)
        try:
            properties = json.loads(answer.headers["brokerproperties"])
            seconds = _seconds_until(properties["LockedUntilUtc"], answer)
        except (KeyError, TypeError, ValueError):
            seconds = None
        return LockRenewal(answer.date, seconds)

    async def complete(self, locked: Locked) -> None:
        """Delete a locked message."""
        await self._on_lock("DELETE", locked)

    async def unlock(self, locked: Locked) -> None:
        """Give a locked message back."""
        await self._on_lock("PUT", locked)

    async def _on_lock(self, method: str, locked: Locked) -> Response:
        answer = await self._namespace.request(method, locked.path)
        check_lock(answer, self.place)
        return answer


def _items(message: Outgoing) -> list[tuple[str, str | int]]:
    return list(message.properties.items())


def _locked(answer: Response, queue: str) -> Locked:
    properties = json.loads(answer.headers["brokerproperties"])
    number = int(properties["SequenceNumber"])
    token = uuid.UUID(properties["LockToken"])
    return Locked(
        message_id=str(properties.get("MessageId") or number),
        number=number,
        body=answer.body,
        count=int(properties["DeliveryCount"]),
        seconds=_seconds_until(properties["LockedUntilUtc"], answer),
        enqueued=parsedate_to_datetime(properties["EnqueuedTimeUtc"]).timestamp(),
        path=_path_of_lock(answer.headers.get("location", ""), queue, number, token),
        token=token,
        headers=answer.headers,
    )


def _seconds_until(end: str, answer: Response) -> float:
    """Return how long a lock surely lasts, from two times of one answer."""
    return max(0.0, parsedate_to_datetime(end).timestamp() - answer.date - GRAIN_SECONDS)


def _path_of_lock(location: str, queue: str, number: int, token: uuid.UUID) -> str:
    """Return where a lock is: as answered, or, if that is not the place of this lock, as the reference says it is made.

    A property of the message may have the name of this header. The path alone: a token goes to no other host.
    """
    path = urlsplit(location).path
    is_it = path.lower().startswith(f"{queue}/messages/".lower()) and path.lower().endswith(f"/{token}")
    return path if is_it else f"{queue}/messages/{number}/{token}"
