"""The requests for what people look at, and for the notes of a queue, as models; see `schemas`.

Texts may be any that JSON holds: what no store can have as a name or an id is not there, and a view says so.
"""

from collections.abc import Iterable
from typing import Annotated, Final

from pydantic import Field

from jobq.journal.error_grouping import GROUPINGS
from jobq.journal.notes import MOST_KEY, MOST_NOTES, MOST_VALUE, NoteKind
from jobq.journal.records import TaskState
from jobq.journal.views import BUDGET, MOST_COUNTED, MOST_ROWS
from jobq.server.schemas import MAX_FIGURE, WHOLE, Body, Seconds

MOST_BUDGET_SECONDS: Final = 2.0  # of one look: a service has others to answer


def _one_of(words: Iterable[str]) -> str:
    return f"^({'|'.join(words)})$"


_Pattern = Annotated[str, Field(max_length=1000)]
_Name = Annotated[str, Field(max_length=200)]
_After = Annotated[str, Field(max_length=4000, description="The `after` of the page before this one.")]
_Rows = Annotated[int, Field(ge=1, le=MOST_ROWS), WHOLE]
_Notes = Annotated[int, Field(ge=1, le=MOST_NOTES), WHOLE]
_Time = Annotated[float, Field(ge=0, le=MAX_FIGURE, allow_inf_nan=False, description="Seconds since 1970.")]
_Key = Annotated[str, Field(min_length=1, max_length=MOST_KEY)]
_State = Annotated[str, Field(pattern=_one_of(TaskState))]
_Kind = Annotated[str, Field(pattern=_one_of(NoteKind))]
_Grouping = Annotated[str, Field(pattern=_one_of(GROUPINGS))]


class QueueLook(Body):
    """A look, and the time that it may take."""

    budget_seconds: Annotated[
        float, Field(ge=0, le=MOST_BUDGET_SECONDS, allow_inf_nan=False)
    ] = BUDGET.total_seconds()  # fmt: skip


class QueuesLook(QueueLook):
    """A page of queues."""

    after: _After = ""
    limit: _Rows = 50


class WantedTasks(Body):
    """Which tasks: all conditions hold; an empty one always does. In patterns * stands for anything."""

    states: Annotated[list[_State], Field(max_length=20, default_factory=list)]
    text: _Pattern = ""
    exit: _Pattern = ""
    host: _Pattern = ""
    reason: _Pattern = ""
    error: _Pattern = ""
    id_part: _Name = ""
    batch: _Name = ""
    min_age_seconds: Seconds | None = None
    max_age_seconds: Seconds | None = None


class TasksLook(QueuesLook):
    """A page of tasks."""

    wanted: WantedTasks = Field(default_factory=lambda: WantedTasks(states=[]))


class CountLook(QueueLook):
    """How many tasks; with more conditions than states it needs the scope view."""

    wanted: WantedTasks = Field(default_factory=lambda: WantedTasks(states=[]))
    most: Annotated[int, Field(ge=1, le=MOST_COUNTED), WHOLE] = MOST_COUNTED


class TaskLook(Body):
    """One task."""

    id: _Name


class OutputLook(TaskLook):
    """The end of what an attempt has printed; without a number, of the last that has ended."""

    attempt: Annotated[int | None, Field(ge=1, le=2**31 - 1), WHOLE] = None


class LeasesLook(QueuesLook):
    """A page of named leases."""

    prefix: _Name = ""


class GroupsLook(QueueLook):
    """What dead letters have in common."""

    grouping: Annotated[list[_Grouping], Field(min_length=1, max_length=10)]
    limit: _Rows = 50
    max_age_seconds: Seconds | None = None


class NotesLook(QueueLook):
    """A page of notes: depth and ends with the scope watch, others with view."""

    kind: _Kind
    after: _After = ""
    limit: _Notes = MOST_NOTES


class NotePut(Body):
    """A note to keep. Who has changed something needs the scope operate, and is named by the service."""

    kind: _Kind
    key: _Key
    value: Annotated[str, Field(max_length=MOST_VALUE)]
    replaces: bool


class NotesPage(Body):
    """A page of notes, for who keeps them."""

    kind: _Kind
    after: _After = ""
    limit: _Notes = MOST_NOTES


class NotesDrop(Body):
    """Notes to delete; changes that are not too old need the scope admin."""

    kind: _Kind
    keys: Annotated[list[Annotated[str, Field(max_length=MOST_KEY)]], Field(min_length=1, max_length=MOST_NOTES)]


class EndedLook(Body):
    """Attempts that ended within a time."""

    since: _Time
    until: _Time


class LineLook(Body):
    """The queue as it is now."""
