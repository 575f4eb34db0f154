"""What the emulated service refuses, with AMQP condition and `$management` status; REST has statuses of its own."""

from typing import ClassVar, Final


class BrokerError(Exception):
    """The root of what the emulated service answers instead of doing what was asked."""

    condition: ClassVar[str] = "amqp:internal-error"
    status: ClassVar[int] = 500


class LockLost(BrokerError):
    """The lock expired, or its message was settled."""

    condition = "com.microsoft:message-lock-lost"
    status = 410

    def __init__(self) -> None:
        super().__init__(
            "The lock supplied is invalid. Either the lock expired, or the message has already been removed from the"
            " queue."
        )


class EntityMissing(BrokerError):
    """There is no such queue."""

    condition = "amqp:not-found"
    status = 404

    def __init__(self, path: str) -> None:
        super().__init__(f"The messaging entity '{path}' could not be found.")


class EntityExists(BrokerError):
    """A queue of this name is there already."""

    condition = "com.microsoft:entity-already-exists"
    status = 409


class MessageMissing(BrokerError):
    """No scheduled or deferred message has this sequence number."""

    condition = "com.microsoft:message-not-found"
    status = 404


class TooLarge(BrokerError):
    """A message, or a batch, is over the queue's limit."""

    condition = "amqp:link:message-size-exceeded"
    status = 413

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(f"The message size {size} is over the limit of {limit} bytes.")


class QuotaExceeded(BrokerError):
    """A queue is full."""

    condition = "amqp:resource-limit-exceeded"
    status = 403

    def __init__(self, megabytes: int) -> None:
        super().__init__(f"The maximum entity size of {megabytes} megabytes has been reached.")


class Invalid(BrokerError):
    """A request that cannot be carried out as it is."""

    condition = "amqp:invalid-field"
    status = 400


class Unsupported(BrokerError):
    """What the service has, and the emulator has not; the text says what."""

    condition = "amqp:not-implemented"
    status = 501


class NotAllowed(BrokerError):
    """What the service has, and this entity is not made for."""

    condition = "amqp:not-allowed"
    status = 400


class Unauthorized(BrokerError):
    """No token, a bad or expired one, or one without the right."""

    condition = "amqp:unauthorized-access"
    status = 401


class Busy(BrokerError):
    """More was asked than the service grants in a second."""

    condition = "com.microsoft:server-busy"
    status = 503

    def __init__(self) -> None:
        super().__init__(
            "The request was terminated because the namespace is being throttled. Error code: 50009. Wait 2 seconds."
        )


_CONDITIONS: Final = {
    400: "amqp:invalid-field",
    401: "amqp:unauthorized-access",
    403: "amqp:resource-limit-exceeded",
    404: "amqp:not-found",
    410: "com.microsoft:message-lock-lost",
    413: "amqp:link:message-size-exceeded",
    429: "com.microsoft:server-busy",
    503: "com.microsoft:server-busy",
    504: "com.microsoft:timeout",
}


class Injected(BrokerError):
    """A fault that a test asked for.

    Args:
        status: of HTTP; over AMQP it becomes the condition that means the same.
    """

    def __init__(self, status: int) -> None:
        super().__init__(f"fault {status}, injected by the test")
        self.injected_status = status
        self.injected_condition = _CONDITIONS.get(status, BrokerError.condition)


def status_of(error: BrokerError) -> int:
    """Return the status that `$management` answers with."""
    return error.injected_status if isinstance(error, Injected) else error.status


def condition_of(error: BrokerError) -> str:
    """Return the AMQP error condition."""
    return error.injected_condition if isinstance(error, Injected) else error.condition
