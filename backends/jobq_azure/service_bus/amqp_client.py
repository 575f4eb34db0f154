"""What REST cannot do, by the official SDK over AMQP: look at messages, dead-letter one, take scheduled ones back.

A receiver is opened when it is needed and kept for a minute: the service detaches idle ones after ten, and the SDK
finds that out only by failing. Whatever fails is thrown away with its connection; the SDK repeats nothing
(`retry_total=0`).
"""

import asyncio
import contextlib
import math
import time
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar
from urllib.parse import unquote, urlsplit

from azure.servicebus import ServiceBusMessageState, ServiceBusSubQueue, TransportType
from azure.servicebus.aio import ServiceBusClient, ServiceBusReceiver
from azure.servicebus.exceptions import (
    MessageLockLostError,
    MessageNotFoundError,
    MessagingEntityNotFoundError,
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
    ServiceBusConnectionError,
    ServiceBusError,
    ServiceBusServerBusyError,
)

from jobq.errors import AccessDenied, JobqError, LockLost, QueueNotFound, Throttled
from jobq_azure.common.errors import NoAnswer
from jobq_azure.service_bus.namespace import Namespace, QueueAddress
from jobq_azure.service_bus.seen import Seen

if TYPE_CHECKING:
    from azure.servicebus import ServiceBusReceivedMessage

T = TypeVar("T")
_KEPT_SECONDS: Final = 60.0
_ANSWER_SECONDS: Final = 10.0
_SETTLE_SECONDS: Final = 3.0  # less than a caller waits: there must be time to ask what became of it
_LOCK_SECONDS: Final = 2.0
_WEBSOCKET_SECONDS: Final = 1.0  # the SDK's own: it waits so long for each frame
_CLOSE_SECONDS: Final = 3.0
_MOST_PEEKED: Final = 250  # in one request, by the service


@dataclass
class _Kept:
    """A receiver, one request at a time."""

    receiver: ServiceBusReceiver
    used: float


