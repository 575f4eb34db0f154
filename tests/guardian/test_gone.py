"""When a tree is surely gone: what a task was granted is handed on then, and not before (P1, P3)."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator

import pytest

from jobq.run.process.spawner import ExitStatus, StartFailed, StatusLost
from jobq.run.spawn.guardian_spawner import GuardianSpawner
from tests.guardian.spawning import Started, guardian_of, start
from tests.guardian.stage import boottime, children, until_async
from tests.guardian.undying import undying

pytestmark = pytest.mark.check

# Leaves a child in a session of its own, and ends as it is told.
ESCAPES = (
    "import os, sys, time\n"
    "if (pid := os.fork()) == 0:\n"
    "    os.setsid(); print(os.getpid(), flush=True); time.sleep(1000)\n"
    "sys.stdin.read() or time.sleep(float(sys.argv[1]))\n"
    "sys.exit(int(sys.argv[2]))\n"
)


@pytest.fixture
async def spawner() -> AsyncIterator[GuardianSpawner]:
    async with GuardianSpawner() as spawner:
        yield spawner


@pytest.mark.parametrize("code", [0, 3])
async def test_what_survived_sigkill_keeps_the_tree_from_being_gone(spawner: GuardianSpawner, code: int) -> None:
    gone = asyncio.Event()
    task = await start(spawner, sys.executable, "-c", ESCAPES, "0.5", str(code), on_gone=gone.set)
    with undying(int(await task.line())):
        status = await _end(task)
        assert (status.exit_code, status.survivors) == (code, 1)
        # Neither another task's end nor time changes that.
        other = asyncio.Event()
        await (await start(spawner, "true", on_gone=other.set)).finish()
        await asyncio.wait_for(other.wait(), 10)
        await asyncio.sleep(1.5)
        assert not gone.is_set()
    await asyncio.wait_for(gone.wait(), 10)
    assert children(guardian_of(spawner)) == []


async def test_what_a_survivor_has_started_keeps_it_from_being_gone(spawner: GuardianSpawner) -> None:
    """Its own child falls to the guardian with its death, and is killed before anything is handed on."""
    gone = asyncio.Event()
    nested = ESCAPES.replace("time.sleep(1000)", "os.fork() or (os.setsid(), time.sleep(1000)); time.sleep(1000)")
    task = await start(spawner, sys.executable, "-c", nested, "0.5", "0", on_gone=gone.set)
    first = int(await task.line())
    await until_async(lambda: len(children(first)) == 1)
    (second,) = children(first)
    with undying(second):
        with undying(first):
            assert (await _end(task)).survivors == 1
            assert not gone.is_set()
        await asyncio.sleep(1.5)
        assert not gone.is_set()
    await asyncio.wait_for(gone.wait(), 10)


async def test_it_is_gone_with_its_end_where_nothing_survived(spawner: GuardianSpawner) -> None:
    ends: list[str] = []
    task = await start(spawner, sys.executable, "-c", ESCAPES, "0", "0", on_gone=lambda: ends.append("gone"))
    await task.finish()
    assert ends == ["gone"]


async def test_it_is_gone_where_nothing_was_started(spawner: GuardianSpawner) -> None:
    ends: list[str] = []
    with pytest.raises(StartFailed):
        await start(spawner, "/no/such/program", on_gone=lambda: ends.append("program"))
    with pytest.raises(StartFailed):
        await start(spawner, "true", "a\0b", on_gone=lambda: ends.append("argument"))
    with pytest.raises(StatusLost):
        await start(spawner, "true", deadline=boottime() - 1, on_gone=lambda: ends.append("late"))
    assert ends == ["program", "argument", "late"]


async def test_it_is_never_gone_where_the_guardian_is() -> None:
    """Nobody can say so any more: it stays withheld for as long as this worker is there."""
    gone = asyncio.Event()
    async with GuardianSpawner() as spawner:
        task = await start(spawner, "sleep", "1000", on_gone=gone.set)
        os.kill(guardian_of(spawner), signal.SIGKILL)
        with pytest.raises(StatusLost):
            await _end(task)
        assert not gone.is_set()
    assert not gone.is_set()


async def _end(task: Started) -> ExitStatus:
    """Wait for its end alone: what survives it holds its output."""
    try:
        return await asyncio.wait_for(task.process.wait(), 10)
    finally:
        task._reader.close()
