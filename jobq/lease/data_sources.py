"""Ready data sets for a traversal: the lines of a file by their offset, the rows of a query by their key."""

import asyncio
import itertools
import os
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

from jobq.errors import ConfigurationError, MalformedTask
from jobq.lease.traversal import Fetch, Page

_MOST_LINE_BYTES: Final = 8 * 1024 * 1024
Row = dict[str, Any]


@dataclass(frozen=True)
class Line:
    """A line of a file.

    Attributes:
        offset: where it begins, in bytes.
        number: counted from 1.
        content: without its end (LF, or CR and LF).
    """

    offset: int
    number: int
    content: bytes


def lines(
    path: Path,
    *,
    most_bytes: int = 4 * 1024 * 1024,
    end: int | None = None,
    opened: Callable[[], BinaryIO] | None = None,
) -> Fetch[Line]:
    """Return a fetch of the lines of a regular file; the cursor is [offset, lines before it].

    Args:
        path: of the file.
        most_bytes: about how much one page may hold.
        end: where to stop, in bytes. None = at the end of the file, where half a line that another program is about to
            complete is taken for a line.
        opened: returns the file, open to read, for each page; None = opens `path`.

    Raises:
        OSError: from the fetch, as reading a file does.
        MalformedTask: from the fetch; a line has more than 8 MiB.
    """

    def read(after: Any, limit: int) -> Page[Line]:
        offset, number = (0, 0) if after is None else after
        found: list[Line] = []
        began = offset
        with opened() if opened is not None else path.open("rb") as file:
            file.seek(offset)
            while len(found) < limit and offset - began < most_bytes:
                line = file.readline(_MOST_LINE_BYTES if end is None else max(0, min(_MOST_LINE_BYTES, end - offset)))
                if not line:
                    return Page(found, [offset, number], is_last=True)
                if len(line) == _MOST_LINE_BYTES and not line.endswith(b"\n"):
                    raise MalformedTask(f"{path}, line {number + 1}: longer than {_MOST_LINE_BYTES} bytes")
                number += 1
                found.append(Line(offset, number, line.removesuffix(b"\n").removesuffix(b"\r")))
                offset += len(line)
            last = os.fstat(file.fileno()).st_size if end is None else end
            return Page(found, [offset, number], is_last=offset >= last)

    async def fetch(after: Any, limit: int) -> Page[Line]:
        return await asyncio.to_thread(read, after, limit)

    return fetch


Ask = Callable[[str, Sequence[Any]], list[Row]]


def rows(ask: Ask, query: str, key: str, *, quoted: Callable[[str], str] | None = None, mark: str = "?") -> Fetch[Row]:
    """Return a fetch of the rows of a query by a unique key; the cursor is the last key.

    A row that is added behind the cursor meanwhile is found, one that is added before it is not.

    Args:
        ask: runs a statement with values and returns its rows, by column; called on a thread.
        query: a SELECT, without ORDER BY and LIMIT.
        key: the column to walk by: unique, never NULL, a number or a text.
        quoted: quotes a name as the database wants it; None = as standard SQL does.
        mark: what stands for a value.

    Raises:
        ConfigurationError: from the fetch; the key cannot serve, also since two that differ are equal by its collation.
    """
    name = (quoted or _quoted)(key)
    from_query = f"FROM ({query.strip().rstrip(';')}) AS jobq_rows"  # the user's own statement
    first = f"SELECT * {from_query} ORDER BY {name} LIMIT {mark}"
    after_key = f"SELECT * {from_query} WHERE {name} > {mark} ORDER BY {name} LIMIT {mark}"
    alike = f"SELECT 1 {from_query} WHERE {name} = {mark} AND {name} = {mark} LIMIT 1"
    without_key = f"SELECT 1 {from_query} WHERE {name} IS NULL LIMIT 1"

    def read(after: Any, limit: int) -> Page[Row]:
        if after is None and ask(without_key, ()):
            raise ConfigurationError(f"the key {key!r} is NULL in some rows: they would never be found; exclude them")
        # One more than wanted: a key that goes on behind the page would lose the rows that share it.
        found = ask(first, (limit + 1,)) if after is None else ask(after_key, (after, limit + 1))
        keys = [_key_of(row, key) for row in found]
        if any(one == other for one, other in itertools.pairwise(keys)):
            raise ConfigurationError(
                f"the key {key!r} is not unique: rows that share one would be lost; choose another"
            )
        page, is_last = found[:limit], len(found) <= limit
        while page and not is_last and isinstance(page[-1][key], NotText):
            page.pop()  # it comes again, behind the last key that can be asked for
        if found and not page:
            raise ConfigurationError(f"{limit} rows in a row have a key {key!r} that is not UTF-8; exclude them")
        edge = keys[limit - 1 :]  # the last key, and the next
        if len(found) > limit and all(isinstance(one, str) for one in edge) and ask(alike, edge):
            raise ConfigurationError(
                f"the database takes {edge[0]!a} and {edge[1]!a} for equal by the collation of {key!r}, so one of them"
                f' would be lost; select the key as bytes: {key} COLLATE BINARY AS {key} (PostgreSQL: COLLATE "C")'
            )
        asked = [one for one in keys[: len(page)] if not isinstance(one, NotText)]
        return Page(page, asked[-1] if asked else after, is_last=is_last)

    async def fetch(after: Any, limit: int) -> Page[Row]:
        return await asyncio.to_thread(read, after, limit)

    return fetch


def sqlite_rows(path: Path, query: str, key: str) -> Fetch[Row]:
    """Return a fetch of the rows of a query on an SQLite file, which is only read; see `rows`."""

    def ask(statement: str, values: Sequence[Any]) -> list[Row]:
        try:
            database = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
            try:
                database.row_factory = sqlite3.Row
                database.text_factory = _text
                return [dict(row) for row in database.execute(statement, tuple(values))]
            finally:
                database.close()
        except sqlite3.Error as error:
            raise ConfigurationError(f"{path}: {error}") from None

    return rows(ask, query, key)


class NotText(bytes):
    """A text of SQLite that is not UTF-8: it concerns its row alone."""


def _text(stored: bytes) -> str | NotText:
    try:
        return stored.decode()
    except UnicodeDecodeError:
        return NotText(stored)


def _key_of(row: Row, key: str) -> Any:
    if key not in row:
        raise ConfigurationError(f"the query has no column {key!r}; it has: {', '.join(row)}")
    value = row[key]
    if isinstance(value, bool) or not isinstance(value, int | float | str | NotText):
        raise ConfigurationError(f"the key {key!r} is a {type(value).__name__}; numbers and texts can serve")
    return value


def _quoted(name: str) -> str:
    doubled = name.replace('"', '""')
    return f'"{doubled}"'
