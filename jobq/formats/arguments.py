"""Arguments of the library's verbs: what is of another type is refused by its name, before anything is done."""

from collections.abc import Iterable
from datetime import timedelta


def checked_span(name: str, value: object) -> timedelta:
    """Return a time span; raises TypeError for anything else, a number too: of what it would be is not said."""
    if not isinstance(value, timedelta):
        raise TypeError(f"{name} is a datetime.timedelta, such as timedelta(seconds=10), not {value!r:.100}")
    return value


def checked_seconds(name: str, value: object) -> float | None:
    """Return the seconds of a number or a time span, None for None; raises TypeError for anything else."""
    if isinstance(value, timedelta):
        return value.total_seconds()
    if value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
        return value
    raise TypeError(f"{name} is a number of seconds, or a datetime.timedelta, not {value!r:.100}")


def checked_ids(ids: object) -> list[str]:
    """Return several ids; raises TypeError for one alone, which is a sequence of characters, and for what is no id."""
    if isinstance(ids, str | bytes) or not isinstance(ids, Iterable):
        raise TypeError(f"ids are several: write [{ids!r:.100}] for one")
    found = list(ids)
    for number, id_ in enumerate(found):
        if not isinstance(id_, str):
            raise TypeError(f"ids[{number}] is of type {type(id_).__name__}, and an id is a string")
    return found
