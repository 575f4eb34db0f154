"""A filter of tasks as a page's address has it."""

from collections.abc import Mapping
from dataclasses import dataclass
from glob import escape

from starlette.datastructures import QueryParams

from jobq.formats import durations
from jobq.journal.records import TaskState
from jobq.journal.task_filter import TaskFilter

_PATTERNS = ("text", "exit", "host", "reason", "error", "batch")
_MOST_CHARACTERS = 500  # what a group of dead letters has in common, each character of which may be escaped


@dataclass(frozen=True, kw_only=True)
class FilterForm:
    """What somebody filled in.

    Attributes:
        wanted: what it says.
        given: the fields as they were given, without those that are empty.
        problems: by field, what is wrong with it; it is left out of `wanted`.
    """

    wanted: TaskFilter
    given: Mapping[str, str]
    problems: Mapping[str, str]


def read(query: QueryParams) -> FilterForm:
    """Return the filter of an address: state (several), text, exit, host, reason, error, batch, id, age."""
    given = {name: query[name][:_MOST_CHARACTERS] for name in (*_PATTERNS, "id", "age") if query.get(name, "").strip()}
    problems: dict[str, str] = {}
    states = set()
    for name in query.getlist("state"):
        if name in set(TaskState):
            states.add(TaskState(name))
        elif name:
            problems["state"] = f"there is no state {name[:40]!r}"
    at_least, at_most = _ages(given.get("age", ""), problems)
    wanted = TaskFilter(
        states=frozenset(states),
        id_part=given.get("id", ""),
        min_age_seconds=at_least,
        max_age_seconds=at_most,
        **{name: given.get(name, "") for name in _PATTERNS},
    )
    return FilterForm(wanted=wanted, given=given, problems=problems)


def _ages(age: str, problems: dict[str, str]) -> tuple[float | None, float | None]:
    if not age:
        return None, None
    try:
        seconds = durations.parse(age.strip().lstrip("<>")).total_seconds()
    except ValueError as error:
        problems["age"] = str(error)
        return None, None
    return (None, seconds) if age.strip().startswith("<") else (seconds, None)


def exactly(values: Mapping[str, str]) -> Mapping[str, str]:
    """Return the fields that take these values and no others, such as what dead letters have in common."""
    return {name: escape(value) if name in _PATTERNS else value for name, value in values.items()}
