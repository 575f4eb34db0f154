"""Small notes under a kind and a key: what is kept of a queue beside its tasks (`jobq.journal.observations`).

A worker writes them and the dashboard of an administrator reads them. So each value is read by a decoder that returns
None for whatever is not of its types and bounds: `decoded` is what these share.
"""

import re
from collections.abc import Callable
from enum import StrEnum
from typing import Any, Final, NamedTuple, TypeVar

from jobq.errors import ConfigurationError, MalformedTask
from jobq.formats import strict_json
from jobq.formats.checked import integer, number, text

MOST_NOTES: Final = 2000  # of one page, and of one drop
MOST_KEY: Final = 300  # characters
MOST_VALUE: Final = 8000  # characters
MOST_COUNT: Final = 2**53  # of anything that a note counts
_MOST_TIME: Final = 10**10 - 1  # seconds since the epoch: what a key has room for, in the year 2286
_TIME_KEY: Final = re.compile("[0-9]{10}")
DEPTH_MARK: Final = "{}"  # of the depth that somebody looks up just now
_DEPTH: Final = 3  # of the JSON of a note
_MOST_NAME: Final = 300  # characters of one text in a note
_T = TypeVar("_T")
checked_count: Final = integer(0, MOST_COUNT)


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


def time_of(key: str) -> int | None:
    """Return the time that `time_key` made a key of; None = it made no such key."""
    return int(key) if _TIME_KEY.fullmatch(key) else None


def decoded(value: str, read: Callable[[Any], _T]) -> _T | None:
    """Return what a note says; None = it is not JSON, or `read` refuses it."""
    try:
        return read(strict_json.loads_leniently(value, _DEPTH))
    except (MalformedTask, ValueError, KeyError, TypeError, AttributeError):
        return None


def checked_time(value: object) -> float:
    """Return a time in seconds since the epoch; raises ValueError for one that no calendar here shows."""
    if not 0 <= (found := number(value)) <= _MOST_TIME:
        raise ValueError(f"is out of range: 0 to {_MOST_TIME}")
    return found


def checked_name(value: object) -> str:
    """Return a short text; raises ValueError."""
    if len(found := text(value)) > _MOST_NAME:
        raise ValueError(f"has more than {_MOST_NAME} characters")
    return found


def checked_notes(number: int) -> int:
    """Return the number of notes of one page or one drop; raises ConfigurationError."""
    if not 1 <= number <= MOST_NOTES:
        raise ConfigurationError(f"there are 1 to {MOST_NOTES} notes at once, not {number}")
    return number
