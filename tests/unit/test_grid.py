"""`--grid` and `--each` as data: which values there are, in which order, wherever a page ends."""

import asyncio
import csv
import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jobq.errors import JobqError
from jobq.lease.traversal import Page
from jobq.submit.grid import Axis, Grid, InvalidGrid
from jobq.submit.points import point_records
from jobq.submit.record_sources import InputRecord, RecordSource

pytestmark = pytest.mark.check


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("a,b,c", ["a", "b", "c"]),
        ("0.10,1e-5,1E5,+1", ["0.10", "1e-5", "1E5", "+1"]),
        ("1..5", ["1", "2", "3", "4", "5"]),
        ("1..10..4", ["1", "5", "9"]),
        ("01..03", ["01", "02", "03"]),
        ("8..010", ["008", "009", "010"]),
        ("-1..1", ["-1", "0", "1"]),
        ("-01..1", ["-01", "000", "001"]),
        ("3..1", ["3", "2", "1"]),
        ("7..1..3", ["7", "4", "1"]),
        ("0..0", ["0"]),
        ("x=y", ["x=y"]),
        ("../a,b/../c", ["../a", "b/../c"]),
        (" a , b", [" a ", " b"]),
        ("ü,$(x)", ["ü", "$(x)"]),
    ],
)
def test_values_are_text_as_they_are_written(text: str, values: list[str]) -> None:
    axis = Axis.of(f"x={text}")
    assert list(axis.values) == values
    assert [axis.values[place] for place in range(len(axis.values))] == values
    assert (axis.values[0], axis.values[-1]) == (values[0], values[-1])
    assert set(axis.samples) <= set(values)


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        (["lr"], "--grid lr: write NAME=VALUES, as in lr=0.1,0.01 or seed=1..50"),
        (["l-r=1"], "--grid l-r=1: 'l-r' is no name"),
        (["1a=1"], "is no name"), (["=1"], "is no name"), (["ü=1"], "is no name"), (["a\n=1"], "is no name"),
        (["index=1"], "index is built in"),
        (["a="], "an empty value"), (["a=1,,2"], "an empty value"), (["a=1,"], "an empty value"),
        (["a=1..5,9"], "'1..5' looks like a range"), (["a=0.1..0.5"], "a range is one of whole numbers"),
        (["a=a..e"], "looks like a range"), (["a=1..1e3"], "looks like a range"),
        (["a=1..5..-1"], "looks like a range"),
        (["a=1..2..0"], "a step of 0"),
        (["a=" + "9" * 19 + "..1"], "looks like a range"),
        (["a=1", "b=1", "a=2"], "--grid a=...: the name stands twice"),
        (["a=1..4000", "b=1..4000"], "16,000,000 points, and 10,000,000 are taken at most"),
        (["a=0..999999999999999999"], "1,000,000,000,000,000,000 points"),
    ],
)  # fmt: skip
def test_what_is_no_grid_is_refused(texts: list[str], said: str) -> None:
    with pytest.raises(InvalidGrid) as caught:
        Grid(texts)
    assert said in str(caught.value)
    assert len(str(caught.value)) < 400


def test_the_first_name_is_slowest() -> None:
    grid = Grid(["b=1,2", "a=x,y,z"])
    assert [tuple(grid.point(number).items()) for number in range(grid.count)] == [
        (("b", one), ("a", other)) for one in "12" for other in "xyz"
    ]
    assert Grid([]).count == 1
    assert Grid([]).point(0) == {}
    assert Grid(["a=1..10000000"]).point(9_999_999) == {"a": "10000000"}


def walked(source: RecordSource, limit: int) -> list[InputRecord]:
    async def walk() -> list[InputRecord]:
        return [record async for page in source.pages(limit) for record in page.items]

    try:
        return asyncio.run(walk())
    finally:
        if source.file is not None:
            source.file.close()


async def _page(source: RecordSource, after: object, limit: int) -> Page[InputRecord]:
    return await source.fetch(after, limit)


def taken_up_at_each_page(grids: Sequence[str], each: str | None, limit: int) -> list[InputRecord]:
    """As a push that is killed after each page and run again."""
    found: list[InputRecord] = []
    after: object = None
    while True:
        source = point_records(grids, each, pytest.fail)
        page = asyncio.run(_page(source, json.loads(json.dumps(after)), limit))
        if source.file is not None:
            source.file.close()
        found += page.items
        after = page.after
        if page.is_last:
            return found


HEADERS = ["lr", "_x"]
CELLS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=8)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.lists(st.tuples(CELLS, CELLS), max_size=12),
    count=st.integers(1, 4),
    limit=st.integers(1, 7),
    kind=st.booleans(),
)
def test_points_are_the_same_wherever_pages_end(
    tmp_path: Path, rows: list[tuple[str, str]], count: int, limit: int, kind: bool
) -> None:
    """Records slowest, and what a file holds comes out as it stands there, line ends and quotes within values too."""
    file = tmp_path / ("runs.csv" if kind else "runs.jsonl")
    with file.open("w", newline="", encoding="utf-8") as opened:
        if kind:
            csv.writer(opened, quoting=csv.QUOTE_ALL).writerows([HEADERS, *rows])
        else:
            opened.writelines(f"{json.dumps(dict(zip(HEADERS, row, strict=True)))}\n\n" for row in rows)
    grids = [f"seed=1..{count}"]
    expected = [
        dict(zip(HEADERS, row, strict=True)) | {"seed": str(seed)} for row in rows for seed in range(1, count + 1)
    ]
    points = [fields | {"index": str(index)} for index, fields in enumerate(expected)]
    source = point_records(grids, str(file), pytest.fail)
    assert source.count == len(points)
    assert [record.fields for record in walked(source, limit)] == points
    if points:
        assert [record.fields for record in taken_up_at_each_page(grids, str(file), limit)] == points


