"""GuardianSpawner as any Spawner: exit truth, order, descriptors, deadlines (P1, P2, P4, P5, P7)."""

import asyncio
import fcntl
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from jobq.errors import ConfigurationError
from jobq.run.process.spawner import Deadline, Launch, StartFailed
from jobq.run.spawn import guardian_spawner
from jobq.run.spawn.guardian_spawner import GuardianSpawner
from tests.guardian.spawning import descriptors, guardian_of, start
from tests.guardian.stage import (
    ENV,
    boottime,
    children,
    rss_anon_bytes,
    until,
    until_async,
)

pytestmark = pytest.mark.check


@pytest.fixture(params=["launcher", "fork"])
async def spawner(request: pytest.FixtureRequest) -> AsyncIterator[GuardianSpawner]:
    """Of both ways to start a task, which nothing tells apart."""
    async with GuardianSpawner(launcher="auto" if request.param == "launcher" else "off") as spawner:
        yield spawner


async def test_l4_a_worker_that_was_stopped_while_it_started_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """The guardian's first word lay in its socket all the while; the simulation found that it was taken for silence."""
    monkeypatch.setattr(guardian_spawner, "HELLO_SECONDS", 0.5)
    asyncio.get_running_loop().call_soon(time.sleep, 1.0)  # as by SIGSTOP: nothing of this process runs meanwhile
    async with GuardianSpawner() as spawner:
        assert spawner.worker_id


@pytest.mark.parametrize("code", [0, 1, 255])
async def test_p7_exit_code(spawner: GuardianSpawner, code: int) -> None:
    status, _ = await (await start(spawner, "sh", "-c", f"exit {code}")).finish()
    assert (status.exit_code, status.signal) == (code, None)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGSEGV])
async def test_p7_death_by_signal(spawner: GuardianSpawner, number: signal.Signals) -> None:
    status, _ = await (await start(spawner, "sh", "-c", f"kill -{number.value} $$")).finish()
    assert (status.exit_code, status.signal) == (None, number)


async def test_p7_usage_is_the_tasks_own(spawner: GuardianSpawner) -> None:
    burn = "import time, sys; x = bytearray(100_000_000)\nwhile time.process_time() < 0.2: pass"
    status, _ = await (await start(spawner, sys.executable, "-c", burn)).finish()
    assert status.cpu_seconds is not None
    assert 0.2 <= status.cpu_seconds < 1
    assert status.max_rss_bytes is not None
    assert 100_000_000 < status.max_rss_bytes < 200_000_000
    status, _ = await (await start(spawner, "true")).finish()
    assert status.max_rss_bytes is None  # Linux would tell the guardian's


async def test_what_a_task_finds(spawner: GuardianSpawner, tmp_path: Path) -> None:
    inheritable = fcntl.fcntl(0, fcntl.F_DUPFD, 50)
    script = (
        "import os, signal\n"
        "print(os.getcwd(), os.environ['A'], os.readlink('/proc/self/fd/0'))\n"
        "print(os.getsid(0) == os.getpgrp() == os.getpid())\n"
        "print(sorted(os.listdir('/proc/self/fd')))\n"
        "status = dict(line.split(':', 1) for line in open('/proc/self/status'))\n"
        # The real-time signals that glibc keeps for itself are as make or whoever left them.
        "print(*(int(status[name], 16) & 0x7fffffff for name in ('SigBlk', 'SigIgn', 'SigCgt')))\n"
    )
    # -S -E: no site; SIGINT is caught and SIGPIPE, SIGXFSZ are ignored by Python itself.
    try:
        program = await start(spawner, sys.executable, "-S", "-c", script, env={**ENV, "A": "b c"}, cwd=str(tmp_path))
    finally:
        os.close(inheritable)
    _, output = await program.finish()
    python_ignores = 1 << (signal.SIGPIPE - 1) | 1 << (signal.SIGXFSZ - 1)
    assert output.splitlines() == [
        f"{tmp_path} b c /dev/null",
        "True",
        "['0', '1', '2', '3']",
        f"0 {python_ignores} {1 << (signal.SIGINT - 1)}",
    ]


