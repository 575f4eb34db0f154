"""What is seen of a queue from time to time, kept beside its journal: its depth, what ended, who works, who changed it.

All of it is small notes under a kind and a key, so a store needs one table and no knowledge of what they say. What they
say is in `minutes`, `presence` and `changes`; what is noted when, in `observing`.

What every verb may raise is what a backend's verbs raise, and ConfigurationError for what cannot be kept or is no page.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import Final, NamedTuple, Protocol, runtime_checkable

from jobq.errors import ConfigurationError
from jobq.journal.minutes import Ended
from jobq.journal.views import QueueLine, is_storable

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


class Note(NamedTuple):
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


class Observations(Protocol):
    """The notes of one queue."""

    async def line(self) -> QueueLine:
        """Return the queue as it is now, as `jobq.journal.views.Views.queue` does."""
        ...

    async def ended(self, since: float, until: float) -> Ended:
        """Return the attempts that ended within a time, at a cost of as many and no more.

        Args:
            since: seconds since the epoch; from there on.
            until: likewise; before that.
        """
        ...

    async def put(self, kind: NoteKind, key: str, value: str, *, replaces: bool) -> Written:
        """Keep a note; repeating it is safe.

        Args:
            kind: of it.
            key: of it, 1 to MOST_KEY characters.
            value: of it, up to MOST_VALUE characters.
            replaces: whether it takes the place of one that is there; else that one stays.
        """
        ...

    async def page(self, kind: NoteKind, after: str, limit: int) -> Sequence[Note]:
        """Return notes in the order of their keys, by code points.

        Args:
            kind: of them.
            after: the key that they are behind; "" = from the first.
            limit: 1 to MOST_NOTES.
        """
        ...

    async def drop(self, kind: NoteKind, keys: Sequence[str]) -> None:
        """Delete notes, up to MOST_NOTES; those that are not there are gone."""
        ...


@runtime_checkable
class Observed(Protocol):
    """A backend of a place that keeps notes of its queues."""

    def observations(self, queue: str = "") -> Observations | None:
        """Return the notes of a queue.

        Args:
            queue: of this place; "" = this one.

        Returns:
            None = none are kept: without a journal, or where nobody else could look.
        """
        ...


def observations_of(backend: object, queue: str = "") -> Observations | None:
    """Return the notes of a queue of a backend's place, its own by default; None = none are kept."""
    return backend.observations(queue) if isinstance(backend, Observed) else None


def time_key(at: int) -> str:
    """Return the key of a time: seconds since the epoch."""
    return f"{at:010d}"


def checked_note(key: str, value: str) -> None:
    """Raise ConfigurationError for a note that a store would not keep as it is."""
    if not 1 <= len(key) <= MOST_KEY or len(value) > MOST_VALUE or not (is_storable(key) and is_storable(value)):
        raise ConfigurationError(f"a note of {len(key)} and {len(value)} characters, or of such, cannot be kept")


def checked_notes(number: int) -> int:
    """Return the number of notes of one page or one drop; raises ConfigurationError."""
    if not 1 <= number <= MOST_NOTES:
        raise ConfigurationError(f"there are 1 to {MOST_NOTES} notes at once, not {number}")
    return number
