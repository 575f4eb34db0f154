"""LineSplitter and Tail: the same lines for any cut into chunks, in bounded memory (architecture 6, Output)."""

import re
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobq.run.process.line_splitter import MAX_LINE_BYTES, LineSplitter, OutputLine, Tail, WholeLines

# Ends of line, whole and broken characters of one to four bytes, NUL.
PARTS = st.sampled_from(
    [b"\n", b"\r", b"\r\n", b"a", b"\0", "é".encode(), "€".encode(), "🦀".encode(), b"\xff", b"\xe2\x82", b"\xf0\x9f"]
)
OUTPUT = st.lists(PARTS | st.binary(max_size=4), max_size=30).map(b"".join)


def split(*chunks: bytes, max_bytes: int = MAX_LINE_BYTES) -> list[OutputLine]:
    splitter = LineSplitter(max_bytes)
    lines = [line for chunk in chunks for line in splitter.feed(chunk)]
    return lines + splitter.finish()


def cut(output: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(place % (len(output) + 1) for place in places), len(output)]
    return [output[start:end] for start, end in pairwise(edges)]


@settings(deadline=None)  # a machine may be busy
@given(OUTPUT, st.lists(st.integers(min_value=0), max_size=8), st.integers(min_value=1, max_value=12))
def test_any_chunking_gives_the_lines_of_one_chunk(output: bytes, places: list[int], max_bytes: int) -> None:
    assert split(*cut(output, places), max_bytes=max_bytes) == split(output, max_bytes=max_bytes)


@settings(deadline=None)  # a machine may be busy
@given(OUTPUT)
def test_byte_by_byte_gives_the_lines_of_a_regular_expression(output: bytes) -> None:
    parts = re.split(rb"(\r\n|\r|\n)", output)
    expected = [
        OutputLine(text.decode(errors="replace"), end == b"\r")
        for text, end in zip(parts[::2], parts[1::2], strict=False)
    ]
    if parts[-1]:
        expected.append(OutputLine(parts[-1].decode(errors="replace"), progress=False))
    assert split(*(bytes([byte]) for byte in output)) == expected


@settings(deadline=None)  # a machine may be busy
@given(OUTPUT, st.lists(st.integers(min_value=0), max_size=8))
def test_settling_at_any_place_loses_and_adds_no_line(output: bytes, places: list[int]) -> None:
    splitter = LineSplitter()
    lines: list[OutputLine] = []
    for chunk in cut(output, places):
        lines += splitter.feed(chunk)
        lines += splitter.settle()
        assert not splitter.undecided
    lines += splitter.finish()
    assert [line.text for line in lines] == [line.text for line in split(output)]


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        (b"", []),
        (b"a", [("a", False)]),
        (b"\n\n", [("", False), ("", False)]),
        (b"1%\r2%\r\n", [("1%", True), ("2%", False)]),
        (b"a\r\r\n", [("a", True), ("", False)]),
        (b"a\r", [("a", True)]),
        (b"\xff\0\n", [("\ufffd\0", False)]),
    ],
)
def test_ends_of_line(output: bytes, expected: list[tuple[str, bool]]) -> None:
    assert split(output) == expected


def test_a_long_line_comes_once_with_a_note() -> None:
    lines = split(*[b"x" * 1000] * 20, b"\nshort\n")
    assert lines == [("x" * MAX_LINE_BYTES + f" [{20_000 - MAX_LINE_BYTES} bytes dropped]", False), ("short", False)]


def test_a_long_line_is_cut_between_characters() -> None:
    assert split("ab€€\n".encode(), max_bytes=7) == [("ab€ [3 bytes dropped]", False)]
    assert split("ab€€".encode(), max_bytes=4) == [("ab [6 bytes dropped]", False)]


def test_a_line_of_exactly_the_limit_is_whole() -> None:
    assert split(b"abcd\n", max_bytes=4) == [("abcd", False)]


@settings(deadline=None)  # a machine may be busy
@given(st.lists(OUTPUT, max_size=20), st.integers(min_value=0, max_value=40))
def test_tail_is_the_end_of_everything(chunks: list[bytes], max_bytes: int) -> None:
    tail = Tail(max_bytes)
    for chunk in chunks:
        tail.add(chunk)
    everything = b"".join(chunks)
    assert tail.bytes() == everything[max(0, len(everything) - max_bytes) :]
    assert len(tail.text().encode()) <= max_bytes


@settings(deadline=None)  # a machine may be busy
@given(st.text(st.sampled_from("aé€🦀"), max_size=60), st.integers(min_value=0, max_value=70))
def test_tail_of_good_text_is_cut_between_characters(output: str, limit: int) -> None:
    tail = Tail(50)
    for byte in output.encode():
        tail.add(bytes([byte]))
    text = tail.text(limit)
    assert output.endswith(text)
    assert "\ufffd" not in text
    whole = min(limit, 50, len(output.encode()))
    assert whole - 3 <= len(text.encode()) <= whole


def test_tail_keeps_undecodable_bytes_as_replacements() -> None:
    tail = Tail(100)
    tail.add(b"\x80ok\xff")
    assert tail.text() == "\ufffdok\ufffd"
    assert tail.text(5) == "ok\ufffd"


def test_whole_lines_are_passed_on_unchanged() -> None:
    lines = WholeLines(max_bytes=8)
    assert lines.feed(b"a\r\xffb") == b""
    assert lines.feed(b"\nc\nd") == b"a\r\xffb\nc\n"
    assert lines.feed(b"12345678") == b"d12345678"  # too long to wait for its end
    assert lines.feed(b"9") == b""
    assert (lines.finish(), lines.finish()) == (b"9", b"")