class Amqp:
    """The SDK on one queue; connects when it is first needed.

    Args:
        namespace: entered; says where, and what signs in.
        websocket: go by WebSockets, and by the proxy of the environment.
    """

    def __init__(self, namespace: Namespace, *, websocket: bool = False) -> None:
        self._namespace = namespace
        self._websocket = websocket
        self._place = namespace.place
        self._client: ServiceBusClient | None = None
        self._kept: dict[str, _Kept] = {}
        self._turns: dict[str, asyncio.Lock] = {}
        self._closing: set[asyncio.Task[None]] = set()

    async def aclose(self) -> None:
        """Close all."""
        for name in list(self._kept):
            self._drop(name)
        if self._closing:
            await asyncio.wait(self._closing, timeout=_CLOSE_SECONDS)
        if self._client is not None:
            with contextlib.suppress(Exception):  # it is left in any case
                await self._client.close()

    async def reach(self) -> None:
        """Connect as a burial does; raises what it would."""
        async with self._receiver("settle") as receiver:
            await receiver.peek_messages(1, timeout=_ANSWER_SECONDS)

    async def peek(self, limit: int, *, dead: bool = False) -> list[Seen]:
        """Return the first messages by sequence number, in whatever state."""
        return [seen async for page in self._pages("dead" if dead else "peek", limit) for seen in page]

    async def scheduled(self) -> list[int]:
        """Return the sequence numbers of all that are scheduled."""
        return [seen.number async for page in self._pages("peek") for seen in page if seen.is_scheduled]

    async def survey(self, keep: Callable[[Seen], T], *, dead: bool = True) -> list[T]:
        """Return what is to be kept of each dead letter, by sequence number; their bodies might not fit into memory.

        Args:
            keep: returns that.
            dead: else of each message that waits, is scheduled or locked.
        """
        return [keep(seen) async for page in self._pages("dead" if dead else "peek") for seen in page]

    async def _pages(self, name: str, limit: float = math.inf) -> AsyncIterator[list[Seen]]:
        """Look at messages, as many requests as it takes: each has its own time, all together may take minutes."""
        at = 1
        while limit > 0:
            async with self._receiver(name) as receiver:
                most = int(min(_MOST_PEEKED, limit))
                page = await receiver.peek_messages(most, sequence_number=at, timeout=_ANSWER_SECONDS)
            if not page:
                return
            seen = [_seen(message) for message in page]
            yield seen
            at, limit = seen[-1].number + 1, limit - len(seen)

    async def lock_dead(self, count: int) -> list[Seen]:
        """Lock dead letters, the oldest first; fewer than `count`, or none, if no more are to be had within 2 s."""
        async with self._receiver("dead") as receiver:
            found = await receiver.receive_messages(count, max_wait_time=_LOCK_SECONDS)
        return [_seen(message) for message in found]

    async def renew_dead(self, tokens: Sequence[uuid.UUID]) -> None:
        """Renew the locks of dead letters, all or, with LockLost, none."""
        async with self._receiver("dead") as receiver:
            await _renew_by_token(receiver, tokens)

    async def settle_dead(self, settlement: "Literal['completed', 'abandoned']", tokens: Sequence[uuid.UUID]) -> None:
        """Delete dead letters, or show them again, all or, with LockLost, none."""
        async with self._receiver("dead") as receiver:
            await _settle_by_token(receiver, settlement, tokens, {})

    async def dead_letter(
        self, token: uuid.UUID, reason: str, description: str, properties: Mapping[str, str | int]
    ) -> None:
        """Move a message that is locked over REST to the dead-letter sub-queue, as one step (S6)."""
        values = {"deadletter-reason": reason, "deadletter-description": description}
        async with self._receiver("settle", _SETTLE_SECONDS) as receiver:
            await _settle_by_token(receiver, "suspended", [token], values | {"properties-to-modify": dict(properties)})

    async def cancel_scheduled(self, numbers: Sequence[int]) -> bool:
        """Delete messages that are scheduled; none, and return False, where one of them is not any more."""
        async with self._said(), self._connected().get_queue_sender(self._place.queue, keep_alive=0) as sender:
            try:
                await sender.cancel_scheduled_messages(list(numbers), timeout=_ANSWER_SECONDS)
            except MessageNotFoundError:
                return False
        return True

    def _connected(self) -> ServiceBusClient:
        if self._client is None:
            ways: dict[str, Any] = {"retry_total": 0, "socket_timeout": _ANSWER_SECONDS}
            if self._websocket:
                ways |= _over_websocket(self._namespace)
            if self._place.connection_string is not None:
                self._client = ServiceBusClient.from_connection_string(self._place.connection_string, **ways)
            else:
                credential: Any = self._namespace.credential
                self._client = ServiceBusClient(self._place.host, credential, **ways)
        return self._client

    @contextlib.asynccontextmanager
    async def _receiver(self, name: str, seconds: float = _ANSWER_SECONDS) -> AsyncIterator[ServiceBusReceiver]:
        async with self._turns.setdefault(name, asyncio.Lock()):
            kept = self._kept.get(name)
            if kept is not None and time.monotonic() - kept.used > _KEPT_SECONDS:
                self._drop(name)
                kept = None
            if kept is None:
                if self._place.connection_string is None:
                    await self._namespace.signed_in()
                below = ServiceBusSubQueue.DEAD_LETTER if name == "dead" else None
                kept = _Kept(self._connected().get_queue_receiver(self._place.queue, sub_queue=below), 0.0)
                self._kept[name] = kept
            try:
                async with self._said(seconds):
                    yield kept.receiver
            except BaseException:
                self._drop(name)
                raise
            kept.used = time.monotonic()

    @contextlib.asynccontextmanager
    async def _said(self, seconds: float = _ANSWER_SECONDS) -> AsyncIterator[None]:
        """Turn what the SDK raises into what it means."""
        try:
            async with asyncio.timeout(seconds):
                yield
        except (JobqError, NoAnswer):
            raise
        except TimeoutError:
            raise NoAnswer(f"{self._place}: no answer over AMQP within {seconds:g} s") from None
        except Exception as error:  # noqa: BLE001 - the SDK raises what its transport trips over, too
            raise _meaning(error, self._place) from None

    def _drop(self, name: str) -> None:
        closing = asyncio.create_task(_close(self._kept.pop(name).receiver), name=f"closing {name} of {self._place}")
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)


