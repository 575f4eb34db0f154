"""AsyncioSpawner with real processes and real signals: rules P3, P4, P5, P7 of RELIABILITY 1.2."""

import asyncio
import ctypes
import fcntl
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from jobq.errors import ConfigurationError
from jobq.run import asyncio_spawner
from jobq.run.asyncio_spawner import AsyncioSpawner
from jobq.run.output import OutputReader
from jobq.run.process import ExitStatus, Launch, Process, StartFailed, StatusLost

ENV = {"PATH": os.environ["PATH"]}
PR_SET_CHILD_SUBREAPER = 36

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc and watches with pidfds")


class Child:
    """A process and what it prints; tests await its lines instead of sleeping."""

    def __init__(self) -> None:
        self.process: Process
        self.reader = OutputReader(self._on_line)
        self._lines: asyncio.Queue[str] = asyncio.Queue()

    def _on_line(self, _stream: str, text: str) -> None:
        self._lines.put_nowait(text)

    async def line(self) -> str:
        return await asyncio.wait_for(self._lines.get(), 10)

    async def finish(self) -> tuple[ExitStatus, str]:
        status = await asyncio.wait_for(self.process.wait(), 10)
        assert await self.reader.drain(5)
        return status, self.reader.tail.text()


class Starter:
    def __init__(self, spawner: AsyncioSpawner) -> None:
        self.spawner = spawner
        self._children: list[Child] = []

    async def __call__(self, *argv: str, cwd: str | None = None, env: dict[str, str] | None = None) -> Child:
        child = Child()
        self._children.append(child)
        launch = Launch(
            argv=argv, env=ENV if env is None else env, cwd=cwd, stdout=child.reader.stdout, stderr=child.reader.stderr
        )
        child.process = await self.spawner.spawn(launch)
        child.reader.child_started()
        return child

    async def bash(self, script: str) -> Child:
        return await self("bash", "-c", script)

    def close(self) -> None:
        for child in self._children:
            child.reader.close()


@pytest.fixture(params=["pidfd", "thread"])
async def start(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Starter]:
    if request.param == "thread":
        monkeypatch.setattr(asyncio_spawner, "_pidfd_open", lambda _pid: None)
    async with AsyncioSpawner() as spawner:
        starter = Starter(spawner)
        yield starter
        starter.close()


@contextmanager
def watched(pid: int) -> Iterator[int]:
    pidfd = os.pidfd_open(pid)
    try:
        yield pidfd
    finally:
        os.close(pidfd)


def is_dead(pidfd: int) -> bool:
    return bool(select.select([pidfd], [], [], 0)[0])


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def zombies_and_children() -> list[psutil.Process]:
    return psutil.Process().children()


@pytest.mark.parametrize("code", [0, 1, 3, 255])
async def test_p7_exit_code(start: Starter, code: int) -> None:
    status, _ = await (await start.bash(f"exit {code}")).finish()
    assert (status.exit_code, status.signal) == (code, None)
    assert status.cpu_seconds is not None


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGSEGV])
async def test_p7_death_by_signal(start: Starter, number: signal.Signals) -> None:
    status, _ = await (await start.bash(f"kill -{number.value} $$")).finish()
    assert (status.exit_code, status.signal) == (None, number)


async def test_peak_memory_is_the_childs_or_unknown(start: Starter) -> None:
    status, _ = await (await start(sys.executable, "-c", "bytearray(500_000_000)")).finish()
    assert status.max_rss_bytes is not None
    assert status.max_rss_bytes > 500_000_000
    status, _ = await (await start("true")).finish()
    assert status.max_rss_bytes is None  # Linux would tell ours


async def test_output_environment_and_directory_are_as_launched(start: Starter, tmp_path: Path) -> None:
    child = await start("bash", "-c", "echo $A; pwd; echo err >&2", cwd=str(tmp_path), env={**ENV, "A": "b c"})
    _, output = await child.finish()
    assert output.splitlines() == ["b c", str(tmp_path), "err"]


async def test_own_session_and_group(start: Starter) -> None:
    script = "import os; print(os.getpid(), os.getsid(0), os.getpgrp())"
    child = await start(sys.executable, "-c", script)
    _, output = await child.finish()
    assert output.split() == [str(child.process.pid)] * 3


async def test_standard_input_is_dev_null(start: Starter) -> None:
    _, output = await (await start("readlink", "/proc/self/fd/0")).finish()
    assert output == "/dev/null\n"


async def test_no_descriptor_is_inherited(start: Starter) -> None:
    inheritable = fcntl.fcntl(0, fcntl.F_DUPFD, 50)
    try:
        child = await start("ls", "/proc/self/fd")
    finally:
        os.close(inheritable)
    _, output = await child.finish()
    assert output.split() == ["0", "1", "2", "3"]  # 3 is the directory that ls reads


async def test_p5_group_is_gone_after_a_normal_exit(start: Starter) -> None:
    # peers.md section 5, (14): a background child without our pipes used to survive.
    child = await start.bash("trap 'exit 0' USR1; (trap '' USR1; echo $BASHPID; exec sleep 1000 >&- 2>&-) & wait; wait")
    with watched(int(await child.line())) as background:
        child.process.signal(signal.SIGUSR1)
        status, _ = await child.finish()
        assert status.exit_code == 0
        assert is_dead(background)


