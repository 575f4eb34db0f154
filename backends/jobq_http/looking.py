"""How a service is asked for what it shows: what can be sent, where, and what an answer is that cannot be read."""

import re
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from jobq.errors import BackendUnavailable, QueueNotFound
from jobq.journal.view_wire import NOT_READ
from jobq_http.connection import HttpConnection, NoAnswer, unavailable

T = TypeVar("T")
MOST_SECONDS: Final = 10.0  # of one look, which takes two at most by itself
_QUEUE: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")  # as a service has them
_SURROGATES: Final = re.compile("[\ud800-\udfff]")


async def asked(connection: HttpConnection, path: str, body: Mapping[str, Any], seconds: float) -> Mapping[str, Any]:
    """Return what a service answers; a lost answer may be asked for again.

    Raises:
        JobqError: as `HttpConnection.request`.
    """
    try:
        found: Mapping[str, Any] = await connection.request("POST", path, dict(body), seconds=seconds)
    except NoAnswer as error:
        raise unavailable(error) from None
    return found


def of_queue(queue: str, verb: str) -> str:
    """Return the path of what is about a queue; raises QueueNotFound for a name that none has there."""
    if not _QUEUE.fullmatch(queue):
        raise QueueNotFound(f"queue {queue[:80]!a} does not exist")
    return f"/api/queues/{queue}/{verb}"


def sendable(text: str) -> str:
    """Return a text as JSON on the wire holds it: what is no character stands for nothing that is there."""
    return _SURROGATES.sub("\ufffd", text)


def read(made: Callable[[], T]) -> T:
    """Return what is made of an answer; raises BackendUnavailable for one that is none."""
    try:
        return made()
    except NOT_READ as error:
        raise BackendUnavailable(
            f"the service's answer cannot be read: {type(error).__name__}: {error}"[:300]
        ) from None
