"""`--grid NAME=VALUES`: the values of each name, and every combination of them, none of which is held in memory."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Final, overload

from jobq.errors import JobqError

MAX_POINTS: Final = 10_000_000
INDEX: Final = "index"  # the field that each point has, counted from 0
NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_RANGE: Final = re.compile(r"(-?[0-9]{1,18})\.\.(-?[0-9]{1,18})(?:\.\.([0-9]{1,18}))?")
# What was certainly meant as a range; `../data` was not.
_LIKE_A_RANGE: Final = re.compile(r"[-+]?\.?[0-9][-+.\w]*\.\.[-+]?\.?[0-9][-+.\w]*|[A-Za-z]\.\.[A-Za-z]")
_SHOWN: Final = 80  # characters of what was given


class InvalidGrid(JobqError):
    """What is given has no points, or more than are taken; the message says what to write instead."""

    exit_code = 2


def check_name(name: str, where: str) -> None:
    """Raise InvalidGrid for a name that no variable can have, or that is built in."""
    if not NAME.fullmatch(name):
        raise InvalidGrid(
            f"{where}: {name[:_SHOWN]!a} is no name; one begins with a letter or `_`, and goes on with letters of"
            " ASCII, digits and `_`, so that it can be a variable's"
        )
    if name == INDEX:
        raise InvalidGrid(f"{where}: {INDEX} is built in, the number of each point; use another name")


def check_count(count: int) -> None:
    """Raise InvalidGrid for more points than are taken."""
    if count > MAX_POINTS:
        raise InvalidGrid(f"{count:,} points, and {MAX_POINTS:,} are taken at most; push it in parts")


@dataclass(frozen=True)
class Axis:
    """One `--grid`.

    Attributes:
        name: of the field.
        text: as it was given.
        values: in order; those of a range are made when they are asked for.
    """

    name: str
    text: str
    values: Sequence[str]

    @property
    def samples(self) -> Sequence[str]:
        """Those that stand for all: each that was written, the ends of a range."""
        return (self.values[0], self.values[-1]) if isinstance(self.values, _Range) else self.values

    @classmethod
    def of(cls, text: str) -> "Axis":
        """Return what NAME=VALUES means; raises InvalidGrid."""
        where = f"--grid {text[:_SHOWN]}"
        name, equals, values = text.partition("=")
        if not equals:
            raise InvalidGrid(f"{where}: write NAME=VALUES, as in lr=0.1,0.01 or seed=1..50")
        check_name(name, where)
        return cls(name, text, _values(values, where))


class Grid:
    """All combinations of the values of some names, the first name slowest.

    Args:
        texts: NAME=VALUES each; none = one point without a field.

    Raises:
        InvalidGrid: one of them cannot be read, stands twice, or there are too many points.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        self.axes = [Axis.of(text) for text in texts]
        names = [axis.name for axis in self.axes]
        for name in names:
            if names.count(name) > 1:
                raise InvalidGrid(f"--grid {name}=...: the name stands twice; give all its values at once")
        self.names = frozenset(names)
        self.count = prod(len(axis.values) for axis in self.axes)
        check_count(self.count)

    def point(self, number: int) -> dict[str, str]:
        """Return the fields of one point, counted from 0."""
        values = []
        for axis in reversed(self.axes):
            number, place = divmod(number, len(axis.values))
            values.append(axis.values[place])
        return {axis.name: value for axis, value in zip(self.axes, reversed(values), strict=True)}

    def samples(self) -> Iterator[tuple[str, Mapping[str, str]]]:
        """Yield points in which each value that was written stands once, and how it was given."""
        first = self.point(0)
        for axis in self.axes:
            for value in axis.samples:
                yield f"--grid {axis.name}={value[:_SHOWN]}", {**first, axis.name: value}


class _Range(Sequence[str]):
    """Whole numbers as text.

    Args:
        numbers: the numbers.
        width: how many characters each has at least, zeros before it.
    """

    def __init__(self, numbers: range, width: int) -> None:
        self._numbers = numbers
        self._format = f"0{width}d"

    def __len__(self) -> int:
        return len(self._numbers)

    @overload
    def __getitem__(self, place: int) -> str: ...

    @overload
    def __getitem__(self, place: slice) -> Sequence[str]: ...

    def __getitem__(self, place: int | slice) -> str | Sequence[str]:
        if isinstance(place, slice):
            return [format(number, self._format) for number in self._numbers[place]]
        return format(self._numbers[place], self._format)


def _values(text: str, where: str) -> Sequence[str]:
    if match := _RANGE.fullmatch(text):
        return _range(*match.groups(), where=where)
    values = tuple(text.split(","))
    for value in values:
        if not value:
            raise InvalidGrid(f"{where}: an empty value; a value that is empty, or holds a comma, comes from --each")
        if len(value) <= _SHOWN and _LIKE_A_RANGE.fullmatch(value):
            raise InvalidGrid(
                f"{where}: {value[:_SHOWN]!a} looks like a range; a range is one of whole numbers, and stands alone, as"
                " in 1..50, 01..50 or 0..100..10. Write other values one by one, as in 0.1,0.2"
            )
    return values


def _range(first: str, last: str, step: str | None, *, where: str) -> _Range:
    begin, end, by = int(first), int(last), int(step or 1)
    if not by:
        raise InvalidGrid(f"{where}: a step of 0 never comes to its end")
    is_padded = any(len(text.lstrip("-")) > 1 and text.lstrip("-").startswith("0") for text in (first, last))
    numbers = range(begin, end + 1, by) if begin <= end else range(begin, end - 1, -by)
    return _Range(numbers, max(len(first), len(last)) if is_padded else 1)
