"""The points of a sweep: every record of `--each` with every combination of the `--grid`s, as records of a data set."""

import asyncio
import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from jobq.errors import SourceChanged
from jobq.lease.traversal import Fetch, Page
from jobq.submit.each_file import EachFile, FileRecord, Place, check_suffix
from jobq.submit.grid import INDEX, Grid, check_count
from jobq.submit.record_sources import InputRecord, RecordSource
from jobq.submit.resumable_file import WalkedFile


def point_records(grids: Sequence[str], each: str | None, say: Callable[[str], None]) -> RecordSource:
    """Return all points, in order: the records of the file slowest, then the names as they are given.

    The file is read to its end, for its records are counted and each is looked at.

    Args:
        grids: NAME=VALUES each.
        each: a file of records. The source that is returned is to be closed by its `file`.
        say: told when this waits for another program to complete the file's last line.

    Raises:
        InvalidGrid, MalformedTask: they cannot be read, or are too many; says where.
        InputUnreadable, SourceChanged: as they say.
    """
    grid = Grid(grids)
    definition = {"--grid": _digest(*grids)}
    if each is None:
        return RecordSource(
            fetch=_points_of(grid),
            source={**definition, "--each": "none"},
            fields=grid.names | {INDEX},
            total=grid.count,
            count=grid.count,
            samples=_samples(grid, None),
        )
    path = Path(each)
    check_suffix(path)
    file = WalkedFile(path, say)
    try:
        records = EachFile(file, grid.names)
        count = _count(records, grid)
        first = next(records.records(), None) if count else None
    except BaseException:
        file.close()
        raise
    return RecordSource(
        fetch=_points_of_each(grid, records, count),
        # What it holds is known by the file's own digest; what that means, by its kind.
        source={**definition, "--each": f"{count // grid.count} records, {path.suffix.lower()}"},
        fields=None if records.names is None else grid.names.union(records.names, {INDEX}),
        total=file.size,
        file=file,
        count=count,
        samples=_samples(grid, first) if count else (),
    )


def _count(records: EachFile, grid: Grid) -> int:
    count = 0
    for _ in records.records():
        count += grid.count
        check_count(count)
    return count


def _points_of(grid: Grid) -> Fetch[InputRecord]:
    """Return a fetch of the points of a grid alone; the cursor is [number of the next point]."""

    async def fetch(after: Any, limit: int) -> Page[InputRecord]:
        begin = 0 if after is None else int(after[0])
        end = min(begin + limit, grid.count)
        return Page([_point(grid, None, index) for index in range(begin, end)], [end], is_last=end == grid.count)

    return fetch


def _points_of_each(grid: Grid, records: EachFile, count: int) -> Fetch[InputRecord]:
    """Return a fetch of all points.

    The cursor is [offset, lines before it, the same of the record before that, number of the next point]: a page may
    end within a record, which is read again then, and is one of those that the file is known by.
    """

    def read(after: Any, limit: int) -> Page[InputRecord]:
        end, begin, index = (None, None, 0) if after is None else (Place(*after[:2]), Place(*after[2:4]), after[4])
        done = index % grid.count  # of the record's points
        found: list[InputRecord] = []
        with closing(records.records(begin if done else end)) as coming:
            for record in coming:
                last = min(grid.count, done + limit - len(found))
                found += [_point(grid, record, index + place) for place in range(last - done)]
                index, done = index + last - done, last % grid.count
                begin, end = record.begin, record.end
                if len(found) == limit:
                    break
        if index > count or (index < count and len(found) < limit):
            raise SourceChanged(f"{records.file.path} was changed while it was read; what it had then is queued")
        if begin is None or end is None:
            return Page((), None, is_last=True)
        if index == count:
            end = Place(records.file.size, end.lines)  # blank lines may follow
        return Page(found, [*end, *begin, index], is_last=index == count)

    async def fetch(after: Any, limit: int) -> Page[InputRecord]:
        page = await asyncio.to_thread(read, after, limit)
        return replace(page, mark=await records.file.mark_up_to(page.after[0])) if page.items else page

    return fetch


def _point(grid: Grid, record: FileRecord | None, index: int) -> InputRecord:
    own = grid.point(index % grid.count)
    if record is None:
        return InputRecord(str(index), {**own, INDEX: str(index)}, f"{INDEX} {index}")
    return InputRecord(str(index), {**record.fields, **own, INDEX: str(index)}, record.where)


def _samples(grid: Grid, record: FileRecord | None) -> Iterator[InputRecord]:
    own = record.fields if record is not None else {}
    for where, fields in grid.samples():
        yield InputRecord("0", {**own, **fields, INDEX: "0"}, where)


def _digest(*texts: str) -> str:
    return hashlib.blake2b(json.dumps(texts).encode(), digest_size=8).hexdigest()
