"""The XML of a Storage Queue: a message as it is sent, and messages as they are handed out.

https://learn.microsoft.com/rest/api/storageservices/put-message, get-messages and update-message.
"""

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from functools import lru_cache
from typing import Final

from jobq.errors import MalformedTask

_NEVER: Final = 9999  # the year in which the service says that such messages expire
MOST_DIGITS: Final = 12  # of a count
# XML 1.0, production 2: what else there is in a text can be in no message.
_NO_XML: Final = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_DOCTYPE: Final = "<!DOCTYPE"


@dataclass(frozen=True, kw_only=True)
class Message:
    """A message as it was handed out.

    Attributes:
        id: the service's.
        text: as stored.
        receipt: fences what is done with it; empty when it was only peeked at.
        deliveries: how often it was handed out, this time included.
        inserted: when it was put into the queue, in seconds since 1970 by the service's clock; 0 = it did not say.
        expires: when the service deletes it, leased or not, in seconds since 1970 by its clock; 0 = never.
        leased_until: when its lease ends, likewise; 0 = it did not say, or it was only peeked at.
    """

    id: str
    text: str = field(repr=False)
    receipt: str = field(repr=False)  # a secret of the worker's (A6)
    deliveries: int
    inserted: int = 0
    expires: int = 0
    leased_until: int = 0

    @property
    def expires_under_lease(self) -> bool:
        """Whether the service may delete it before its lease ends."""
        return self.expires > 0 and not 0 < self.leased_until < self.expires


def written(text: str) -> bytes:
    """Return the body of a request that stores a text; raises MalformedTask where XML cannot hold it."""
    if (found := _NO_XML.search(text)) is not None:
        raise MalformedTask(f"holds the character U+{ord(found[0]):04X}, which no message of a Storage Queue can hold")
    # A carriage return as it is would be read as a line feed.
    escaped = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("\r", "&#13;")
    return f"<QueueMessage><MessageText>{escaped}</MessageText></QueueMessage>".encode()


def read(body: bytes) -> list[Message]:
    """Return the messages that the body of an answer holds.

    Raises:
        ValueError: it is none of the service's, or one of its messages is no message.
    """
    return [_message(fields) for fields in _each(body)]


def _each(body: bytes) -> Iterable[Mapping[str, str]]:
    text = body.decode("utf-8-sig")  # whatever it declares
    if _DOCTYPE in text[: text.find("<QueueMessagesList")]:  # the service sends none, and it could make much of little
        raise ValueError("an answer with a document type")
    try:
        root = ET.fromstring(text)  # noqa: S314 - entities are declared in document types alone
    except ET.ParseError as error:
        raise ValueError(str(error)) from None
    if root.tag != "QueueMessagesList":
        raise ValueError("an answer of another kind")
    for element in root:
        fields = {child.tag: child.text or "" for child in element}
        if len(fields) != len(element):
            raise ValueError("a message that says something twice")
        yield fields


def _message(fields: Mapping[str, str]) -> Message:
    count = fields.get("DequeueCount") or "0"
    if not fields.get("MessageId") or not (count.isascii() and count.isdecimal() and len(count) <= MOST_DIGITS):
        raise ValueError("a message without an id, or a count")
    return Message(
        id=fields["MessageId"],
        text=fields.get("MessageText", ""),
        receipt=fields.get("PopReceipt", ""),
        deliveries=int(count),
        inserted=_seconds(fields.get("InsertionTime", "")),
        expires=_end(fields.get("ExpirationTime", "")),
        leased_until=_seconds(fields.get("TimeNextVisible", "")),
    )


@lru_cache(maxsize=256)
def _seconds(date: str) -> int:
    return max(0, int(parsedate_to_datetime(date).timestamp())) if date else 0


@lru_cache(maxsize=256)
def _end(date: str) -> int:
    if not date or parsedate_to_datetime(date).year >= _NEVER:
        return 0
    return max(1, _seconds(date))
