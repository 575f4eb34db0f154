"""`--each FILE`: the records of a file of comma- or tab-separated values, or of JSON lines, from any offset on.

Values are text as it stands in the file. What no record can be made of is refused with its file and line.
"""

import csv
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

from jobq.errors import MalformedTask
from jobq.formats import strict_json
from jobq.submit.grid import InvalidGrid, check_name
from jobq.submit.input_lines import InputUnreadable
from jobq.submit.resumable_file import WalkedFile

_DELIMITERS: Final = {".csv": ",", ".tsv": "\t"}
_JSON_LINES: Final = ".jsonl"
_MOST_LINE_BYTES: Final = 8 * 1024 * 1024
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
_KEPT_SHAPES: Final = 100  # sets of names that were found good
_SAID: Final = {  # what the standard library says, for whoever does not know it
    "field larger": "a value has more than 128 KiB, which no program can be given; or a quote is left open",
    "unexpected end": "a quote is left open",
    "new-line character": "a carriage return within a value that has no quotes",
}


class Place(NamedTuple):
    """Where a record begins or ends.

    Attributes:
        offset: in bytes.
        lines: how many lines stand before.
    """

    offset: int = 0
    lines: int = 0


class FileRecord(NamedTuple):
    """One record.

    Attributes:
        fields: its values by name.
        begin, end: where it stands.
        where: for messages, as FILE:LINE.
    """

    fields: Mapping[str, str]
    begin: Place
    end: Place
    where: str


def check_suffix(path: Path) -> None:
    """Raise InvalidGrid for a file whose name does not say what it holds."""
    if path.suffix.lower() not in (*_DELIMITERS, _JSON_LINES):
        raise InvalidGrid(f"--each {path}: a file's name ends with .csv, .tsv or .jsonl, which says how it is read")


class EachFile:
    """The records of a file; memory is bounded by one of them.

    Args:
        file: the file.
        taken: names that records may not have.

    Raises:
        InvalidGrid, MalformedTask: its header cannot serve.

    Attributes:
        names: what each record has; None = each its own.
    """

    def __init__(self, file: WalkedFile, taken: frozenset[str]) -> None:
        check_suffix(file.path)
        self.file = file
        self.names: tuple[str, ...] | None = None
        self._taken = taken
        self._begin = Place()
        self._delimiter = _DELIMITERS.get(file.path.suffix.lower())
        if self._delimiter is not None:
            self.names = self._header(self._delimiter)

    def records(self, begin: Place | None = None) -> Generator[FileRecord, None, None]:
        """Yield the records from a place on, None = from the first; raises MalformedTask with the place."""
        try:
            with self.file.opened() as opened:
                lines = _Lines(opened, self.file, begin or self._begin)
                yield from self._rows(lines) if self._delimiter is not None else self._objects(lines)
        except OSError as error:
            raise InputUnreadable(f"cannot read {self.file.path}: {error.strerror}") from None

    def _header(self, delimiter: str) -> tuple[str, ...]:
        with self.file.opened() as opened:
            lines = _Lines(opened, self.file, Place())
            for begin, row in _rows_of(lines, delimiter):
                self._check_names(row, lines.where(begin))
                self._begin = lines.place
                return tuple(row)
        raise InvalidGrid(f"{self.file.path}:1: there is no header; the first line names the columns")

    def _check_names(self, names: Sequence[str], where: str) -> None:
        seen: set[str] = set()
        for name in names:
            check_name(name, where)
            if name in seen:
                raise InvalidGrid(f"{where}: {name} stands twice; a record has one value of each name")
            if name in self._taken:
                raise InvalidGrid(f"{where}: {name} is a --grid's, too; a point has one value of each name")
            seen.add(name)

    def _rows(self, lines: "_Lines") -> Iterator[FileRecord]:
        assert self.names is not None
        assert self._delimiter is not None
        for begin, row in _rows_of(lines, self._delimiter):
            if len(row) != len(self.names):
                raise MalformedTask(
                    f"{len(row)} values, and the header names {len(self.names)} columns", lines.where(begin)
                )
            yield FileRecord(dict(zip(self.names, row, strict=True)), begin, lines.place, lines.where(begin))

    def _objects(self, lines: "_Lines") -> Iterator[FileRecord]:
        checked: set[tuple[str, ...]] = set()
        while True:
            begin = lines.place
            if (line := next(lines, None)) is None:
                return
            if not line.strip(" \t\r\n"):
                continue
            where = lines.where(begin)
            fields = _object(line, where)
            if (names := tuple(fields)) not in checked:
                self._check_names(names, where)
                checked = {*checked, names} if len(checked) < _KEPT_SHAPES else {names}
            yield FileRecord(fields, begin, lines.place, where)


class _Lines(Iterator[str]):
    """The lines of a file from a place on, with their ends, and where the next one begins."""

    def __init__(self, opened: BinaryIO, file: WalkedFile, begin: Place) -> None:
        self._opened = opened
        self._file = file
        self._offset, self._number = begin.offset, begin.lines
        opened.seek(begin.offset)

    @property
    def place(self) -> Place:
        return Place(self._offset, self._number)

    def where(self, begin: Place) -> str:
        return f"{self._file.path}:{begin.lines + 1}"

    def __next__(self) -> str:
        line = self._opened.readline(max(0, min(_MOST_LINE_BYTES, self._file.size - self._offset)))
        if not line:
            raise StopIteration
        where = self.where(self.place)
        if len(line) == _MOST_LINE_BYTES and not line.endswith(b"\n"):
            raise MalformedTask(f"longer than {_MOST_LINE_BYTES} bytes", where)
        content = line if self._offset else line.removeprefix(_BYTE_ORDER_MARK)
        try:
            text = content.decode()
        except UnicodeDecodeError as error:
            raise MalformedTask(f"byte {error.start + 1}: not UTF-8", where) from None
        if "\0" in text:
            raise MalformedTask("it holds a NUL, which no argument of a program can", where)
        self._offset += len(line)
        self._number += 1
        return text


def _rows_of(lines: _Lines, delimiter: str) -> Iterator[tuple[Place, list[str]]]:
    """Yield the rows that are not blank, with where each begins; a value in quotes may hold line ends."""
    rows = csv.reader(lines, delimiter=delimiter, strict=True)
    while True:
        begin = lines.place
        try:
            row = next(rows, None)
        except csv.Error as error:
            said = str(error)
            what = next((text for start, text in _SAID.items() if said.startswith(start)), said)
            raise MalformedTask(what, lines.where(begin)) from None
        if row is None:
            return
        if row:
            yield begin, row


def _object(line: str, where: str) -> dict[str, str]:
    try:
        found = strict_json.loads_as_written(line.encode())
    except MalformedTask as error:
        raise MalformedTask(str(error), where) from None
    if not isinstance(found, dict):
        raise MalformedTask('no object; each line is one, as in {"lr": 0.1, "seed": 1}', where)
    return {name: _text(value, name, where) for name, value in found.items()}


_AS_TEXT: Final[dict[type, Callable[[Any], str]]] = {
    str: str,
    bool: lambda value: "true" if value else "false",
    type(None): lambda _: "",
}


def _text(value: Any, name: str, where: str) -> str:
    as_text = _AS_TEXT.get(type(value))
    if as_text is None:
        raise MalformedTask(
            f"{ascii(name)[:80]} is a list or an object; a value is a text, a number, true or null", where
        )
    text = as_text(value)
    if "\0" in text:
        raise MalformedTask(f"{ascii(name)[:80]} holds a NUL, which no argument of a program can", where)
    return text
