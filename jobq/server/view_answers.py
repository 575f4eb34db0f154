"""The answers to who looks, and to who notes something of a queue, as models; see `answers`."""

from typing import Annotated, Any

from pydantic import Field

from jobq.server.answers import Answer, PauseMark


class SearchLimit(Answer):
    """How far a look came that had no time for more."""

    looked_at: int
    at: float | None = None


class RowsPage(Answer):
    """Some rows of a list; `after` for those behind them, which there are none of without it."""

    rows: list[dict[str, Any]]
    after: str | None = None
    searched_to: SearchLimit | None = None


class TasksCounted(Answer):
    """How many there are, or at least are."""

    number: int
    is_exact: bool
    now: float
    searched_to: SearchLimit | None = None


class QueueLineShown(Answer):
    """A queue in a list."""

    name: str
    counts: dict[str, dict[str, Any]]
    ended: dict[str, dict[str, Any]]
    oldest_ready_seconds: float | None = None
    paused: PauseMark | None = None


class QueueLines(Answer):
    """Some queues; `after` for those behind them, which there are none of without it."""

    rows: list[QueueLineShown]
    after: str | None = None
    searched_to: SearchLimit | None = None


class OneTask(Answer):
    """A task, without its body and the values of its variables; null = nothing is known of it."""

    task: dict[str, Any] | None


class LetterGroups(Answer):
    """Groups of dead letters, the largest first."""

    groups: list[dict[str, Any]]
    others: int
    searched_to: SearchLimit | None = None


class NoteShown(Answer):
    """A note; blank where it is none of the caller's business."""

    key: str
    value: str
    age: Annotated[float, Field(description="Seconds.")]


class NotesShown(Answer):
    """Some notes, by key."""

    notes: list[NoteShown]


class NoteKept(Answer):
    """What became of a note."""

    at: Annotated[float, Field(description="The store's time, seconds since 1970.")]
    is_kept: Annotated[bool, Field(description="Whether it was written: else another one stands there.")]


class EndsCounted(Answer):
    """Attempts that ended."""

    outcomes: dict[str, int]
    runs: list[int]
    waits: list[int]
