"""The admin API in Atom XML: as much as `ServiceBusAdministrationClient` needs for queues."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from typing import Final
from xml.etree import ElementTree as ET

from aiohttp import web
from pydantic import TypeAdapter, ValidationError

from tests.emulators.service_bus.description import MESSAGE_BYTES, Description
from tests.emulators.service_bus.errors import EntityMissing, Invalid
from tests.emulators.service_bus.faults import Request
from tests.emulators.service_bus.message import State
from tests.emulators.service_bus.queue import Queue
from tests.emulators.service_bus.service import Service

_ATOM: Final = "http://www.w3.org/2005/Atom"
_QUEUE: Final = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"
_COUNTS: Final = "http://schemas.microsoft.com/netservices/2011/06/servicebus"
_TYPE: Final = "application/atom+xml"
_ALL: Final = "$Resources/queues"
_DURATION: Final = TypeAdapter(timedelta)
_FOREVER: Final = "P10675199DT2H48M5.4775807S"
_ENDLESS: Final = "P106751"  # how the longest that .NET can say begins, with and without a fraction
_OFF: Final = frozenset({"", "false", "Active"})  # may be asked for of what is not emulated, too
_EMULATED: Final = frozenset(
    {
        *("LockDuration", "MaxDeliveryCount", "RequiresDuplicateDetection", "DuplicateDetectionHistoryTimeWindow"),
        *("DefaultMessageTimeToLive", "DeadLetteringOnMessageExpiration", "MaxMessageSizeInKilobytes"),
        # Without effect here; in the last case, in the service too:
        *("MaxSizeInMegabytes", "UserMetadata", "EnableBatchedOperations", "SupportOrdering"),
        # What the service itself fills in, and passes over when it is sent back:
        *("SizeInBytes", "MessageCount", "CountDetails", "CreatedAt", "UpdatedAt", "AccessedAt"),
        "EntityAvailabilityStatus",
    }
)
for _prefix, _uri in (("", _ATOM), ("sb", _QUEUE), ("d", _COUNTS)):
    ET.register_namespace(_prefix, _uri)


class Admin:
    """Makes, shows, changes and deletes queues.

    Args:
        service: whose.
    """

    def __init__(self, service: Service) -> None:
        self._service = service

    async def get(self, asked: web.Request, _: Request) -> web.Response:
        """Show a queue, or all; one that is missing is an empty feed, which the SDK knows."""
        name = asked.match_info["path"]
        broker = self._service.broker
        if name == _ALL:
            return _answer(feed(list(broker.queues.values())[int(asked.query.get("$skip", 0)) :]))
        try:
            return _answer(_entry(broker.queue(name)))
        except EntityMissing:
            return _answer(feed([]))

    async def put(self, asked: web.Request, _: Request) -> web.Response:
        """Make a queue; with `If-Match`, change one."""
        description = _read(asked.match_info["path"], await asked.read())
        broker = self._service.broker
        if "If-Match" not in asked.headers:
            return _answer(_entry(broker.create(description)), HTTPStatus.CREATED)
        queue = broker.queue(description.name)
        if bool(queue.description.dedup_window) != bool(description.dedup_window):
            raise Invalid("Duplicate detection cannot be switched on or off after the queue was made.")
        queue.description = description
        return _answer(_entry(queue))

    async def delete(self, asked: web.Request, _: Request) -> web.Response:
        """Delete a queue."""
        name = asked.match_info["path"]
        try:
            self._service.broker.delete(name)
        except EntityMissing as error:  # the admin API says 404, whatever the data plane does
            return web.Response(status=HTTPStatus.NOT_FOUND, text=str(error))
        return web.Response()


def _read(name: str, body: bytes) -> Description:
    """Return the description that a body asks for; raises Invalid."""
    try:
        texts = _texts(ET.fromstring(body))
        lives = _seconds(texts, "DefaultMessageTimeToLive", None)
        window = _seconds(texts, "DuplicateDetectionHistoryTimeWindow", 600.0)
        return Description(
            name,
            lock_duration=_seconds(texts, "LockDuration", 60.0) or 60.0,
            max_delivery_count=int(texts.get("MaxDeliveryCount") or 10),
            dedup_window=(window or 0.0) if texts.get("RequiresDuplicateDetection") == "true" else 0.0,
            max_message_bytes=int(texts.get("MaxMessageSizeInKilobytes") or MESSAGE_BYTES // 1024) * 1024,
            time_to_live=lives,
            dead_letters_expired=texts.get("DeadLetteringOnMessageExpiration") == "true",
        )
    except (ET.ParseError, ValidationError, ValueError) as error:
        raise Invalid(f"The description cannot be read: {error}") from error


def _texts(entry: ET.Element) -> dict[str, str]:
    """Return what a description asks for; raises Invalid for what the emulator has not, as for a tier that has not."""
    described = entry.find(f"{{{_ATOM}}}content/{{{_QUEUE}}}QueueDescription")
    if described is None:
        raise Invalid("SubCode=40000. The entity cannot be created: only queues are emulated.")
    texts = {_local(child.tag): "".join(child.itertext()).strip() for child in described}
    for name, text in texts.items():
        if name not in _EMULATED and text not in _OFF and not text.startswith(_ENDLESS):
            raise Invalid(f"SubCode=40000. The property '{name}' cannot be set to '{text}': it is not emulated.")
    return texts


def _seconds(texts: dict[str, str], name: str, default: float | None) -> float | None:
    text = texts.get(name)
    if not text:
        return default
    if text.startswith(_ENDLESS):
        return None
    return _DURATION.validate_python(text).total_seconds()


def _entry(queue: Queue) -> ET.Element:
    described, dead = queue.description, queue.dead
    now = datetime.now(UTC)
    entry = ET.Element(f"{{{_ATOM}}}entry")
    ET.SubElement(entry, f"{{{_ATOM}}}title", type="text").text = described.name
    content = ET.SubElement(entry, f"{{{_ATOM}}}content", type="application/xml")
    body = ET.SubElement(content, f"{{{_QUEUE}}}QueueDescription")
    created = datetime.fromtimestamp(queue.created, UTC)
    active, scheduled = queue.count(State.ACTIVE, State.LOCKED, State.DEFERRED), queue.count(State.SCHEDULED)
    dead_letters = len(dead.messages()) if dead is not None else 0
    texts = {
        "LockDuration": _iso(described.lock_duration),
        "MaxSizeInMegabytes": "1024",
        "RequiresDuplicateDetection": _bool(described.dedup_window > 0),
        "RequiresSession": "false",
        "DefaultMessageTimeToLive": _FOREVER if described.time_to_live is None else _iso(described.time_to_live),
        "DeadLetteringOnMessageExpiration": _bool(described.dead_letters_expired),
        "DuplicateDetectionHistoryTimeWindow": _iso(described.dedup_window or 600.0),
        "MaxDeliveryCount": str(described.max_delivery_count),
        "EnableBatchedOperations": "true",
        "SizeInBytes": str(queue.size + (dead.size if dead is not None else 0)),
        "MessageCount": str(active + scheduled + dead_letters),
        "Status": "Active",
        "CreatedAt": created.isoformat(),
        "UpdatedAt": created.isoformat(),
        "AccessedAt": now.isoformat(),
        "MaxMessageSizeInKilobytes": str(described.max_message_bytes // 1024),
    }
    for name, text in texts.items():
        ET.SubElement(body, f"{{{_QUEUE}}}{name}").text = text
    details = ET.SubElement(body, f"{{{_QUEUE}}}CountDetails")
    counts = {
        "Active": active,
        "DeadLetter": dead_letters,
        "Scheduled": scheduled,
        "Transfer": 0,
        "TransferDeadLetter": 0,
    }
    for name, number in counts.items():
        ET.SubElement(details, f"{{{_COUNTS}}}{name}MessageCount").text = str(number)
    return entry


def feed(queues: Sequence[Queue]) -> ET.Element:
    """Return what describes queues."""
    found = ET.Element(f"{{{_ATOM}}}feed")
    ET.SubElement(found, f"{{{_ATOM}}}title", type="text").text = "Publicly Listed Services"
    found.extend(_entry(queue) for queue in queues)
    return found


def _answer(element: ET.Element, status: HTTPStatus = HTTPStatus.OK) -> web.Response:
    return web.Response(status=status, body=ET.tostring(element), content_type=_TYPE)


def _iso(seconds: float) -> str:
    return f"PT{seconds:g}S" if seconds < 1e6 else f"PT{int(seconds)}S"


def _bool(value: bool) -> str:
    return "true" if value else "false"


def _local(tag: str) -> str:
    return tag.rpartition("}")[2]
