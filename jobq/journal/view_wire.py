"""What views and notes give, as JSON fields, for those who look over a network.

`fields_of` writes any of it; each reader leaves out what a newer jobq has added, and raises one of NOT_READ for what is
no such thing.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import is_dataclass
from typing import Any, Final, TypeVar

from jobq.formats.checked import Checked
from jobq.journal.minutes import EndedAttempts
from jobq.journal.notes import QueueNote
from jobq.journal.records import Beat, TaskState
from jobq.journal.task_filter import TaskFilter
from jobq.journal.task_rows import TaskDetail, TaskRow
from jobq.journal.views import Count, DeadGroup, DeadGroups, QueueLine, SearchedTo, ViewPage
from jobq.journal.wire import attempt_fields, attempt_of
from jobq.lease.store import LeaseRecord, LeaseState
from jobq.pausing import Pause
from jobq.task import Budgets, Counters

T = TypeVar("T")
Read = Callable[[Mapping[str, Any]], T]
NOT_READ: Final = (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)


def fields_of(value: Any) -> Any:
    """Return a value of a view as JSON holds it, without what is not known."""
    if isinstance(value, Checked):
        return value.as_dict()
    if is_dataclass(value):
        held = {name: fields_of(each) for name, each in vars(value).items() if each is not None}
        if isinstance(value, TaskDetail):
            held["attempts"] = [attempt_fields(each) for each in value.attempts]
        return held
    if isinstance(value, QueueNote):
        return value._asdict()
    if isinstance(value, Mapping):
        return {str(name): fields_of(each) for name, each in value.items()}
    if isinstance(value, (list, tuple, frozenset)):
        return [fields_of(each) for each in value]
    return value


def page_of(held: Mapping[str, Any], row_of: Read[T]) -> ViewPage[T]:
    """Return a page, with what reads its rows."""
    return ViewPage(
        rows=[row_of(each) for each in held["rows"]], after=held.get("after"), searched_to=_searched_to(held)
    )


def line_of(held: Mapping[str, Any]) -> QueueLine:
    """Return a queue in a list."""
    return _made(
        QueueLine,
        held,
        counts=_counts(held["counts"]),
        ended=_counts(held["ended"]),
        paused=_maybe(held, "paused", lambda mark: _made(Pause, mark)),
    )


def count_of(held: Mapping[str, Any]) -> Count:
    """Return a count."""
    return _made(Count, held, searched_to=_searched_to(held))


def row_of(held: Mapping[str, Any]) -> TaskRow:
    """Return a task in a list."""
    beat = _maybe(held, "beat", lambda told: _made(Beat, told))
    return _made(TaskRow, held, state=TaskState(held["state"]), beat=beat)


def detail_of(held: Mapping[str, Any]) -> TaskDetail:
    """Return what the page of a task shows."""
    return _made(
        TaskDetail,
        held,
        row=row_of(held["row"]),
        attempts=[attempt_of(each) for each in held["attempts"]],
        budgets=_maybe(held, "budgets", lambda kept: Budgets(_known(Budgets.FIELDS, kept))),
        counters=_maybe(held, "counters", lambda kept: Counters(_known(Counters.FIELDS, kept))),
        variables=tuple(held.get("variables", ())),
        on_exit=tuple(held.get("on_exit", ())),
        signed_by=tuple(held.get("signed_by", ())),
    )


def lease_of(held: Mapping[str, Any]) -> LeaseRecord:
    """Return a named lease."""
    unknown: dict[str, Any] = dict.fromkeys(("remaining", "renewals", "cursor"))  # what is None is left out
    return _made(LeaseRecord, {**unknown, **held}, state=LeaseState(held["state"]))


def groups_of(held: Mapping[str, Any]) -> DeadGroups:
    """Return groups of dead letters."""
    groups = [_made(DeadGroup, each) for each in held["groups"]]
    return _made(DeadGroups, held, groups=groups, searched_to=_searched_to(held))


def note_of(held: Mapping[str, Any]) -> QueueNote:
    """Return a note."""
    return QueueNote(str(held["key"]), str(held["value"]), float(held["age"]))


def ended_of(held: Mapping[str, Any]) -> EndedAttempts:
    """Return attempts that were counted."""
    return _made(EndedAttempts, held, runs=tuple(held["runs"]), waits=tuple(held["waits"]))


def filter_of(held: Mapping[str, Any]) -> TaskFilter:
    """Return the conditions that `fields_of` has written."""
    return _made(TaskFilter, held, states=frozenset(map(TaskState, held.get("states", ()))))


def _counts(held: Mapping[str, Any]) -> dict[TaskState, Count]:
    known = set(TaskState)
    return {TaskState(state): count_of(each) for state, each in held.items() if state in known}


def _searched_to(held: Mapping[str, Any]) -> SearchedTo | None:
    return _maybe(held, "searched_to", lambda place: _made(SearchedTo, place))


def _maybe(held: Mapping[str, Any], name: str, read: Read[T]) -> T | None:
    found = held.get(name)
    return None if found is None else read(found)


def _made(kind: Callable[..., T], held: Mapping[str, Any], **own: Any) -> T:
    names: Sequence[str] = kind.__annotations__  # type: ignore[assignment] # of a class: its fields
    return kind(**(_known(names, held) | own))


def _known(names: "Sequence[str] | Mapping[str, Any]", held: Mapping[str, Any]) -> dict[str, Any]:
    return {name: held[name] for name in names if name in held}
