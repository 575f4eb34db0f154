"""The queue's description and counts, over the admin API (Atom XML on the same host): 10 credits a request.

Only `create` needs it. Everything else lives without: who may not read gets None.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from http import HTTPStatus
from typing import Final
from xml.etree import ElementTree as ET

from jobq.errors import AccessDenied, ConfigurationError, QueueNotFound
from jobq_azure.common.errors import Unreadable
from jobq_azure.service_bus.namespace import Namespace
from jobq_azure.service_bus.responses import Response, refusal

_API: Final = "?api-version=2021-05"
_ATOM: Final = "http://www.w3.org/2005/Atom"
_QUEUE: Final = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"
_DURATION: Final = re.compile(r"P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:([\d.]+)S)?)?")
_FOR_EVER: Final = timedelta(days=10_000_000)  # as the service has it: the longest of .NET
_FOR_EVER_TEXT: Final = "P10675199DT2H48M5.4775807S"


@dataclass(frozen=True, kw_only=True)
class Description:
    """What a queue was made with, as far as it matters here, and what it holds.

    Attributes:
        lock: how long a lock lasts.
        max_deliveries: of one message, after which the service itself makes it a dead letter.
        dedup_window: in which a message id is remembered; zero = duplicates are not detected.
        time_to_live: of messages that name none; None = for ever.
        has_sessions: whether it hands out sessions alone, which jobq has none of.
        max_message_bytes: of one message; None = not known.
        active: visible and locked messages together.
        scheduled, dead: how many.
    """

    lock: timedelta
    max_deliveries: int
    dedup_window: timedelta
    time_to_live: timedelta | None
    has_sessions: bool
    max_message_bytes: int | None
    active: int
    scheduled: int
    dead: int


class Admin:
    """The admin API of one queue.

    Args:
        namespace: entered.
    """

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace
        self._place = str(namespace.place)
        self._path = f"/{namespace.place.queue}{_API}"

    async def describe(self, seconds: float = 10.0) -> Description:
        """Return the queue's description.

        Raises:
            QueueNotFound: there is none.
            AccessDenied: only who may manage the queue may read this.
            NoAnswer, BackendUnavailable
        """
        answer = await self._namespace.request("GET", self._path, seconds=seconds)
        if answer.status in {HTTPStatus.NOT_FOUND, HTTPStatus.GONE}:
            raise self._missing()
        if answer.status != HTTPStatus.OK:
            raise refusal(answer, self._place)
        found = self._read(answer)
        if found is None:  # the service answers with an empty feed for a queue that is not there
            raise self._missing()
        return found

    async def create(self, lock: timedelta, max_deliveries: int, dedup_window: timedelta, *, exist_ok: bool) -> None:
        """Make the queue; one that is there is left as it is.

        Raises:
            ConfigurationError: it is there, and `exist_ok` is false.
            AccessDenied, NoAnswer, BackendUnavailable
        """
        answer = await self._put(_entry(lock, max_deliveries, dedup_window), {})
        if answer.status == HTTPStatus.CONFLICT:
            if not exist_ok:
                raise ConfigurationError(f"the queue {self._place} exists")
        elif answer.status not in {HTTPStatus.CREATED, HTTPStatus.OK} or not answer.is_plain:
            error = refusal(answer, self._place)
            if isinstance(error, AccessDenied):
                raise AccessDenied(
                    f"{self._place}: no queue can be made with this key, token or role ({answer.status}): that needs"
                    " 'Azure Service Bus Data Owner' (Manage)"
                )
            raise error

    async def delete(self) -> None:
        """Delete the queue with all in it; one that is not there is no error.

        Raises:
            AccessDenied, NoAnswer, BackendUnavailable
        """
        answer = await self._namespace.request("DELETE", self._path)
        if answer.status not in {HTTPStatus.OK, HTTPStatus.NOT_FOUND, HTTPStatus.GONE}:
            raise refusal(answer, self._place)

    async def now(self) -> float:
        """Return the service's clock, in seconds since the epoch, to the second."""
        return (await self._namespace.request("GET", self._path)).date

    async def _put(self, body: bytes, headers: Mapping[str, str]) -> Response:
        sent = {"Content-Type": "application/atom+xml;type=entry;charset=utf-8", **headers}
        return await self._namespace.request("PUT", self._path, body=body, headers=sent)

    def _missing(self) -> QueueNotFound:
        return QueueNotFound(f"there is no queue {self._place}; make it with: jobq {self._place} create")

    def _read(self, answer: Response) -> Description | None:
        try:
            root = ET.fromstring(answer.body)  # noqa: S314 - from the service itself, over TLS
        except ET.ParseError:
            raise Unreadable(f"{self._place}: the queue's description cannot be read") from None
        found = root.find(f".//{{{_QUEUE}}}QueueDescription")
        if found is None:
            return None
        texts = {child.tag.rpartition("}")[2]: child.text or "" for child in found.iter()}
        try:
            lives = _duration(texts.get("DefaultMessageTimeToLive", _FOR_EVER_TEXT))
            kilobytes = int(texts.get("MaxMessageSizeInKilobytes") or 0)
            return Description(
                lock=_duration(texts["LockDuration"]),
                max_deliveries=int(texts["MaxDeliveryCount"]),
                dedup_window=(
                    _duration(texts["DuplicateDetectionHistoryTimeWindow"])
                    if texts.get("RequiresDuplicateDetection", "").lower() == "true"
                    else timedelta(0)
                ),
                time_to_live=None if lives >= _FOR_EVER else lives,
                has_sessions=texts.get("RequiresSession", "").lower() == "true",
                max_message_bytes=kilobytes * 1024 or None,
                active=int(texts.get("ActiveMessageCount") or 0),
                scheduled=int(texts.get("ScheduledMessageCount") or 0),
                dead=int(texts.get("DeadLetterMessageCount") or 0),
            )
        except (KeyError, ValueError):
            raise Unreadable(f"{self._place}: the queue's description cannot be read") from None


def _entry(lock: timedelta, max_deliveries: int, dedup_window: timedelta) -> bytes:
    """Return the body that makes a queue; the service wants the elements in this order."""
    elements = {
        "LockDuration": _text(lock),
        "RequiresDuplicateDetection": "true" if dedup_window else "false",
        "DefaultMessageTimeToLive": _FOR_EVER_TEXT,  # nothing expires by itself (S1)
        "DeadLetteringOnMessageExpiration": "true",
        **({"DuplicateDetectionHistoryTimeWindow": _text(dedup_window)} if dedup_window else {}),
        "MaxDeliveryCount": str(max_deliveries),
    }
    entry = ET.Element("entry", xmlns=_ATOM)
    content = ET.SubElement(entry, "content", type="application/xml")
    described = ET.SubElement(content, "QueueDescription", xmlns=_QUEUE)
    for name, text in elements.items():
        ET.SubElement(described, name).text = text
    body: bytes = ET.tostring(entry, encoding="utf-8", xml_declaration=True)
    return body


def _text(length: timedelta) -> str:
    return f"PT{length.total_seconds():g}S" if length < timedelta(days=1) else f"PT{int(length.total_seconds())}S"


def _duration(text: str) -> timedelta:
    found = _DURATION.fullmatch(text)
    if found is None:
        raise ValueError(text)
    days, hours, minutes, seconds = (float(part or 0) for part in found.groups())
    return timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