def _over_websocket(namespace: Namespace) -> dict[str, Any]:
    """Return the settings for the SDK; the proxy in its own words."""
    ways: dict[str, Any] = {"transport_type": TransportType.AmqpOverWebsocket, "socket_timeout": _WEBSOCKET_SECONDS}
    if namespace.place.is_emulator:  # whose port is not 443
        ways["custom_endpoint_address"] = namespace.place.rest_url
    if namespace.proxy is not None:
        parts = urlsplit(namespace.proxy)
        named = {"username": parts.username, "password": parts.password}
        ways["http_proxy"] = {
            "proxy_hostname": f"{parts.scheme}://{parts.hostname}",
            "proxy_port": parts.port or (443 if parts.scheme == "https" else 80),
            **{name: unquote(value) for name, value in named.items() if value},
        }
    return ways


async def _close(receiver: ServiceBusReceiver) -> None:
    """Close it, and the transport: the SDK leaves that open when the connection broke in the middle of a request."""
    transport: Any = None
    with contextlib.suppress(AttributeError):  # never opened, or the SDK has changed: then it is closed when collected
        private: Any = receiver
        transport = private._handler._connection._transport  # noqa: SLF001 - see below
    with contextlib.suppress(Exception):
        await receiver.close()
    if transport is not None:
        with contextlib.suppress(Exception):
            await transport.close()


async def _settle_by_token(
    receiver: ServiceBusReceiver, settlement: str, tokens: Sequence[uuid.UUID], values: Mapping[str, Any]
) -> None:
    """Settle by the tokens of locks alone: this and its neighbours need names of the SDK which are not public.

    Its public methods take only messages that the SDK itself has received, over AMQP, and one in a request. A test
    fails when these change.
    """
    private: Any = receiver
    await private._settle_message_via_mgmt_link(settlement, list(tokens), dict(values))  # noqa: SLF001 - see above


async def _renew_by_token(receiver: ServiceBusReceiver, tokens: Sequence[uuid.UUID]) -> None:
    """Renew locks by their tokens alone; see above."""
    private: Any = receiver
    await private._renew_locks(*tokens, timeout=_ANSWER_SECONDS)  # noqa: SLF001 - see above


def _seen(message: "ServiceBusReceivedMessage") -> Seen:
    number = int(message.sequence_number or 0)
    enqueued = message.enqueued_time_utc
    properties = message.application_properties or {}
    return Seen(
        number=number,
        message_id=str(message.message_id or number),
        body=_bytes_of(message.body),
        ended=int(message.delivery_count or 0),
        is_scheduled=message.state == ServiceBusMessageState.SCHEDULED,
        is_deferred=message.state == ServiceBusMessageState.DEFERRED,
        enqueued=0.0 if enqueued is None else enqueued.timestamp(),
        reason=message.dead_letter_reason or "",
        description=message.dead_letter_error_description or "",
        properties={
            name.decode(errors="replace") if isinstance(name, bytes) else str(name): value
            for name, value in properties.items()
        },
        token=message.lock_token if isinstance(message.lock_token, uuid.UUID) else None,
    )


def _bytes_of(body: Any) -> bytes:
    if isinstance(body, bytes):
        return body
    if isinstance(body, str):
        return body.encode()
    try:
        return b"".join(part if isinstance(part, bytes) else str(part).encode() for part in body)
    except TypeError:  # a value of AMQP that is no sequence: another program's
        return str(body).encode()


def _meaning(error: Exception, place: QueueAddress) -> Exception:
    if isinstance(error, MessageLockLostError):
        return LockLost("the lock is gone: it ran out, or the task was settled")
    if isinstance(error, MessagingEntityNotFoundError):
        return QueueNotFound(f"there is no queue {place}; make it with: jobq {place} create")
    if isinstance(error, ServiceBusAuthenticationError | ServiceBusAuthorizationError):
        return AccessDenied(f"{place}: this key, token or role may not do that over AMQP")
    if isinstance(error, ServiceBusServerBusyError):
        return Throttled(f"{place} is busy")
    if isinstance(error, ServiceBusConnectionError):
        what = (
            f"no connection over AMQP, or it broke: is {place.host} right, the network up, and port 5671 open?"
            " JOBQ_SERVICE_BUS_WEBSOCKET=1 goes over 443"
        )
    else:
        what = "the answer over AMQP was lost" if isinstance(error, ServiceBusError) else "AMQP failed"
        what += f" ({type(error).__name__})"
    return NoAnswer(f"{place}: {what}")
