"""What tasks are made of: the records of a data set, each with its fields as text."""

from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from jobq.entry_points import load, registered
from jobq.errors import BackendMissing, ConfigurationError
from jobq.lease import data_sources
from jobq.lease.data_sources import Line, Row
from jobq.lease.traversal import Fetch, Page, Progress
from jobq.settings import Settings
from jobq.submit.resumable_file import WalkedFile

LISTINGS: Final = "jobq.listings"  # the group of entry points: a callable(place, settings) -> Fetch of mappings
ROWS: Final = (
    "jobq.rows"  # by URL scheme: a callable(database, query, key) -> Fetch of rows, and what names the database
)


@dataclass(frozen=True)
class InputRecord:
    """One record.

    Attributes:
        key: what it is called in a batch's fields.
        fields: all of it.
        where: for messages.
        refused: why no task can be made of it, "" = one can.
        is_blank: whether it is left out in silence, and counts all the same.
        identity: the key as it is, by which its task is known again; None = by its place, where nothing moves.
    """

    key: str
    fields: Mapping[str, str]
    where: str
    refused: str = ""
    identity: float | str | None = None
    is_blank: bool = False


@dataclass(frozen=True, kw_only=True)
class RecordSource:
    """A data set.

    Attributes:
        fetch: its pages.
        source: what it is, so that another one is refused under the same name.
        fields: of each record; None = known with each.
        total: how far the first number of the cursor goes; None = nobody knows.
        file: what is read, and by which its pages are marked.
        count: how many records there are; None = nobody knows.
        samples: records to try a template with before anything is queued.
    """

    fetch: Fetch[InputRecord]
    source: Mapping[str, str]
    fields: frozenset[str] | None = None
    total: int | None = None
    file: WalkedFile | None = None
    count: int | None = None
    samples: Iterable[InputRecord] = ()

    async def pages(self, limit: int) -> AsyncIterator[Page[InputRecord]]:
        """Yield all pages, for a walk that has no cursor; raises SourceChanged where the file is changed meanwhile."""
        if self.file is not None:
            await self.file.digest()
        after: Any = None
        is_last = False
        while not is_last:
            page = await self.fetch(after, limit)
            is_last = page.is_last or not page.items
            if page.items:
                yield page
                after = page.after
        if self.file is not None and after is not None:
            self.file.check_unchanged(Progress(after=after))


def line_records(path: Path, say: Callable[[str], None]) -> RecordSource:
    """Return the lines of a file, see `WalkedFile`; raises ConfigurationError when it cannot be read."""
    if path.exists() and not path.is_file():
        raise ConfigurationError(f"{path} is no file that can be read again from its middle")
    file = WalkedFile(path, say)
    lines = file.lines()

    async def fetch(after: Any, limit: int) -> Page[InputRecord]:
        page = await lines(after, limit)
        return Page([_line(path, line) for line in page.items], page.after, page.is_last, mark=page.mark)

    return RecordSource(
        fetch=fetch,
        source={"data set": f"lines {path.absolute()}"},
        fields=frozenset({"line", "number", "offset"}),
        total=file.size or None,
        file=file,
    )


def _line(path: Path, line: Line) -> InputRecord:
    where = f"{path}, line {line.number}"
    try:
        text = line.content.decode()
    except UnicodeDecodeError as error:
        return InputRecord("", {}, where, refused=f"byte {error.start + 1}: not UTF-8")
    fields = {"line": text, "number": str(line.number), "offset": str(line.offset)}
    return InputRecord(text, fields, where, is_blank=not text)


def row_records(database: str, query: str, key: str) -> RecordSource:
    """Return the rows of a query; raises ConfigurationError for a database that cannot be asked."""
    rows, place = _rows_of(database, query, key)

    async def fetch(after: Any, limit: int) -> Page[InputRecord]:
        page = await rows(after, limit)
        return Page([_row(row, key) for row in page.items], page.after, page.is_last)

    return RecordSource(fetch=fetch, source={"data set": f"rows {place} {key} {query}"})


def _rows_of(database: str, query: str, key: str) -> tuple[Fetch[Row], str]:
    """Return the rows of a query, and what names the database; that is kept with the cursor, and holds no secret."""
    scheme, is_url, _ = database.partition("://")
    if not is_url or scheme == "sqlite":
        path = Path(database.removeprefix("sqlite://"))
        if not path.is_file():
            raise ConfigurationError(f"{path} is no SQLite file")
        return data_sources.sqlite_rows(path, query, key), str(path.absolute())
    found = registered(ROWS, scheme.lower())
    if found is None:
        raise ConfigurationError(
            "--sql takes an SQLite file or postgresql://USER@HOST/DATABASE; for other databases write the rows into a"
            " file: --lines"
        )
    try:
        connect: Callable[[str, str, str], tuple[Fetch[Row], str]] = load(found)
    except ModuleNotFoundError as error:
        raise BackendMissing(
            f"{scheme}:// needs the package {error.name!r}; install it with: pip install 'jobq[postgres]'"
        ) from error
    return connect(database, query, key)


def _row(row: Mapping[str, Any], key: str) -> InputRecord:
    where = f"the row with {key} {row[key]!a}"
    texts = {name: "" if value is None else str(value) for name, value in row.items()}
    held = [name for name, value in row.items() if isinstance(value, bytes)]
    refused = (
        f"{held[0]}: bytes cannot stand in a command, nor a text that is not UTF-8; select hex(...) of them"
        if held
        else ""
    )
    return InputRecord(texts[key], texts, where, refused=refused, identity=row[key])


def blob_records(place: str, settings: Settings) -> RecordSource:
    """Return the blobs of ACCOUNT/CONTAINER[/PREFIX]; raises BackendMissing when nothing here can list them."""
    found = registered(LISTINGS, "blobs")
    if found is None:
        raise BackendMissing("nothing here lists blobs: reinstall jobq")
    blobs: Fetch[Mapping[str, str]] = load(found)(place, settings)

    async def fetch(after: Any, limit: int) -> Page[InputRecord]:
        page = await blobs(after, limit)
        found = [InputRecord(one["name"], one, f"blob {one['name']}", identity=one["name"]) for one in page.items]
        return Page(found, page.after, page.is_last)

    return RecordSource(fetch=fetch, source={"data set": f"blobs {place}"}, fields=frozenset({"name", "size"}))
