"""Small notes under a kind and a key: what is kept of a queue beside its tasks (`jobq.journal.observations`)."""

from enum import StrEnum
from typing import Final, NamedTuple

from jobq.errors import ConfigurationError

MOST_NOTES: Final = 2000  # of one page, and of one drop
MOST_KEY: Final = 300  # characters
MOST_VALUE: Final = 8000  # characters


class NoteKind(StrEnum):
    """What a note says, and what its key is.

    Those of a time have its beginning as the key (`time_key`), workers their holder, changes an id that sorts the
    latest first (`jobq.journal.changes.change_key`).
    """

    DEPTH = "depth"
    ENDED = "ended"
    DEPTH_OF_HOUR = "depth-of-hour"
    ENDED_OF_HOUR = "ended-of-hour"
    WORKER = "worker"
    CHANGE = "change"


class QueueNote(NamedTuple):
    """A note that is kept.

    Attributes:
        key: of its kind.
        value: what was written.
        age: seconds since that, by the store's clock.
    """

    key: str
    value: str
    age: float


class Written(NamedTuple):
    """What became of a note that was to be kept.

    Attributes:
        at: the store's time, in seconds since the epoch: workers' own clocks may differ.
        is_kept: whether it was written; False = another one stands there.
    """

    at: float
    is_kept: bool


def time_key(at: int) -> str:
    """Return the key of a time: seconds since the epoch."""
    return f"{at:010d}"


def checked_notes(number: int) -> int:
    """Return the number of notes of one page or one drop; raises ConfigurationError."""
    if not 1 <= number <= MOST_NOTES:
        raise ConfigurationError(f"there are 1 to {MOST_NOTES} notes at once, not {number}")
    return number