async def test_p3_kill_reaches_grandchildren_that_ignore_term(start: Starter) -> None:
    child = await start.bash("trap '' TERM; bash -c 'sleep 1000 & echo $!; wait' & wait")
    with watched(int(await child.line())) as grandchild:
        child.process.signal(signal.SIGTERM)
        assert not is_dead(grandchild)
        child.process.kill()
        status, _ = await child.finish()
        assert status.signal == signal.SIGKILL
        assert is_dead(grandchild)


async def test_kill_ends_a_stopped_group(start: Starter) -> None:
    child = await start.bash("echo ready; kill -STOP 0; echo never")
    await child.line()
    child.process.kill()
    status, output = await child.finish()
    assert (status.signal, output) == (signal.SIGKILL, "ready\n")


async def test_signal_reaches_the_whole_group(start: Starter) -> None:
    child = await start.bash(
        "trap 'echo parent' USR1; (trap 'echo child; exit' USR1; echo ready; sleep 1000 & wait) & wait; wait"
    )
    assert await child.line() == "ready"
    child.process.signal(signal.SIGUSR1)
    assert {await child.line(), await child.line()} == {"parent", "child"}
    await child.finish()


async def test_p4_no_signal_after_the_reaping(start: Starter, monkeypatch: pytest.MonkeyPatch) -> None:
    child = await start("true")
    await child.finish()
    sent: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "killpg", lambda *call: sent.append(call))
    child.process.signal(signal.SIGTERM)
    child.process.kill()
    child.process.extend(1e9)
    assert sent == []


async def test_p4_reaped_by_other_code_is_an_error_and_never_signalled(
    start: Starter, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = await start.bash("exit 3")
    os.waitpid(child.process.pid, 0)
    with pytest.raises(StatusLost, match=str(child.process.pid)):
        await asyncio.wait_for(child.process.wait(), 10)
    monkeypatch.setattr(os, "killpg", lambda *_call: pytest.fail("signalled"))
    child.process.kill()


async def test_many_waiters_and_a_cancelled_one(start: Starter) -> None:
    child = await start.bash("trap 'exit 7' TERM; echo ready; sleep 1000 & wait")
    await child.line()
    first, second, cancelled = (asyncio.create_task(child.process.wait()) for _ in range(3))
    await asyncio.sleep(0)  # all three wait now
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    assert psutil.pid_exists(child.process.pid)
    assert not first.done()
    child.process.signal(signal.SIGTERM)
    statuses = [await first, await second, await child.process.wait()]
    assert [status.exit_code for status in statuses] == [7, 7, 7]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("no-such-program-42",), "'no-such-program-42' not found on PATH"),
        (("/no/such/program",), "'/no/such/program' does not exist"),
        (("./here-not",), "'./here-not' does not exist"),
        (("/etc/passwd",), "'/etc/passwd' is not executable"),
        (("/etc",), "'/etc' is not executable"),
        (("true", "a\0b"), "null"),
        (("true", "\ud800"), "surrogates"),
        (("true", "x" * 200_000), r"too long.*argument 1 alone has 200000.*in a file"),
    ],
)
async def test_p7_start_failed_says_what(start: Starter, argv: tuple[str, ...], message: str) -> None:
    before = open_descriptors()
    with pytest.raises(StartFailed, match=message) as raised:
        await start(*argv)
    assert not raised.value.transient
    start.close()
    assert open_descriptors() == before
    assert zombies_and_children() == []


async def test_p7_a_large_variable_is_named_and_not_shown(start: Starter) -> None:
    with pytest.raises(StartFailed, match=r"environment variable 'BIG' alone has") as raised:
        await start("true", env={**ENV, "BIG": "secret" * 40_000})
    assert "secret" not in str(raised.value)


async def test_p7_directory_and_program_are_told_apart(start: Starter, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("#!/no/such/interpreter\n")
    file.chmod(0o755)
    with pytest.raises(StartFailed, match=r"working directory '/no/such' does not exist"):
        await start("true", cwd="/no/such")
    with pytest.raises(StartFailed, match=r"working directory '.*file' is not a directory"):
        await start("true", cwd=str(file))
    with pytest.raises(StartFailed, match=r"'.*file' exists, but the interpreter"):
        await start(str(file))
    with pytest.raises(StartFailed, match=r"'file' was found, but the interpreter"):
        await start("file", env={"PATH": str(tmp_path)})
    with pytest.raises(StartFailed, match=r"program '.*' is not executable"):
        await start(str(tmp_path), cwd=str(tmp_path))
    with pytest.raises(StartFailed, match=r"working directory '/no/such' does not exist"):
        await start("/no/such", cwd="/no/such")
    file.write_text("neither\n")
    with pytest.raises(StartFailed, match=r"needs a #! line"):
        await start(str(file))


async def test_p7_no_descriptors_left_is_transient(start: Starter, monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(*_args: object, **_kwargs: object) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(subprocess, "Popen", none_left)
    with pytest.raises(StartFailed, match="Too many open files") as raised:
        await start("true")
    assert raised.value.transient


async def test_p5_nothing_is_left_of_a_process_that_cannot_be_watched(
    start: Starter, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_thread(*_args: object, **_kwargs: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(asyncio_spawner, "_pidfd_open", lambda _pid: None)
    monkeypatch.setattr(threading.Thread, "start", no_thread)
    with pytest.raises(StartFailed, match="cannot watch") as raised:
        await start("sleep", "1000")
    assert raised.value.transient
    assert zombies_and_children() == []


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
