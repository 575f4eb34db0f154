"""Between HTTP's headers and bodies and the broker's messages."""

import json
import re
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import format_datetime, parsedate_to_datetime
from typing import Any, Final
from xml.sax.saxutils import escape

from aiohttp import web

from tests.emulators.service_bus.access import Right
from tests.emulators.service_bus.errors import BrokerError, Invalid, Unsupported
from tests.emulators.service_bus.message import Content, Message, State

BATCH: Final = "application/vnd.microsoft.servicebus.json"
_STATES: Final = {State.DEFERRED: "Deferred", State.SCHEDULED: "Scheduled"}
# Texts of BrokerProperties that are passed on, each with the content's own name for it.
_TEXTS: Final = {
    "Label": "subject",
    "CorrelationId": "correlation_id",
    "SessionId": "session_id",
    "To": "to",
    "ReplyTo": "reply_to",
    "ReplyToSessionId": "reply_to_session_id",
    "PartitionKey": "partition_key",
}
_FOREVER: Final = 922337203685.47754  # seconds, as the service writes "no end"
# Headers of HTTP and of the service itself; all others are properties of the message.
_NO_PROPERTIES: Final = frozenset(
    {
        *("accept", "accept-encoding", "authorization", "brokerproperties", "connection", "content-encoding"),
        *("content-length", "content-type", "cookie", "date", "expect", "host", "keep-alive", "location", "server"),
        *("set-cookie", "te", "traceparent", "trailer", "transfer-encoding", "upgrade", "user-agent"),
        "x-ms-retrypolicy",
    }
)
_HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


class Denied(BrokerError, condition="amqp:unauthorized-access", status=401):
    """The token is good, and does not grant this."""

    def __init__(self, right: Right) -> None:
        super().__init__(f"Authorization failed for specified action: {right}.")


def refusal(status: int, detail: str) -> web.Response:
    """Return an error as the service words it."""
    text = f"<Error><Code>{status}</Code><Detail>{escape(detail)} TrackingId:{uuid.uuid4()}</Detail></Error>"
    return web.Response(status=status, content_type="application/xml", text=text)


def http_date(seconds: float) -> str:
    """Return an instant as the service writes it: to the second."""
    return format_datetime(datetime.fromtimestamp(seconds, UTC), usegmt=True)


def read_contents(headers: Mapping[str, str], body: bytes) -> list[Content]:
    """Return the message, or the messages of a batch, that a request sends; raises Invalid."""
    try:
        if headers.get("Content-Type", "").startswith(BATCH):
            return [
                _content(
                    str(each["Body"]).encode(), each.get("BrokerProperties", {}), each.get("UserProperties", {}), None
                )
                for each in json.loads(body)
            ]
        own = {name: _unquoted(value) for name, value in headers.items() if name.lower() not in _NO_PROPERTIES}
        return [_content(body, json.loads(headers.get("BrokerProperties", "{}")), own, headers.get("Content-Type"))]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise Invalid(f"The request cannot be read: {error!r}") from error


def _content(body: bytes, broker: Mapping[str, Any], own: Mapping[str, Any], content_type: str | None) -> Content:
    when = broker.get("ScheduledEnqueueTimeUtc")
    lives = broker.get("TimeToLive")
    if lives is not None and not float(lives) >= 0:
        raise ValueError("TimeToLive")
    if broker.get("ViaPartitionKey") is not None:
        raise Unsupported("Sending via another queue is not emulated.")
    texts = {field: broker.get(name) for name, field in _TEXTS.items()}
    message_id = str(broker.get("MessageId") or uuid.uuid4().hex)
    for name, value in [*texts.items(), *own.items(), ("message_id", message_id)]:
        if isinstance(value, (list, dict)) or (name in texts and not isinstance(value, str | None)):
            raise ValueError(name)
    return Content(
        body=body,
        message_id=message_id,
        content_type=content_type,
        properties=dict(own),
        time_to_live=None if lives is None or float(lives) >= _FOREVER else float(lives),
        scheduled_for=None if when is None else parsedate_to_datetime(when).timestamp(),
        **texts,
    )


def headers_of(message: Message, first_delivery: int) -> dict[str, str]:
    """Return the headers of a message that is handed out.

    Args:
        message: what is received.
        first_delivery: what the count of a first delivery is; contested.
    """
    content = message.content
    broker: dict[str, Any] = {
        "DeliveryCount": message.delivery_count + first_delivery,
        "EnqueuedSequenceNumber": 0,
        "EnqueuedTimeUtc": http_date(message.enqueued),
        "SequenceNumber": message.number,
        "State": _STATES.get(message.state, "Active"),
        "TimeToLive": content.time_to_live or _FOREVER,
        "MessageId": content.message_id,
    }
    broker |= {name: getattr(content, field) for name, field in _TEXTS.items()}
    if message.lock is not None:
        broker |= {"LockToken": str(message.lock), "LockedUntilUtc": http_date(message.locked_until)}
    headers = {name: _quoted(value) for name, value in message.all_properties.items() if _is_header(name)}
    headers["Content-Type"] = content.content_type or "application/octet-stream"
    headers["BrokerProperties"] = json.dumps({name: value for name, value in broker.items() if value is not None})
    return headers


def _is_header(name: str) -> bool:
    """Whether a property can be shown: HTTP has headers of its own, and not every name is one."""
    return name.lower() not in _NO_PROPERTIES and _HEADER_NAME.fullmatch(name) is not None


def _quoted(value: object) -> str:
    text = str(value).replace("\r", " ").replace("\n", " ")  # a header is one line
    return f'"{text}"' if isinstance(value, str) else text


def _unquoted(value: str) -> str:
    return value[1:-1] if len(value) > 1 and value.startswith('"') and value.endswith('"') else value