@pytest.mark.parametrize(
    ("argv", "cwd", "message"),
    [
        (("no-such-program-42",), None, "'no-such-program-42' not found on PATH"),
        (("/no/such/program",), None, "'/no/such/program' does not exist"),
        (("/etc/passwd",), None, "'/etc/passwd' is not executable"),
        (("true", "a\0b"), None, "null"),
        (("true", "\ud800"), None, "surrogates"),
        (("true", "x" * 200_000), None, r"too long.*argument 1 alone has 200000.*in a file"),
        (("true", *["x" * 100_000] * 200), None, r"too long"),
        (("true",), "/no/such", "working directory '/no/such' does not exist"),
        (("true",), "/etc/passwd", "working directory '/etc/passwd' is not a directory"),
        (("/no/such",), "/no/such", "working directory '/no/such' does not exist"),
    ],
)
async def test_p7_start_failed_says_what(
    spawner: GuardianSpawner, argv: tuple[str, ...], cwd: str | None, message: str
) -> None:
    before = descriptors()
    with pytest.raises(StartFailed, match=message) as raised:
        await start(spawner, *argv, cwd=cwd)
    assert not raised.value.transient
    assert descriptors() == before
    await until_async(lambda: children(guardian_of(spawner)) == [])


async def test_p7_a_directory_is_no_program(spawner: GuardianSpawner, tmp_path: Path) -> None:
    with pytest.raises(StartFailed, match=r"program '.*' is not executable"):
        await start(spawner, str(tmp_path), cwd=str(tmp_path))


async def test_p5_quick_tasks_leave_no_descriptor_no_zombie_and_no_memory(spawner: GuardianSpawner) -> None:
    guardian = guardian_of(spawner)
    null = os.open("/dev/null", os.O_RDWR)
    launch = Launch(argv=("/bin/true",), env=ENV, stdout=null, stderr=null)

    async def several(count: int) -> None:
        for _ in range(count):
            status = await (await spawner.spawn(launch)).wait()
            assert status.exit_code == 0

    await several(1)
    before = descriptors(), descriptors(guardian)
    await asyncio.gather(*(several(250) for _ in range(8)))
    os.close(null)
    await until_async(lambda: (descriptors() + 1, descriptors(guardian)) == before)  # it may just look into /proc
    assert children(guardian) == []
    assert rss_anon_bytes(guardian) <= 10_000_000


async def test_256_live_tasks_fit_in_the_guardians_memory(spawner: GuardianSpawner) -> None:
    guardian = guardian_of(spawner)
    null = os.open("/dev/null", os.O_RDWR)
    environment = {**ENV, **{f"VARIABLE_{number}": "x" * 100 for number in range(100)}}
    launch = Launch(
        argv=("/bin/sleep", "1000"), env=environment, stdout=null, stderr=null, deadline=Deadline(boottime() + 1000)
    )
    before = descriptors(guardian)
    processes = await asyncio.gather(*(spawner.spawn(launch) for _ in range(256)))
    os.close(null)
    assert len(children(guardian)) == 256
    await until_async(lambda: descriptors(guardian) == before)  # it may just be looking into /proc
    assert rss_anon_bytes(guardian) <= 10_000_000
    for process in processes:
        process.kill()
    assert {(await process.wait()).signal for process in processes} == {signal.SIGKILL}


async def test_p5_a_slow_start_does_not_hold_up_the_others(spawner: GuardianSpawner) -> None:
    slow = asyncio.create_task(start(spawner, "sh", "-c", "kill -STOP $$"))
    status, _ = await (await start(spawner, "true")).finish()
    assert status.exit_code == 0
    (await slow).process.kill()
    await (await slow).finish()


async def test_a_guardian_that_cannot_start_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    before = descriptors()
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(ConfigurationError, match="could not be started"):
        await GuardianSpawner().__aenter__()
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    with pytest.raises(ConfigurationError, match="could not be started"):
        await GuardianSpawner().__aenter__()
    until(lambda: descriptors() == before, 5)


async def test_s11_a_forked_child_ends_nothing_of_its_parents(spawner: GuardianSpawner) -> None:
    """Whatever unwinds there: the socket, the handles and the guardian are its parent's."""
    program = await start(spawner, "sh", "-c", "echo up; sleep 0.3; echo done")
    assert await program.line() == "up"
    child = os.fork()
    if child == 0:
        program.process.kill()
        program.process.signal(signal.SIGKILL)
        spawner._lose("nothing comes any more")
        os._exit(0)
    os.waitpid(child, 0)
    status, output = await program.finish()
    assert (status.exit_code, output) == (0, "up\ndone\n")
    assert (await (await start(spawner, "true")).finish())[0].exit_code == 0


@pytest.mark.parametrize("value", ["seven", "-1", "file"])
def test_a_variable_of_ours_that_somebody_else_has_set_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    with (tmp_path / "file").open("w") as file:
        monkeypatch.setenv(guardian_spawner.FD_VARIABLE, str(file.fileno()) if value == "file" else value)
        with pytest.raises(ConfigurationError, match=r"JOBQ_GUARDIAN_FD .*no socket of a guardian: unset it"):
            guardian_spawner.inherited_connection()
