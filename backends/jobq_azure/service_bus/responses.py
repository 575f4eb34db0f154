"""What an answer of Service Bus means in jobq's errors, by what was asked.

Sources: learn.microsoft.com/rest/api/servicebus; where they contradict what was reported, both readings are taken.
404, 409 and 410 on the URI of a lock: the lock is gone. 429 and 503: it did nothing, for it was busy. Any other 5xx,
and 408: it may have done it. 403: over a quota, too large, or forbidden, which only its text distinguishes.

Whose answer is it? TLS says so, unless somebody on the way ends it, and no header is known to be on every answer of the
service's. So form decides, each way by what an error of ours would cost:
- done: the very status of the reference, and no page with it (its bodies are empty, or XML). A portal's page or a bare
  204 extends no lock and settles nothing (P1, S5).
- not done: only with the XML of an error of the service's; from anybody else it says nothing of what was done (S8).
- lock gone: with or without it, except as a page; to stop a task is always safe (P1), to go on is not.
- no right (401): with or without it, for a token that has ended must be replaced.
"""

import re
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
    Throttled,
)
from jobq_azure.common.errors import NoAnswer, ServiceFailed

if TYPE_CHECKING:
    from collections.abc import Mapping

GONE: Final = frozenset({HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT, HTTPStatus.GONE})
_BUSY: Final = frozenset({HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE})
# The bodies of the service's errors begin so: <Error><Code>401</Code><Detail>... TrackingId:...</Detail></Error>.
_ERROR: Final = re.compile(rb"\s*(?:\xef\xbb\xbf)?(?:<\?xml[^>]*>\s*)?<Error\b.*?<Code>", re.DOTALL)
_MISSING: Final = frozenset({HTTPStatus.NOT_FOUND, HTTPStatus.GONE})
# Words of a 403 that is one of size or room, and not of rights.
_TOO_LARGE: Final = ("size", "large")
_FULL: Final = ("quota", "entity full", "has reached")


@dataclass(frozen=True)
class Response:
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

    @property
    def is_plain(self) -> bool:
        """Whether it holds no more than the service sends where no message is asked for: nothing, or XML."""
        return not self.body.strip() or (not self.is_a_page and self.body.lstrip().startswith(b"<"))

    @property
    def is_a_page(self) -> bool:
        """Whether it is a page for people."""
        return "html" in self.headers.get("content-type", "").lower() or b"<html" in self.body[:1000].lower()

    @property
    def is_an_error(self) -> bool:
        """Whether it has the form of the service's errors."""
        return _ERROR.match(self.body) is not None


class ServiceRefused(JobqError):
    """A request that the service does not take."""


def check_lock(answer: Response, place: str) -> None:
    """Raise what an answer to a request on the URI of a lock means, unless it is 200."""
    if answer.status == HTTPStatus.OK and answer.is_plain:
        return
    if answer.status in GONE and not answer.is_a_page:
        raise LockLost(f"the lock is gone ({answer.status}): it ran out, or the task was settled")
    raise refusal(answer, place)


def check_sent(answer: Response, place: str) -> None:
    """Raise what an answer to a send means, unless it is 201."""
    if answer.status != HTTPStatus.CREATED or not answer.is_plain:
        raise _queue_refusal(answer, place)


def check_received(answer: Response, place: str, expected: int) -> None:
    """Raise what an answer to a receive means, unless it brings a message."""
    if answer.status != expected or "brokerproperties" not in answer.headers:
        raise _queue_refusal(answer, place)


def _queue_refusal(answer: Response, place: str) -> Exception:
    if not answer.is_an_error:
        return refusal(answer, place)
    if answer.status in _MISSING:
        return QueueNotFound(f"there is no queue {place}; make it with: jobq {place} create")
    if answer.status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE or _is_too_large(answer):
        return MalformedTask("is larger than this queue takes")
    return refusal(answer, place)


def refusal(answer: Response, place: str) -> Exception:  # noqa: PLR0911 - one row a kind
    """Return what any other answer means."""
    status = answer.status
    if status != HTTPStatus.UNAUTHORIZED and not answer.is_an_error:
        what = f"{place}: an answer ({status}) that does not look like the service's; what stands between?"
        return ServiceFailed(what) if status >= HTTPStatus.INTERNAL_SERVER_ERROR else NoAnswer(what)
    if status == HTTPStatus.UNAUTHORIZED or (status == HTTPStatus.FORBIDDEN and not _is_full(answer)):
        return AccessDenied(
            f"{place}: this key, token or role may not do that ({status}). A worker needs 'Azure Service Bus Data"
            " Receiver' and 'Azure Service Bus Data Sender' (Listen and Send), a pusher the second; who makes queues"
            " 'Azure Service Bus Data Owner' (Manage); a new role takes some minutes"
        )
    if status in _BUSY:
        return Throttled(f"{place} is busy ({status})")
    if status == HTTPStatus.FORBIDDEN:
        return BackendUnavailable(f"{place} is full ({status})")
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR or status == HTTPStatus.REQUEST_TIMEOUT:
        return ServiceFailed(f"{place}: the service failed ({status})")
    if status >= HTTPStatus.BAD_REQUEST:
        return ServiceRefused(f"{place}: the service refused the request ({status})")
    return NoAnswer(f"{place}: an answer that nobody expects ({status})")


def _is_too_large(answer: Response) -> bool:
    text = answer.text.lower()
    return answer.status == HTTPStatus.FORBIDDEN and any(word in text for word in _TOO_LARGE) and not _is_full(answer)


def _is_full(answer: Response) -> bool:
    return any(word in answer.text.lower() for word in _FULL)