def test_a_grid_alone_is_the_same_wherever_pages_end() -> None:
    grids = ["a=1..7", "b=x,y"]
    whole = [record.fields for record in walked(point_records(grids, None, pytest.fail), 500)]
    assert len(whole) == 14
    for limit in (1, 3, 14, 15):
        assert [record.fields for record in taken_up_at_each_page(grids, None, limit)] == whole


def fields_of(folder: Path, name: str, content: bytes) -> list[dict[str, str]]:
    (folder / name).write_bytes(content)
    return [dict(record.fields) for record in walked(point_records([], str(folder / name), lambda _: None), 2)]


@pytest.mark.parametrize(
    ("name", "content", "values"),
    [
        ("f.csv", b"\xef\xbb\xbfx\r\n1\r\n\r\n 2 \r\n", ["1", " 2 "]),
        ("f.CSV", b'x\n"a\nb""c,"\n""\n', ['a\nb"c,', ""]),
        ("f.tsv", b'x\ty\n1,5\t2\n"a\tb"\t\n', ["1,5", "a\tb"]),
        ("f.jsonl", b'\xef\xbb\xbf{"x": 1e-5}\n{"x": 0.10}\n{"x": 123456789012345678901234567890}\n',
         ["1e-5", "0.10", "123456789012345678901234567890"]),
        ("f.jsonl", b'{"x": true}\n \n{"x": null}\r\n{"x": "\\u00fc\\n"}', ["true", "", "ü\n"]),
        ("f.csv", b"x\n", []),
        ("f.jsonl", b"", []),
    ],
)  # fmt: skip
def test_what_a_file_holds(tmp_path: Path, name: str, content: bytes, values: list[str]) -> None:
    assert [fields["x"] for fields in fields_of(tmp_path, name, content)] == values


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("f.csv", b"", "f.csv:1: there is no header"),
        ("f.csv", b"\n\n", "there is no header"),
        ("f.csv", b"a,a\n1,2\n", "f.csv:1: a stands twice"),
        ("f.csv", b"a,seed\n1,2\n", "f.csv:1: seed is a --grid's, too"),
        ("f.csv", b"a,index\n1,2\n", "f.csv:1: index is built in"),
        ("f.csv", b",a\n0,2\n", "f.csv:1: '' is no name"),
        ("f.csv", b"a b\n0\n", "f.csv:1: 'a b' is no name"),
        ("f.csv", b"a,b\n1,2\n3\n", "f.csv:3: 1 values, and the header names 2 columns"),
        ("f.csv", b"a,b\n1,2\n3,4,5\n", "f.csv:3: 3 values"),
        ("f.csv", b'a,b\n"1\n1",2\n"3,4\n', "f.csv:4: a quote is left open"),
        ("f.csv", b'a\n"1"x\n', "f.csv:2: "),
        ("f.csv", b"a\n1\n2\r3\n", "f.csv:3: a carriage return within a value"),
        ("f.csv", b"a\n1\n\0\n", "f.csv:3: it holds a NUL"),
        ("f.csv", b"a\n1\n\xff\n", "f.csv:3: byte 1: not UTF-8"),
        ("f.csv", "a\n1\n".encode("utf-16"), "f.csv:1: byte 1: not UTF-8"),
        ("f.csv", b"a\n" + b"x" * 140_000 + b"\n", "f.csv:2: a value has more than 128 KiB"),
        ("f.jsonl", b'{"a": 1}\n{"a": \n', "f.jsonl:2: character"),
        ("f.jsonl", b'{"a": 1}\n\n[1]\n', "f.jsonl:3: no object"),
        ("f.jsonl", b'{"a": {"b": 1}}\n', "f.jsonl:1: 'a' is a list or an object"),
        ("f.jsonl", b'{"a": 1, "a": 2}\n', "f.jsonl:1: 'a': key stands twice"),
        ("f.jsonl", b'{"a-b": 1}\n', "f.jsonl:1: 'a-b' is no name"),
        ("f.jsonl", b'{"a": "\\u0000"}\n', "f.jsonl:1: 'a' holds a NUL"),
        ("f.jsonl", b'{"a": "\\ud800"}\n', "lone surrogate"),
        ("f.jsonl", b'{"a": NaN}\n', "NaN is not a JSON number"),
        ("f.txt", b"a\n1\n", "ends with .csv, .tsv or .jsonl"),
        ("f", b"a\n1\n", "ends with .csv, .tsv or .jsonl"),
    ],
)  # fmt: skip
def test_what_no_record_can_be_made_of_is_refused_with_its_place(
    tmp_path: Path, name: str, content: bytes, said: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(JobqError) as caught:
        point_records(["seed=1,2"], str(tmp_path / name), lambda _: None)
    assert said in str(caught.value)
    assert caught.value.exit_code == 2


def test_points_of_a_file_and_a_grid_are_counted_together(tmp_path: Path) -> None:
    (tmp_path / "f.csv").write_text("a\n" + "1\n" * 11)
    with pytest.raises(InvalidGrid, match=r"11,000,000 points, and 10,000,000 are taken at most"):
        point_records(["b=1..1000000"], str(tmp_path / "f.csv"), pytest.fail)
