"""S9: a walk goes on where the last holder stopped; nothing is left out, and one page at most is handled twice."""

import asyncio
import random
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from jobq.errors import ConfigurationError, LockLost, SourceChanged, StoreUnusable
from jobq.lease import data_sources
from jobq.lease.named import NamedLease
from jobq.lease.store import store_of
from jobq.lease.timing import LeaseTiming
from jobq.lease.traversal import Page, Progress, Traversal
from jobq.testing.clock import VirtualClock
from jobq_memory import MemoryBackend, Router
from tests.leases.faulty import FaultyStore

WALKER = str(Path(__file__).parent / "walker.py")


class Bench:
    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.other = store_of(MemoryBackend(Router(self.clock), "q"))
        self.store = FaultyStore(self.other)
        self.fetched: list[Any] = []

    def walk(self, count: int = 25, batch: int = 10, source: dict[str, str] | None = None) -> Traversal[int]:
        async def fetch(after: Any, limit: int) -> Page[int]:
            self.fetched.append(after)
            numbers = range(0 if after is None else after, count)[:limit]
            return Page(numbers, numbers[-1] + 1 if numbers else after)

        lease = NamedLease(self.store, "walk", timing=LeaseTiming(lease=60), clock=self.clock, wait=False)
        return Traversal(lease, fetch, batch_size=batch, source=source)


@pytest.fixture
def bench() -> Bench:
    return Bench()


async def test_every_record_once_and_a_durable_end(bench: Bench) -> None:
    handled: list[int] = []

    async def handle(items: Sequence[int]) -> None:
        handled.extend(items)

    async with bench.walk() as walk:
        progress = await walk.run(handle)
    assert handled == list(range(25))
    assert (progress.handled, progress.is_done) == (25, True)
    bench.fetched.clear()
    async with bench.walk() as again:
        assert again.progress.is_done
        await again.run(handle)
    assert handled == list(range(25))
    assert bench.fetched == [], "what is done is not even looked at"


@pytest.mark.parametrize("after", [None, 5, [5, 1]])
async def test_a_fetch_whose_cursor_stands_still_is_refused(bench: Bench, after: Any) -> None:
    """It would hand out the same page for ever; the first page of a cursor that is not None is handled once."""

    async def fetch(_: Any, __: int) -> Page[int]:
        return Page([1, 2], after=after)

    lease = NamedLease(bench.store, "walk", timing=LeaseTiming(lease=60), clock=bench.clock, wait=False)
    seen: list[int] = []

    async def handle(items: Sequence[int]) -> None:
        seen.extend(items)

    async with Traversal(lease, fetch) as walk:
        with pytest.raises(ValueError, match="the cursor that it was given"):
            await walk.run(handle)
    assert seen == ([] if after is None else [1, 2])


async def test_the_next_goes_on_after_the_last_saved_page(bench: Bench) -> None:
    """Handled and not saved is handled again: one page."""
    seen: list[int] = []
    async with bench.walk() as walk:
        async for page in walk:
            seen.extend(page.items)
            if len(seen) == 20:
                break
    async with bench.walk() as walk:
        async for page in walk:
            seen.extend(page.items)
    assert Counter(seen) == Counter([*range(25), *range(10, 20)])


async def test_an_empty_data_set_is_done(bench: Bench) -> None:
    async with bench.walk(count=0) as walk:
        assert [page async for page in walk] == []
        assert walk.progress.is_done


@pytest.mark.parametrize("fault", ["lose", "lose_before", "hang", "hang_after", "refuse"])
async def test_a_save_without_an_answer_is_repeated_and_nothing_is_left_out(bench: Bench, fault: str) -> None:
    handled: list[int] = []

    async def handle(items: Sequence[int]) -> None:
        handled.extend(items)

    async def all_of_it() -> None:
        async with bench.walk() as walk:
            await walk.run(handle)

    bench.store.strike("save", fault, "", fault)
    walking = asyncio.create_task(all_of_it())
    while not walking.done():
        await bench.clock.advance(0.1)
    walking.result()
    assert handled == list(range(25))


