"""What an answer of Service Bus means in jobq's errors, by what was asked.

Sources: learn.microsoft.com/rest/api/servicebus; where they contradict what was reported, both readings are taken.
404, 409 and 410 on the URI of a lock: the lock is gone. 429 and 503: it did nothing, for it was busy. Any other 5xx: it
may have done it. 403: over a quota, too large, or forbidden, which only its text tells apart.
"""

from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from jobq.errors import (
    AccessDenied,
    BackendUnavailable,
    JobqError,
    LockLost,
    MalformedTask,
    QueueNotFound,
)
from jobq_azure.answers import NoAnswer, ServiceFailed

if TYPE_CHECKING:
    from collections.abc import Mapping

GONE: Final = frozenset({HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT, HTTPStatus.GONE})
_BUSY: Final = frozenset({HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE})
_MISSING: Final = frozenset({HTTPStatus.NOT_FOUND, HTTPStatus.GONE})
# Words of a 403 that is one of size or room, and not of rights.
_TOO_LARGE: Final = ("size", "large")
_FULL: Final = ("quota", "entity full", "has reached")


@dataclass(frozen=True)
class Answer:
    """What the service has answered.

    Attributes:
        status: of HTTP.
        headers: all of them, by name in lower case.
        body: as it came.
        date: by the service's clock, in seconds since the epoch, to the second.
    """

    status: int
    headers: "Mapping[str, str]"
    body: bytes
    date: float

    @property
    def text(self) -> str:
        """The body, for looking into."""
        return self.body.decode(errors="replace")


class Refused(JobqError):
    """A request that the service does not take."""


def check_lock(answer: Answer, place: str) -> None:
    """Raise what an answer to a request on the URI of a lock means, unless it is 200."""
    if answer.status == HTTPStatus.OK:
        return
    if answer.status in GONE:
        raise LockLost(f"the lock is gone ({answer.status}): it ran out, or the task was settled")
    raise refusal(answer, place)


def check_queue(answer: Answer, place: str, expected: int) -> None:
    """Raise what an answer to a request on a queue means, unless it is the expected one."""
    if answer.status == expected:
        return
    if answer.status in _MISSING:
        raise QueueNotFound(f"there is no queue {place}; make it with: jobq {place} create")
    if answer.status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE or _is_too_large(answer):
        raise MalformedTask("is larger than this queue takes")
    raise refusal(answer, place)


def refusal(answer: Answer, place: str) -> Exception:
    """Return what any other answer means."""
    status = answer.status
    if status == HTTPStatus.UNAUTHORIZED or (status == HTTPStatus.FORBIDDEN and not _is_full(answer)):
        return AccessDenied(
            f"{place}: this key, token or role may not do that ({status}). A worker needs 'Azure Service Bus Data"
            " Receiver' and 'Azure Service Bus Data Sender' (Listen and Send), a pusher the second; who makes queues"
            " 'Azure Service Bus Data Owner' (Manage); a new role takes some minutes"
        )
    if status == HTTPStatus.FORBIDDEN:
        return BackendUnavailable(f"{place} is full ({status})")
    if status in _BUSY:
        return BackendUnavailable(f"{place} is busy ({status})")
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return ServiceFailed(f"{place}: the service failed ({status})")
    if status >= HTTPStatus.BAD_REQUEST:
        return Refused(f"{place}: the service refused the request ({status})")
    return NoAnswer(f"{place}: an answer that nobody expects ({status})")


def _is_too_large(answer: Answer) -> bool:
    text = answer.text.lower()
    return answer.status == HTTPStatus.FORBIDDEN and any(word in text for word in _TOO_LARGE) and not _is_full(answer)


def _is_full(answer: Answer) -> bool:
    return any(word in answer.text.lower() for word in _FULL)
