"""Tables of results as files: CSV, JSON lines, Parquet; whole or not at all."""

import csv
import json
import os
import secrets
from collections.abc import AsyncIterable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from jobq.errors import ConfigurationError
from jobq.results.rows import Row
from jobq.results.table import RowSpool, Table

SUFFIXES: Final = (".csv", ".jsonl", ".parquet")
_ROW_GROUP: Final = 10_000  # rows of a Parquet file that are in memory together


def check_file(path: Path) -> None:
    """Refuse, before anything is read, a file that cannot be written.

    Raises:
        ConfigurationError: its kind is not known, what writes it is not installed, or its folder is not there.
    """
    if path.suffix not in SUFFIXES:
        raise ConfigurationError(f"-o {path}: results are written as .csv, .jsonl or .parquet")
    if path.is_dir():
        raise ConfigurationError(f"-o {path}: that is a folder")
    if not path.parent.is_dir():
        raise ConfigurationError(f"-o {path}: the folder {path.parent} does not exist")
    if path.suffix == ".parquet":
        _pyarrow()


async def write_file(
    rows: AsyncIterable[Row], path: Path, only: Sequence[str] | None, on_row: Callable[[int], None] = lambda _: None
) -> int:
    """Write all rows; return how many. A run that is broken off leaves no file that looks whole.

    Args:
        rows: what to write.
        path: of a file that `check_file` has found good; one that is there is replaced at the end.
        only: the columns that are wanted; None = all.
        on_row: called with how many have been read.

    Raises:
        OSError: it cannot be written.
    """
    part = path.with_name(f"{path.name}.{secrets.token_hex(4)}.part")  # of this run alone
    table = Table(only)
    with _whole(path, part):
        if path.suffix == ".jsonl":
            with part.open("w", encoding="utf-8") as file:
                async for row in rows:
                    table.count += 1
                    file.write(json.dumps(wanted(row, only), ensure_ascii=False) + "\n")
                    on_row(table.count)
            return table.count
        spool = RowSpool(path.parent)
        try:
            await spool.fill(_counted(rows, on_row), table)
            (_write_csv if path.suffix == ".csv" else _write_parquet)(part, table, spool.rows())
        finally:
            spool.close()
    return table.count


def wanted(row: Row, only: Sequence[str] | None) -> Row:
    """Return a row with these columns alone; None = as it is."""
    return row if only is None else {name: row.get(name) for name in only}


async def _counted(rows: AsyncIterable[Row], on_row: Callable[[int], None]) -> AsyncIterable[Row]:
    count = 0
    async for row in rows:
        count += 1
        on_row(count)
        yield row


@contextmanager
def _whole(path: Path, part: Path) -> Iterator[None]:
    try:
        yield
        with part.open("rb") as file:
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException:
        with suppress(FileNotFoundError):
            part.unlink()
        raise


def _write_csv(path: Path, table: Table, rows: Iterator[Row]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(table.columns)
        writer.writerows([_plain(cell) for cell in table.cells(row)] for row in rows)


def _plain(cell: Any) -> Any:
    return json.dumps(cell) if isinstance(cell, bool) else cell


def _write_parquet(path: Path, table: Table, rows: Iterator[Row]) -> None:
    pa, parquet = _pyarrow()
    kinds = {"text": pa.string(), "number": pa.float64(), "integer": pa.int64(), "bool": pa.bool_()}
    schema = pa.schema([(name, kinds[kind]) for name, kind in table.columns.items()])
    with parquet.ParquetWriter(path, schema) as writer:
        group: list[list[Any]] = []

        def flush() -> None:
            columns = [pa.array(cells, each.type) for cells, each in zip(zip(*group, strict=True), schema, strict=True)]
            writer.write_table(pa.Table.from_arrays(columns, schema=schema))
            group.clear()

        for row in rows:
            group.append(table.cells(row))
            if len(group) == _ROW_GROUP:
                flush()
        if group:
            flush()


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow as pa  # noqa: PLC0415 - an extra, and heavy
        from pyarrow import parquet  # noqa: PLC0415 - as above
    except ImportError as error:
        raise ConfigurationError(
            f"Parquet is written by pyarrow, which is not here ({error}): pip install 'jobq[parquet]'"
        ) from None
    return pa, parquet