async def test_a_holder_that_lost_its_lease_saves_nothing_and_is_told(bench: Bench) -> None:
    """The new holder's cursor stands; what the old one handles meanwhile is not counted."""
    async with bench.walk() as first:
        pages = aiter(first)
        await anext(pages)
        await bench.other.release("walk", first.lease.token)
        async with bench.walk() as second:
            await second.run(_nothing)
        with pytest.raises(LockLost):
            await anext(pages)
        record = await bench.other.read("walk")
        assert record is not None
        assert Progress.decode(record.cursor, "walk") == second.progress
        first.lease.leave_to_expire()


async def test_a_handler_is_cancelled_when_the_lease_is_lost(bench: Bench) -> None:
    began, cancelled = asyncio.Event(), asyncio.Event()

    async def handle(_items: Sequence[int]) -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    async def walk_on() -> None:
        async with bench.walk() as walk:
            await walk.run(handle)

    walking = asyncio.create_task(walk_on())
    await began.wait()
    bench.store.always["renew"] = "hang"
    await bench.clock.advance(60)
    with pytest.raises(LockLost):
        await walking
    assert cancelled.is_set()
    assert not bench.store.calls["save"]


async def test_another_source_is_refused_and_leaves_the_cursor(bench: Bench) -> None:
    async with bench.walk(source={"file": "a"}) as walk:
        pages = aiter(walk)
        await anext(pages)
        await anext(pages)
    with pytest.raises(SourceChanged, match="begun with another file; go on with the same"):
        await bench.walk(source={"file": "b"}).__aenter__()
    async with bench.walk(source={"file": "a"}) as walk:
        assert walk.progress.handled == 10


async def test_a_foreign_cursor_is_refused(bench: Bench) -> None:
    lease = NamedLease(bench.store, "walk", timing=LeaseTiming(lease=60), clock=bench.clock)
    async with lease:
        await lease.save("row 7")
    with pytest.raises(StoreUnusable, match="was not saved by a walk"):
        await bench.walk().__aenter__()
    record = await bench.other.read("walk")
    assert record is not None
    assert record.state == "released"


async def _nothing(items: Sequence[int]) -> None:
    del items


async def test_lines_by_offset(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"one\r\ntwo\n\nf\xc3\xbcnf\nlast")
    fetch = data_sources.lines(path)
    found: list[data_sources.Line] = []
    after: Any = None
    while True:
        page = await fetch(after, 2)
        found += page.items
        after = page.after
        if page.is_last:
            break
    assert [(line.offset, line.number, line.content) for line in found] == [
        (0, 1, b"one"), (5, 2, b"two"), (9, 3, b""), (10, 4, "fünf".encode()), (16, 5, b"last"),
    ]  # fmt: skip


def users(path: Path, values: Sequence[tuple[Any, str]], kind: str = "INTEGER") -> Path:
    with sqlite3.connect(path) as database:
        database.execute(f"CREATE TABLE users (id {kind}, name TEXT)")
        database.executemany("INSERT INTO users VALUES (?, ?)", values)
    database.close()
    return path


@pytest.mark.parametrize("limit", [1, 3, 7, 100])
async def test_rows_by_key(tmp_path: Path, limit: int) -> None:
    values = [(number * 3 - 20, f"n'{number}") for number in range(20)]
    random.Random(1).shuffle(values)
    path = users(tmp_path / "u.db", values)
    fetch = data_sources.sqlite_rows(path, "SELECT id, name FROM users WHERE id <> 1;", "id")
    found: list[int] = []
    page = await fetch(None, limit)
    while True:
        found += [row["id"] for row in page.items]
        if page.is_last:
            break
        page = await fetch(page.after, limit)
    assert found == sorted(id_ for id_, _ in values if id_ != 1)


