"""AsyncioSpawner: nothing is left of what it started, however it ends (P4, P5)."""

import asyncio
import ctypes
import signal
import sys
import threading

import pytest

from jobq.errors import ConfigurationError
from jobq.run.process.output import OutputReader
from jobq.run.process.spawner import ExitStatus, Launch, Process
from jobq.run.spawn import asyncio_spawner
from jobq.run.spawn.asyncio_spawner import AsyncioSpawner
from tests.process.spawning import ENV, Starter, is_dead, open_descriptors, watched, zombies_and_children

PR_SET_CHILD_SUBREAPER = 36

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc and watches with pidfds")


async def test_p5_many_spawns_leave_no_descriptor_and_no_zombie(start: Starter) -> None:
    await (await start("true")).finish()
    before = open_descriptors()

    async def several() -> None:
        for number in range(25):
            status, output = await (await start.bash(f"echo {number}; exit {number}")).finish()
            assert (status.exit_code, output) == (number, f"{number}\n")

    await asyncio.gather(*(several() for _ in range(8)))
    assert open_descriptors() == before
    assert zombies_and_children() == []


async def test_p5_leaving_kills_and_reaps(monkeypatch: pytest.MonkeyPatch) -> None:
    before = open_descriptors()
    with OutputReader(lambda *_: None) as reader:
        async with AsyncioSpawner() as spawner:
            launch = Launch(
                argv=("bash", "-c", "trap '' TERM; sleep 1000"), env=ENV, stdout=reader.stdout, stderr=reader.stderr
            )
            watching = [await spawner.spawn(launch)]
            monkeypatch.setattr(asyncio_spawner, "_pidfd_open", lambda _pid: None)
            watching.append(await spawner.spawn(launch))
        statuses = [await process.wait() for process in watching]
        assert [status.signal for status in statuses] == [signal.SIGKILL] * 2
        with pytest.raises(RuntimeError, match="not open"):
            await spawner.spawn(launch)
    assert zombies_and_children() == []
    assert open_descriptors() == before


async def test_p5_leaving_reaps_even_when_cancelled() -> None:
    entered = asyncio.Event()

    async def use() -> None:
        async with AsyncioSpawner() as spawner:
            await spawner.spawn(Launch(argv=("sleep", "1000"), env=ENV, stdout=2, stderr=2))
            entered.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(use())
    await entered.wait()
    task.cancel()
    await asyncio.sleep(0)  # it is leaving now
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert zombies_and_children() == []


async def test_p5_a_zombie_that_nobody_reaps_does_not_hang_the_wait(
    start: Starter, caplog: pytest.LogCaptureFixture
) -> None:
    # Its parent leaves the session, so it survives the kill of the group, and never waits.
    script = """
import os, sys, time
if os.fork():
    os.read(0, 1)
    os.kill(os.getpid(), 19)  # the leader stops until it is killed
ready, tell = os.pipe()
if not os.fork():
    os.write(tell, b"x")
    time.sleep(1000)
os.read(ready, 1)
os.setsid()
print(os.getpid(), flush=True)
os.closerange(0, 100)
time.sleep(1000)
"""
    child = await start(sys.executable, "-c", script)
    with watched(int(await child.line())) as escaped:
        try:
            child.process.kill()
            status, _ = await child.finish()
            assert status.signal == signal.SIGKILL
            assert not is_dead(escaped)  # the docstring says so: P3 is the guardian's
            assert caplog.text == ""  # a zombie holds nothing and is nothing to warn of
        finally:
            signal.pidfd_send_signal(escaped, signal.SIGKILL)


async def test_p5_a_group_that_outlives_its_kill_is_reported_and_does_not_hang_the_wait(
    start: Starter, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Uninterruptible sleep cannot be made at will: let the look at the group say that it lives.
    monkeypatch.setattr(asyncio_spawner, "_group_exists", lambda _group: True)
    monkeypatch.setattr(asyncio_spawner, "_group_lives", lambda _group: True)
    await (await start("true")).finish()
    assert "outlives its SIGKILL" in caplog.text


async def test_p5_orphans_that_fall_to_us_are_reaped(start: Starter) -> None:
    # As PID 1 of a container, or below a subreaper that is ourselves.
    libc = ctypes.CDLL(None)
    assert libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
    try:
        child = await start.bash("(sleep 1000 & echo ready); exec sleep 1000")
        await child.line()
        child.process.kill()
        await child.finish()
        assert zombies_and_children() == []
    finally:
        libc.prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


async def test_p4_an_ignored_sigchld_is_refused() -> None:
    former = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        with pytest.raises(ConfigurationError, match="SIGCHLD is ignored"):
            await AsyncioSpawner().__aenter__()
    finally:
        signal.signal(signal.SIGCHLD, former)


@pytest.mark.parametrize("with_pidfd", [True, False])
def test_after_the_loop_is_closed_a_process_can_still_be_killed(
    with_pidfd: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not with_pidfd:
        monkeypatch.setattr(asyncio_spawner, "_pidfd_open", lambda _pid: None)
    before = open_descriptors()
    spawner = AsyncioSpawner()

    async def enter() -> Process:
        await spawner.__aenter__()
        return await spawner.spawn(Launch(argv=("sleep", "1000"), env=ENV, stdout=2, stderr=2))

    process = asyncio.run(enter())
    process.kill()
    assert isinstance(process, asyncio_spawner._Process)
    for thread in threading.enumerate():
        if thread.name == f"jobq-wait-{process.pid}":
            thread.join(10)  # it found the loop closed, and kept quiet
    assert process._popen.wait() == -signal.SIGKILL
    process.abandon()
    assert open_descriptors() == before


def test_values_refuse_nonsense() -> None:
    with pytest.raises(ValueError, match="no program"):
        Launch(argv=(), env={}, stdout=1, stderr=2)
    with pytest.raises(ValueError, match="exactly one"):
        ExitStatus()
    with pytest.raises(ValueError, match="exactly one"):
        ExitStatus(exit_code=0, signal=9)
