"""Which tasks are meant: `command=*train*`, `host=node-7`, `exit=137`; several must all hold."""

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Final

from jobq.errors import ConfigurationError

FIELDS: Final = ("id", "state", "command", "host", "attempt", "exit", "signal", "reason", "error", "outcome", "batch")


def parsed(texts: Sequence[str], fields: Sequence[str] | None = FIELDS) -> list[tuple[str, str]]:
    """Return conditions as field and pattern; raises ConfigurationError for one that is none.

    Args:
        texts: FIELD=PATTERN each; in a pattern * stands for anything, ? for one character, [ab] for one of them.
        fields: those that can be asked for; None = any.
    """
    found = []
    for text in texts:
        field, equals, pattern = text.partition("=")
        if not equals or not field or (fields is not None and field not in fields):
            known = "" if fields is None else f" with one of {', '.join(fields)}"
            raise ConfigurationError(f"{text!a} is no condition: write FIELD=PATTERN{known}")
        found.append((field, pattern))
    return found


def holds(conditions: Sequence[tuple[str, str]], values: Mapping[str, object]) -> bool:
    """Return whether all conditions hold for these values; one that is not known matches the empty pattern only."""
    return all(fnmatchcase(_text(values.get(field)), pattern) for field, pattern in conditions)


def _text(value: object) -> str:
    return "" if value is None else str(value)