@pytest.mark.parametrize(
    ("values", "key", "message"),
    [
        ([(1, "a"), (1, "b"), (2, "c")], "id", "is not unique"),
        ([(1, "a"), (2, "b"), (2, "c")], "id", "is not unique"),
        ([(1, "a"), (None, "b")], "id", "is NULL in some rows"),
        ([(1, "a")], "no such", "has no column 'no such'|no such column"),
        ([(b"x", "a")], "id", "is a bytes"),
    ],
)
async def test_keys_that_would_lose_rows_are_refused(
    tmp_path: Path, values: list[tuple[Any, str]], key: str, message: str
) -> None:
    """Also when the rows that share a key lie on two pages."""
    fetch = data_sources.sqlite_rows(users(tmp_path / "u.db", values, "ANY"), "SELECT * FROM users", key)

    async def walk() -> None:
        page = await fetch(None, 2)
        while not page.is_last:
            page = await fetch(page.after, 2)

    with pytest.raises(ConfigurationError, match=message):
        await walk()


async def test_keys_that_differ_and_are_equal_by_their_collation_lose_no_row(tmp_path: Path) -> None:
    """The next page asks for what is greater: a row whose key is unique as bytes was left out in silence."""
    path = users(tmp_path / "u.db", [("a", ""), ("b", ""), ("B", ""), ("c", "")], "TEXT COLLATE NOCASE")
    fetch = data_sources.sqlite_rows(path, "SELECT id FROM users", "id")
    page = await fetch(None, 1)
    with pytest.raises(ConfigurationError, match=r"takes 'b' and 'B' for equal .*: id COLLATE BINARY AS id"):
        await fetch(page.after, 1)
    page = await fetch(None, 3)
    assert [row["id"] for row in (await fetch(page.after, 3)).items] == ["c"], "both stood on one page"
    as_bytes = data_sources.sqlite_rows(path, "SELECT id COLLATE BINARY AS id FROM users", "id")
    found, after = [], None
    for _ in range(4):
        page = await as_bytes(after, 1)
        found += [row["id"] for row in page.items]
        after = page.after
    assert found == ["B", "a", "b", "c"]


def crash_story(folder: Path, count: int, batch: int, kill_at: Callable[[int], bool]) -> None:
    """A holder is SIGKILLed on its way; another resumes at the saved cursor."""
    handled = folder / "handled"
    spec = f"sqlite://{folder}/jobs.db/demo"
    argv = [sys.executable, WALKER, spec, "walk", str(count), str(batch), str(handled)]

    def so_far() -> list[tuple[int, int]]:
        if not handled.exists():
            return []
        text = handled.read_text()
        return [(int(token), int(number)) for token, number in (line.split() for line in text.splitlines())]

    with subprocess.Popen(argv, stdout=subprocess.PIPE) as first:
        size = 0
        while not kill_at(size // 8):
            assert first.poll() is None, "it was done before it was killed"
            size = handled.stat().st_size if handled.exists() else 0
            time.sleep(0.001)
        first.kill()
    before = len(so_far())
    second = subprocess.run(argv, stdout=subprocess.PIPE, check=True, timeout=600)
    assert second.stdout == b"done %d\n" % count
    told = so_far()
    assert [number for token, number in told if token == 1] == list(range(before))
    resumed = [number for token, number in told if token == 2]
    assert resumed == list(range(resumed[0], count)), "it went on at one place, to the end"
    assert before - batch <= resumed[0] <= before, "one batch at most was handled twice, and nothing was left out"
    assert resumed[0] % batch == 0
    assert 0 < before < count


def test_the_crash_story(tmp_path: Path) -> None:
    crash_story(tmp_path, 100_000, 500, lambda handled: handled >= 50_000)


@pytest.mark.night
@pytest.mark.timeout(900)
def test_the_crash_story_at_half_a_million(tmp_path: Path) -> None:
    crash_story(tmp_path, 1_000_000, 1000, lambda handled: handled >= 500_000)
