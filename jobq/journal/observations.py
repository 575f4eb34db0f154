"""What is seen of a queue from time to time, kept beside its journal: its depth, what ended, who works, who changed it.

All of it is small notes under a kind and a key, so a store needs one table and no knowledge of what they say. What they
say is in `minutes`, `presence` and `changes`; what is noted when, in `observing`.

What every verb may raise is what a backend's verbs raise, and ConfigurationError for what cannot be kept or is no page.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol, runtime_checkable

from jobq.errors import ConfigurationError
from jobq.journal.changes import QueueChange, is_change_key
from jobq.journal.minutes import EndedAttempts, QueueDepth
from jobq.journal.notes import DEPTH_MARK, MOST_KEY, MOST_VALUE, NoteKind, QueueNote, Written, time_of
from jobq.journal.presence import WorkerPresence
from jobq.journal.views import QueueLine, is_storable


class Observations(Protocol):
    """The notes of one queue."""

    async def line(self) -> QueueLine:
        """Return the queue as it is now, as `jobq.journal.views.Views.queue` does."""
        ...

    async def ended(self, since: float, until: float) -> EndedAttempts:
        """Return the attempts that ended within a time, at a cost of as many and no more.

        Args:
            since: seconds since the epoch; from there on.
            until: likewise; before that.
        """
        ...

    async def put(
        self, kind: NoteKind, key: str, value: str, *, replaces: bool, seconds: float | None = None
    ) -> Written:
        """Keep a note; repeating it is safe.

        Args:
            kind: of it.
            key: of it, 1 to MOST_KEY characters.
            value: of it, up to MOST_VALUE characters.
            replaces: whether it takes the place of one that is there; else that one stays.
            seconds: how long it may wait for others before it is given up; None = as long as any verb.
        """
        ...

    async def page(self, kind: NoteKind, after: str, limit: int) -> Sequence[QueueNote]:
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


def checked_note(kind: NoteKind, key: str, value: str) -> None:
    """Raise ConfigurationError for a note that a store would not keep as it is, or that nobody could read."""
    if not 1 <= len(key) <= MOST_KEY or len(value) > MOST_VALUE or not (is_storable(key) and is_storable(value)):
        raise ConfigurationError(f"a note of {len(key)} and {len(value)} characters, or of such, cannot be kept")
    is_key, decode = _FORMS[kind]
    if not is_key(key):
        raise ConfigurationError(f"{key[:80]!a} is not the key of a note of the kind {kind}")
    if decode(value) is None and not (kind is NoteKind.DEPTH and value == DEPTH_MARK):
        raise ConfigurationError(f"the value is not that of a note of the kind {kind}")


def _is_time(key: str) -> bool:
    return time_of(key) is not None


_FORMS: Final[Mapping[NoteKind, tuple[Callable[[str], bool], Callable[[str], object]]]] = {
    NoteKind.DEPTH: (_is_time, QueueDepth.decode),
    NoteKind.ENDED: (_is_time, EndedAttempts.decode),
    NoteKind.DEPTH_OF_HOUR: (_is_time, QueueDepth.decode),
    NoteKind.ENDED_OF_HOUR: (_is_time, EndedAttempts.decode),
    NoteKind.WORKER: (is_storable, WorkerPresence.decode),
    NoteKind.CHANGE: (is_change_key, QueueChange.decode),
}
