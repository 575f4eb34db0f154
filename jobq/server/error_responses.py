"""Errors as answers: which status and word each of jobq's errors has over HTTP, and what a refusal of our own is."""

from typing import Any, Final

from jobq.errors import (
    AccessDenied,
    AnswerLost,
    BackendUnavailable,
    BatchNotFound,
    BatchSealed,
    ConfigurationError,
    ConfirmationDiffers,
    DuplicateTask,
    JobqError,
    LockLost,
    MalformedTask,
    PushUnknown,
    QueueNotFound,
    SettlementUnknown,
    StoreUnusable,
)


class RequestRefused(Exception):
    """A request is answered with this problem, and changes nothing.

    Args:
        status: of HTTP.
        code: one word for programs.
        message: for people.
        headers: to add.
        more: fields of the error beside code and message.
    """

    def __init__(
        self, status: int, code: str, message: str, *, headers: tuple[tuple[str, str], ...] = (), **more: Any
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.headers = headers
        self.more = more


_RETRY: Final = (("Retry-After", "1"),)
# In this order: the first that fits.
_OF_ERRORS: Final[tuple[tuple[type[JobqError], int, str], ...]] = (
    (LockLost, 409, "lease_gone"),
    (ConfirmationDiffers, 409, "confirmed_otherwise"),
    (DuplicateTask, 409, "duplicate"),
    (BatchSealed, 409, "batch_sealed"),
    (MalformedTask, 400, "malformed_task"),
    (QueueNotFound, 404, "queue_not_found"),
    (BatchNotFound, 404, "batch_not_found"),
    (PushUnknown, 504, "unknown"),
    (SettlementUnknown, 504, "unknown"),
    (AnswerLost, 504, "unknown"),
    (BackendUnavailable, 503, "unavailable"),
    (StoreUnusable, 503, "store_unusable"),
    (AccessDenied, 503, "store_refuses"),  # the service's own rights, none of the caller's
    (ConfigurationError, 400, "refused"),
)
_ABOUT_THE_STORE: Final = {
    "queue_not_found": "{queue} does not exist; `jobq QUEUE create` or a first push makes it",
    "unavailable": "the store does not answer; nothing was changed, try again",
    "unknown": "the store's answer was lost: it may or may not have been done; the same request again says which",
    "store_unusable": "the store cannot be used as it is; the service's log says why",
    "store_refuses": "the store refuses the service; the service's log says why",
}


def refused_for(error: JobqError, queue: str = "") -> RequestRefused:
    """Return the answer to an error; what it or its cause says of the store's place stays in the log (A5).

    Args:
        error: of the store.
        queue: that was asked for; empty = not said here.
    """
    said = str(error).replace(f": {error.__cause__}", "")
    for kind, status, code in _OF_ERRORS:
        if isinstance(error, kind):
            headers = _RETRY if code == "unavailable" else ()
            name = f"the queue {queue!a}" if queue else "this queue"
            said = _ABOUT_THE_STORE[code].format(queue=name) if code in _ABOUT_THE_STORE else said
            return RequestRefused(status, code, said, headers=headers)
    return RequestRefused(500, "internal", "the service failed; its log says how")
