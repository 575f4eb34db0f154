"""What dead letters have in common: how they ended, on which host, and their last words with all that varies folded."""

import hashlib
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final

from jobq.errors import ConfigurationError

GROUPINGS: Final = ("reason", "exit", "error", "host")
_OUTPUT: Final = "\nlast output:\n"
_MOST_CHARACTERS: Final = 160
_EXIT: Final = re.compile(r"\bexit code (\d+)")
_SIGNAL: Final = re.compile(r"\bsignal (\d+)")
# In this order: an id is no number, and a path may hold both.
_FOLDED: Final = (
    (re.compile(r"\b[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\b"), "<id>"),
    (re.compile(r"\b0x[0-9a-fA-F]+\b"), "<id>"),
    (re.compile(r"\b(?=[0-9a-fA-F]*\d)(?=[0-9a-fA-F]*[a-fA-F])[0-9a-fA-F]{8,}\b"), "<id>"),
    (re.compile(r"(?<![\w/])~?/(?:[\w.@%+=:,-]+/?)+"), "<path>"),
    (re.compile(r"[-+]?\d+(?:[.,]\d+)*(?:[eE][-+]?\d+)?"), "<n>"),
    (re.compile(r"\s+"), " "),
)
# All but 0, for 0x: which ones they are changes nothing of what is folded, and thousands of errors become a few texts.
_ALIKE: Final = str.maketrans("23456789", "11111111")


def folded(text: str) -> str:
    """Return one line with ids, paths and numbers folded, so that the same fault reads the same each time."""
    return _folded(text[: 4 * _MOST_CHARACTERS].translate(_ALIKE))


@lru_cache(maxsize=1024)
def _folded(text: str) -> str:
    for pattern, word in _FOLDED:
        text = pattern.sub(word, text[: 4 * _MOST_CHARACTERS])
    return text.strip()[:_MOST_CHARACTERS]


def error_of(description: str) -> str:
    """Return the fingerprint of a dead letter: its last words, or else how it ended."""
    cause, _, output = description.partition(_OUTPUT)
    return folded(_last_line(output) or cause.partition("\n")[0])


def exit_of(description: str) -> str:
    """Return how the last attempt ended: an exit code, `signal N`, or nothing."""
    cause = description.partition(_OUTPUT)[0]
    if code := _EXIT.search(cause):
        return code[1]
    number = _SIGNAL.search(cause)
    return f"signal {number[1]}" if number else ""


def brief_of(description: str) -> str:
    """Return a description cut down to what `error_of` and `exit_of` read in it, for where many are kept together."""
    cause, _, output = description.partition(_OUTPUT)
    last = _last_line(output)
    return cause[: 2 * _MOST_CHARACTERS] + (f"{_OUTPUT}{last[: 4 * _MOST_CHARACTERS]}" if last else "")


def _last_line(output: str) -> str:
    """Return the last line that has more than white space; "" = there is none."""
    lines = output.splitlines()
    while lines and not lines[-1].strip():
        lines.pop()
    return lines[-1] if lines else ""


def checked_grouping(text: str) -> tuple[str, ...]:
    """Return what to group by; raises ConfigurationError.

    Args:
        text: names of GROUPINGS, separated by commas.
    """
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    if not names or not set(names) <= set(GROUPINGS):
        raise ConfigurationError(f"cannot group by {text!a}: name some of {', '.join(GROUPINGS)}, as in exit,error")
    return names


def group_of(facts: Mapping[str, str], grouping: Sequence[str]) -> str:
    """Return the name of a group, which says what it is grouped by and is the same wherever it is made."""
    key = "\0".join(facts[name] for name in grouping)
    return f"{'+'.join(grouping)}:{hashlib.blake2b(key.encode(errors='replace'), digest_size=4).hexdigest()}"


def grouping_of(group: str) -> tuple[str, ...]:
    """Return what a group's name says it is grouped by; raises ConfigurationError."""
    names, colon, _ = group.partition(":")
    if not colon:
        raise ConfigurationError(f"{group!a} is no group; `dead list --group-by exit,error` names them")
    return checked_grouping(names.replace("+", ","))
