"""What the emulated service refuses, with AMQP condition and `$management` status; REST has statuses of its own."""

from typing import Final


class BrokerError(Exception):
    """The root of what the emulated service answers instead of doing what was asked."""

    condition = "amqp:internal-error"
    status = 500

    def __init_subclass__(cls, condition: str = condition, status: int = status) -> None:
        cls.condition, cls.status = condition, status


class LockLost(BrokerError, condition="com.microsoft:message-lock-lost", status=410):
    """The lock expired, or its message was settled."""

    def __init__(self) -> None:
        super().__init__(
            "The lock supplied is invalid. Either the lock expired, or the message has already been removed from the"
            " queue."
        )


class EntityMissing(BrokerError, condition="amqp:not-found", status=404):
    """There is no such queue."""

    def __init__(self, path: str) -> None:
        super().__init__(f"The messaging entity '{path}' could not be found.")


class EntityExists(BrokerError, condition="com.microsoft:entity-already-exists", status=409):
    """A queue of this name is there already."""


class MessageMissing(BrokerError, condition="com.microsoft:message-not-found", status=404):
    """No scheduled or deferred message has this sequence number."""


class TooLarge(BrokerError, condition="amqp:link:message-size-exceeded", status=413):
    """A message, or a batch, is over the queue's limit."""

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(f"The message size {size} is over the limit of {limit} bytes.")


class Invalid(BrokerError, condition="amqp:invalid-field", status=400):
    """A request that cannot be carried out as it is."""


class Unsupported(BrokerError, condition="amqp:not-implemented", status=501):
    """What the service has, and the emulator has not; the text says what."""


class NotAllowed(BrokerError, condition="amqp:not-allowed", status=400):
    """What the service has, and this entity is not made for."""


class Unauthorized(BrokerError, condition="amqp:unauthorized-access", status=401):
    """No token, a bad or expired one, or one without the right."""


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
        self.status = status
        self.condition = _CONDITIONS.get(status, BrokerError.condition)
