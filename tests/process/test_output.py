"""OutputReader with real processes: bounded memory, never stops draining, no descriptor left (P5)."""

import asyncio
import errno
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from jobq.run.process.line_splitter import MAX_LINE_BYTES
from jobq.run.process.output import PROGRESS_SECONDS, OutputReader
from jobq.run.process.spawner import Launch, Process
from jobq.run.spawn.asyncio_spawner import AsyncioSpawner

ENV = {"PATH": os.environ["PATH"]}

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")


class Collected:
    """An on_line that tests can await."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str]] = []
        self._arrived = asyncio.Event()

    def __call__(self, stream: str, text: str) -> None:
        self.lines.append((stream, text))
        self._arrived.set()

    async def next(self) -> str:
        await asyncio.wait_for(self._arrived.wait(), 10)
        self._arrived.clear()
        return self.lines[-1][1]

    def texts(self) -> list[str]:
        return [text for _, text in self.lines]


@pytest.fixture
async def collected() -> Collected:
    return Collected()


@pytest.fixture
async def reader(collected: Collected) -> AsyncIterator[OutputReader]:
    with OutputReader(collected) as reader:
        yield reader


@pytest.fixture
async def spawner() -> AsyncIterator[AsyncioSpawner]:
    async with AsyncioSpawner() as spawner:
        yield spawner


@pytest.fixture
def descriptors() -> Iterator[None]:
    before = open_descriptors()
    yield
    assert open_descriptors() == before


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def bash(spawner: AsyncioSpawner, reader: OutputReader, script: str) -> Process:
    argv = ("bash", "-c", script)
    process = await spawner.spawn(Launch(argv=argv, env=ENV, stdout=reader.stdout, stderr=reader.stderr))
    reader.child_started()
    reader.begin()
    return process


async def run(spawner: AsyncioSpawner, reader: OutputReader, script: str) -> bool:
    process = await bash(spawner, reader, script)
    await asyncio.wait_for(process.wait(), 60)
    return await reader.drain(10)


async def test_lines_of_both_streams(spawner: AsyncioSpawner, reader: OutputReader, collected: Collected) -> None:
    assert await run(spawner, reader, "echo one; echo two >&2; printf 'un\\xe2\\x82ended \\0'")
    assert sorted(collected.lines) == [("stderr", "two"), ("stdout", "one"), ("stdout", "un\ufffdended \0")]
    assert b"un\xe2\x82ended \0" in reader.tail.bytes()


async def test_a_gigabyte_without_a_line_end_stays_in_bounds(
    spawner: AsyncioSpawner, reader: OutputReader, collected: Collected
) -> None:
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before = peak_rss_bytes()
    assert await run(spawner, reader, "head -c 1000000000 /dev/zero")
    assert peak_rss_bytes() - before < 32 * 1024 * 1024
    dropped = 1_000_000_000 - MAX_LINE_BYTES
    assert collected.texts() == ["\0" * MAX_LINE_BYTES + f" [{dropped} bytes dropped]"]
    assert reader.tail.bytes() == bytes(64 * 1024)


def peak_rss_bytes() -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


async def test_a_progress_bar_does_not_flood(
    spawner: AsyncioSpawner, reader: OutputReader, collected: Collected
) -> None:
    loop = asyncio.get_running_loop()
    started = loop.time()
    assert await run(spawner, reader, "for i in {1..20000}; do printf '%d%%\\r' $i; done")
    seconds = loop.time() - started
    assert collected.texts()[-1] == "20000%"
    assert len(collected.lines) <= 2 + seconds / PROGRESS_SECONDS


async def test_the_last_progress_before_a_line_is_passed_on(
    spawner: AsyncioSpawner, reader: OutputReader, collected: Collected
) -> None:
    assert await run(spawner, reader, "printf '1%%\\r2%%\\r99%%\\rdone\\n\\r\\r'")
    assert collected.texts() == ["99%", "done"]


async def test_progress_of_a_task_that_pauses_is_passed_on(
    spawner: AsyncioSpawner, reader: OutputReader, collected: Collected
) -> None:
    process = await bash(spawner, reader, "printf 'waiting\\r'; sleep 1000")
    assert await collected.next() == "waiting"
    process.kill()


async def test_crlf_in_two_writes_is_one_line_end(
    spawner: AsyncioSpawner, reader: OutputReader, collected: Collected
) -> None:
    process = await bash(spawner, reader, "trap 'printf \"\\nb\\r\\n\"; exit' USR1; printf 'a\\r'; sleep 1000 & wait")
    assert await collected.next() == "a"  # after a moment: no LF came
    process.signal(signal.SIGUSR1)
    await process.wait()
    assert await reader.drain(10)
    assert collected.texts() == ["a", "b"]


async def test_errors_of_on_line_are_logged_once_and_change_nothing(
    spawner: AsyncioSpawner, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(_stream: str, _text: str) -> None:
        raise ValueError("broken on_line")

    with OutputReader(broken) as reader:
        assert await run(spawner, reader, "seq 100000")  # more than a pipe holds: it would block for ever
        assert reader.tail.text().endswith("99999\n100000\n")
    assert caplog.text.count("could not be passed on") == 1


async def test_a_slow_on_line_yields_to_the_loop(spawner: AsyncioSpawner) -> None:
    loop = asyncio.get_running_loop()
    lines = 0
    bursts: list[int] = []  # lines between two turns of the loop

    def slow(_stream: str, _text: str) -> None:
        nonlocal lines
        lines += 1
        until = loop.time() + 5e-6
        while loop.time() < until:
            pass

    async def tick() -> None:
        while True:
            before = lines
            await asyncio.sleep(0)
            bursts.append(lines - before)

    with OutputReader(slow) as reader:
        # A gigantic line first: it is read in large chunks, which hold 32 thousand of the lines that follow.
        process = await bash(spawner, reader, "head -c 10000000 /dev/zero; yes | head -c 600000")
        ticking = asyncio.create_task(tick())
        await process.wait()
        ticking.cancel()
        await reader.drain(10)
    assert lines == 300_000
    assert len([burst for burst in bursts if burst > 8192]) <= 3  # halved each time


async def test_drain_gives_up_on_an_escaped_holder_of_the_pipe(
    spawner: AsyncioSpawner, reader: OutputReader, collected: Collected
) -> None:
    before = open_descriptors()
    process = await bash(
        spawner, reader, "trap 'exit 0' USR1; printf last; setsid bash -c 'echo $$; exec sleep 1000' & wait"
    )
    escaped = os.pidfd_open(int((await collected.next()).removeprefix("last")))
    try:
        process.signal(signal.SIGUSR1)
        await process.wait()
        assert not await reader.drain(0.05)
        assert reader.tail.text().startswith("last")
    finally:
        signal.pidfd_send_signal(escaped, signal.SIGKILL)
        os.close(escaped)
    assert open_descriptors() == before - 4
    assert not await reader.drain(10)  # again: no wait, same answer


async def test_drain_is_bounded_while_an_escaped_process_prints_on(
    spawner: AsyncioSpawner, reader: OutputReader
) -> None:
    await bash(spawner, reader, "exec yes")  # as if it had escaped: nobody kills it meanwhile
    assert not await asyncio.wait_for(reader.drain(0.05), 10)


async def test_a_task_that_closes_its_output_is_no_end_of_the_task(
    spawner: AsyncioSpawner, reader: OutputReader, collected: Collected
) -> None:
    process = await bash(spawner, reader, "echo bye; exec >&- 2>&-; sleep 1000")
    assert await collected.next() == "bye"
    assert await reader.drain(10)
    process.kill()
    assert (await process.wait()).signal == signal.SIGKILL


@pytest.mark.usefixtures("descriptors")
async def test_p5_close_at_any_time_leaves_no_descriptor() -> None:
    unused = OutputReader(lambda *_: None)
    unused.close()
    unused.close()
    with OutputReader(lambda *_: None) as reader:
        reader.begin()
        os.write(reader.stdout, b"50%\r")
        await asyncio.sleep(0)  # the reader has seen it and set its timer
    assert not await reader.drain(0)


@pytest.mark.usefixtures("descriptors")
async def test_p5_no_second_pipe_leaves_no_first(monkeypatch: pytest.MonkeyPatch) -> None:
    make, calls = os.pipe, iter([True, False])

    def pipe() -> tuple[int, int]:
        if next(calls):
            return make()
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(os, "pipe", pipe)
    with pytest.raises(OSError, match="Too many open files"):
        OutputReader(lambda *_: None)


@pytest.mark.usefixtures("descriptors")
def test_p5_close_after_the_loop_leaves_no_descriptor() -> None:
    async def make() -> OutputReader:
        return OutputReader(lambda *_: None)

    reader = asyncio.run(make())
    reader.close()
