"""AsyncioSpawner with real processes and real signals: rules P3, P4, P5, P7."""

import asyncio
import fcntl
import os
import resource
import signal
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest

from jobq.run.process.spawner import StartFailed, StatusLost
from jobq.run.spawn import asyncio_spawner
from tests.process.spawning import ENV, Starter, is_dead, open_descriptors, watched, zombies_and_children

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc and watches with pidfds")


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
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # of a long run of tests it may be any
    status, _ = await (await start(sys.executable, "-c", f"bytearray({own + 100_000_000})")).finish()
    assert status.max_rss_bytes is not None
    assert status.max_rss_bytes > own + 100_000_000
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
