"""What a queue is made with, and the service's limits."""

from dataclasses import dataclass
from typing import Final

DEAD_LETTERS: Final = "$DeadLetterQueue"
DEAD_LETTER_TEXT: Final = 4096  # characters of a reason, and of a description
MESSAGE_BYTES: Final = 256 * 1024  # of Standard


@dataclass(frozen=True)
class Description:
    """What a queue is made with.

    Attributes:
        name: of the queue.
        lock_duration: seconds.
        max_delivery_count: deliveries after which a message goes to the dead-letter sub-queue.
        dedup_window: seconds in which a message id is remembered; 0 = no duplicate detection.
        max_message_bytes: of a message, and of a batch.
        time_to_live: seconds of messages that name none; None = for ever.
        dead_letters_expired: whether messages whose time to live is over become dead letters, or vanish.
    """

    name: str
    lock_duration: float = 60.0
    max_delivery_count: int = 10
    dedup_window: float = 0.0
    max_message_bytes: int = MESSAGE_BYTES
    time_to_live: float | None = None
    dead_letters_expired: bool = False
