"""What a client did wrong, by what it ends: its connection, a session or a link. The conditions are the standard's."""

from typing import Final

from jobq.testing.amqp.performatives import Error

DECODE_ERROR: Final = "amqp:decode-error"
ILLEGAL_STATE: Final = "amqp:illegal-state"
INVALID_FIELD: Final = "amqp:invalid-field"
NOT_ALLOWED: Final = "amqp:not-allowed"
RESOURCE_LIMIT: Final = "amqp:resource-limit-exceeded"
FRAMING_ERROR: Final = "amqp:connection:framing-error"
HANDLE_IN_USE: Final = "amqp:session:handle-in-use"
UNATTACHED_HANDLE: Final = "amqp:session:unattached-handle"
MESSAGE_SIZE: Final = "amqp:link:message-size-exceeded"
TRANSFER_LIMIT: Final = "amqp:link:transfer-limit-exceeded"


class AmqpFault(Exception):
    """The root; what it is about is ended with this error.

    Args:
        condition: the standard's name for it.
        text: for a human.
    """

    def __init__(self, condition: str, text: str) -> None:
        super().__init__(text)
        self.error = Error(condition=condition, description=text)


class ConnectionFault(AmqpFault):
    """Ends the connection."""


class SessionFault(AmqpFault):
    """Ends the session."""


class LinkFault(AmqpFault):
    """Ends the link."""
