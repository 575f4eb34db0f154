"""A table of rows that are not alike: its columns are known at the end, so rows wait in a file until then."""

import json
import tempfile
from collections.abc import AsyncIterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import IO, Any, Final

from jobq.results.rows import FIXED, PARAM, VALUE, Row

MOST_COLUMNS: Final = 1000  # what has none of its own stands in `value`, as JSON
_KINDS: Final[Mapping[type, str]] = {bool: "bool", int: "number", float: "number", str: "text"}


class Table:
    """Rows, their columns, and what kind of values each holds: text, number, integer or bool.

    Args:
        only: the columns that are wanted, in this order; None = all that rows have.

    Attributes:
        count: how many rows there are.
    """

    def __init__(self, only: Sequence[str] | None = None) -> None:
        self.count = 0
        self._only = only
        self._kinds = dict(FIXED) if only is None else {name: FIXED.get(name, "") for name in only}

    @property
    def columns(self) -> dict[str, str]:
        """The kind of each column, by name and in order: the fixed ones, those of params, those of values."""
        names = list(self._kinds)
        if self._only is None:
            names.sort(key=lambda name: (name not in FIXED, not name.startswith(PARAM)))
        return {name: self._kinds[name] or "text" for name in names}

    @cached_property
    def _final(self) -> dict[str, str]:
        return self.columns  # once all rows are known

    def add(self, row: Row) -> None:
        """Take note of the columns of a row."""
        self.count += 1
        for name, value in row.items():
            known = self._kinds.get(name)
            if known is None:
                if self._only is not None or not self._has_room():
                    continue
                known = self._kinds[name] = ""
            if value is not None and known != "text":
                kind = "integer" if type(value) is int and abs(value) < 2**63 else _KINDS[type(value)]
                self._kinds[name] = kind if known in ("", kind) else _common(known, kind)

    def cells(self, row: Row) -> list[Any]:
        """Return the values of a row, in the order of the columns, each of its kind or None."""
        columns = self._final
        if self._only is None and not row.keys() <= columns.keys():
            rest = {name: value for name, value in row.items() if name not in columns}
            row = {**row, VALUE: json.dumps({**({VALUE: row[VALUE]} if row.get(VALUE) is not None else {}), **rest})}
        return [_as(row.get(name), kind) for name, kind in columns.items()]

    def _has_room(self) -> bool:
        if len(self._kinds) < MOST_COLUMNS - 1:
            return True
        self._kinds[VALUE] = "text"
        return False


class RowSpool:
    """Rows that wait in a file without a name.

    Args:
        folder: where there is room for them.
    """

    def __init__(self, folder: Path) -> None:
        self._file: IO[str] = tempfile.TemporaryFile("w+", encoding="utf-8", dir=folder)  # noqa: SIM115 - closed by `close`

    async def fill(self, rows: AsyncIterable[Row], table: Table) -> None:
        """Keep all rows, and take note of their columns."""
        async for row in rows:
            table.add(row)
            self._file.write(json.dumps({name: value for name, value in row.items() if value is not None}) + "\n")

    def rows(self) -> Iterator[Row]:
        """Yield them."""
        self._file.seek(0)
        for line in self._file:
            yield json.loads(line)

    def close(self) -> None:
        """Free the file."""
        with suppress(OSError):  # it held nothing that anybody wants: a full disk was told when it was written
            self._file.close()


def _common(one: str, other: str) -> str:
    return "number" if {one, other} == {"integer", "number"} else "text"


def _as(value: Any, kind: str) -> Any:
    if value is None:
        return None
    if kind == "text":
        return value if isinstance(value, str) else json.dumps(value)
    return float(value) if kind == "number" else value
