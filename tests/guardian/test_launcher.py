"""The launcher (launcher.c): its speed alone tells it from a fork, and it is used only where it cannot hang (P1, P2).

`test_spawner.py` holds both to one table besides.
"""

import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hatch_build import NAME, refusal
from jobq.run.process.spawner import StartFailed
from jobq.run.spawn import launchers
from jobq.run.spawn.guardian_spawner import GuardianSpawner
from tests.guardian.spawning import guardian_of, start
from tests.guardian.stage import ENV, ROOT, Program, children, gone, hostile, living, marker, state, until

# What a program can learn of how it was started.
LOOKS = """
import ctypes, json, os, resource
status = dict(line.rstrip().split(":", 1) for line in open("/proc/self/status"))
subreaper, death = ctypes.c_int(), ctypes.c_int()
ctypes.CDLL(None).prctl(37, ctypes.byref(subreaper), 0, 0, 0)
ctypes.CDLL(None).prctl(2, ctypes.byref(death), 0, 0, 0)
print(json.dumps({
    # Those that glibc keeps for itself, 32 and 33, are as whoever started jobq left them; the launcher resets them.
    "signals": [int(status[name], 16) & ~(3 << 31) for name in ("SigBlk", "SigIgn", "SigCgt")],
    "descriptors": {name: os.readlink(f"/proc/self/fd/{name}").split(":")[0] for name in ("0", "1", "2")},
    "open": len(os.listdir("/proc/self/fd")),
    "leads": [os.getsid(0) == os.getpid(), os.getpgrp() == os.getpid()],
    "arms": [subreaper.value, death.value],
    "parent": os.getppid(),
    "user": [os.getresuid(), os.getresgid(), os.getgroups(), status["CapEff"], status["NoNewPrivs"]],
    "place": [os.getcwd(), status["Umask"], os.nice(0), open("/proc/self/oom_score_adj").read()],
    "limits": [resource.getrlimit(number) for number in range(16)],
    "environment": {name: value for name, value in os.environ.items() if name != "JOBQ_WORKER_ID"},
}))
"""


@pytest.fixture(scope="module")
def launcher(tmp_path_factory: pytest.TempPathFactory) -> str:
    """One that is built from its sources as they are now."""
    if shutil.which(os.environ.get("CC", "cc")) is None:
        pytest.skip("no C compiler on this machine: tasks are forked here")
    built = tmp_path_factory.mktemp("launcher") / "launcher"
    assert refusal(ROOT / f"{NAME}.c", built) == ""
    return str(built)


Way = Callable[[str], GuardianSpawner]


@pytest.fixture
def through(launcher: str, monkeypatch: pytest.MonkeyPatch) -> Way:
    """Makes a spawner that starts tasks through a launcher; empty = it forks."""

    def spawner(way: str) -> GuardianSpawner:
        path = {"launcher": launcher, "fork": ""}.get(way, way)
        monkeypatch.setattr(launchers, "guardian_options", lambda _: ["--launcher", path] if path else [])
        return GuardianSpawner()

    return spawner


async def test_a_program_sees_no_difference(through: Way, tmp_path: Path) -> None:
    seen: dict[str, dict[str, object]] = {}
    for way in ("launcher", "fork"):
        async with through(way) as spawner:
            env = {**ENV, "ODD": "ü \n=", "LD_PRELOAD": "", "EMPTY": ""}
            program = await start(spawner, sys.executable, "-I", "-S", "-c", LOOKS, env=env, cwd=str(tmp_path))
            _, output = await program.finish()
            seen[way] = json.loads(output)
            assert seen[way].pop("parent") == guardian_of(spawner)
    assert seen["launcher"]["arms"] == [1, signal.SIGKILL]
    assert seen["launcher"] == seen["fork"]


async def test_a_task_that_ignores_nothing_ends_by_each_signal(through: Way) -> None:
    """Also by those that Python and its C library ignore for themselves."""
    async with through("launcher") as spawner:
        for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGHUP, signal.SIGINT, signal.SIGTTOU, 32, 33, 34):
            status, _ = await (await start(spawner, "bash", "-c", f"kill -{number} $$; sleep 5")).finish()
            if number == signal.SIGTTOU:
                continue  # orphaned groups are not stopped
            assert status.signal == number


def _programs(folder: Path) -> list[tuple[tuple[str, ...], dict[str, str], str | None]]:
    """Arguments, environment and folder of starts that are alike where there is nothing to tell them apart."""
    (folder / "bin").mkdir()
    (folder / "text").write_text("no program\n")
    (folder / "text").chmod(0o755)
    (folder / "plain").write_text("#!/bin/sh\n")
    script = folder / "bin" / "script"
    script.write_text('#!/bin/sh\necho "$0" "$#" "$@"\n')
    script.chmod(0o755)
    (folder / "bin" / "closed").write_text("#!/bin/sh\necho found the one that may not run\n")
    (folder / "bin2").mkdir()
    (folder / "bin2" / "closed").write_text("#!/bin/sh\necho found the other\n")
    (folder / "bin2" / "closed").chmod(0o755)
    path = {"PATH": f"{folder}/bin/:{folder}/nowhere:{folder}/text:{folder}/bin2"}
    return [
        (("script", "", "a b", "'\"\\"), path, None),
        (("script",), path, str(folder / "bin2")),
        (("closed",), path, None),
        (("bin/script", "x"), path, str(folder)),
        (("./script",), {}, str(folder / "bin")),
        (("script",), {"PATH": ""}, str(folder / "bin")),
        (("script",), {"PATH": f":{folder}/nowhere"}, str(folder / "bin")),
        (("script",), {"PATH": f"{folder}/nowhere:"}, str(folder / "bin")),
        (("echo", "by the default path"), {}, None),
        (("echo", "the first"), {"NOPATH": "x", "PATH": "/bin"}, None),
        (("no-such-program",), path, None),
        (("plain",), {"PATH": str(folder)}, None),
        (("text",), {"PATH": str(folder)}, None),
        (("text/under",), {}, str(folder)),
        (("x" * 300,), path, None),
        (("x" * 5000,), path, None),
        (("y" * 200,), {"PATH": "/" + "z" * 4000}, None),
        ((".",), {}, str(folder)),
        ((str(folder),), {}, None),
        (("true", "\udcff\udc80"), path, None),
        (("printenv", "RAW"), {**ENV, "RAW": "\udcff"}, None),
        (("true",), {**ENV, "A": "b\0c"}, None),
        (("true", *["y" * 100_000] * 25), {}, None),
        (("true",), {}, str(folder / "nowhere")),
        (("true",), {}, str(folder / "text")),
        (("true",), {}, ""),
        (("true",), {}, "/" + "w" * 300),
    ]


async def test_starts_and_failures_are_the_same_words(through: Way, tmp_path: Path) -> None:
    said: dict[str, list[str]] = {}
    programs = _programs(tmp_path)
    for way in ("launcher", "fork"):
        said[way] = []
        async with through(way) as spawner:
            for argv, env, cwd in programs:
                try:
                    status, output = await (await start(spawner, *argv, env=env or {"NONE": "1"}, cwd=cwd)).finish()
                    said[way].append(f"{status.exit_code} {output}")
                except StartFailed as error:
                    said[way].append(f"{error} {error.transient}")
    assert [(*each, *what) for each, *what in zip(programs, said["launcher"], said["fork"], strict=True)] == [
        (*each, what, what) for each, what in zip(programs, said["fork"], strict=True)
    ]


async def test_where_it_cannot_be_executed_tasks_are_forked(through: Way, launcher: str, tmp_path: Path) -> None:
    """Replaced by a program of another machine, without its right, or gone in the middle of a run."""
    gone_soon = tmp_path / "launcher"
    for spoil in (gone_soon.unlink, lambda: gone_soon.chmod(0o644), lambda: gone_soon.write_bytes(b"\x7fELFno")):
        shutil.copy(launcher, gone_soon)
        async with through(str(gone_soon)) as spawner:
            assert (await (await start(spawner, "true")).finish())[0].exit_code == 0
            spoil()
            for _ in range(2):
                status, output = await (await start(spawner, "echo", "forked")).finish()
                assert (status.exit_code, output) == (0, "forked\n")


def _spawns(count: int, mark: str) -> str:
    """A worker that starts as many tasks at once below its guardian, having said so."""
    return (
        "import asyncio, os\n"
        "from jobq.run.spawn.guardian_spawner import *\n"
        "from jobq.run.process.spawner import Launch\n"
        "async def main():\n"
        "    async with GuardianSpawner(inherited_connection()) as spawner:\n"
        f"        launch = Launch(argv={hostile('idle', mark)!r}, env=dict(os.environ), stdout=2, stderr=2, cwd='/')\n"
        "        os.write(1, b'asking\\n')\n"
        f"        await asyncio.gather(*(spawner.spawn(launch) for _ in range({count})))\n"
        "asyncio.run(main())\n"
    )


def _guarded(launcher: str, code: str) -> Program:
    command = [sys.executable, "-P", "-m", "jobq.run.guardian", "--launcher", launcher, "--restart", "0"]
    return Program(*command, "--", sys.executable, "-c", code)


def test_p2_who_was_not_armed_yet_when_the_guardian_died_executes_nothing(launcher: str, tmp_path: Path) -> None:
    """Stopped in front of the launcher, which then finds itself with another parent."""
    slow, mark = tmp_path / "slow", marker()
    slow.write_text(f'#!/bin/sh\nkill -STOP $$\nexec {launcher} "$@"\n')
    slow.chmod(0o755)
    with _guarded(str(slow), _spawns(1, mark)) as program:
        assert program.line() == "asking"
        until(lambda: any(state(pid) == "T" for pid in children(program.pid)))
        child = next(pid for pid in children(program.pid) if state(pid) == "T")
        pidfd = os.pidfd_open(child)
        program.signal(signal.SIGKILL)
        program.wait()
        signal.pidfd_send_signal(pidfd, signal.SIGCONT)
        assert select.select([pidfd], [], [], 5)[0]
        os.close(pidfd)
    assert living(mark) == []


def test_p2_nothing_is_alive_unarmed_after_a_storm_of_starts(launcher: str) -> None:
    mark = marker()
    for _ in range(3):
        with _guarded(launcher, _spawns(500, mark)) as program:
            assert program.line() == "asking"
            until(lambda: len(living(mark)) > 3)
            program.signal(signal.SIGKILL)
            program.wait()
            assert gone([mark]) == {}


def test_without_arguments_it_does_nothing(launcher: str) -> None:
    for arguments in ([], ["1"], ["1", ""]):
        assert subprocess.run([launcher, *arguments], check=False).returncode == 127


def test_a_task_named_for_another_parent_is_not_executed(launcher: str) -> None:
    done = subprocess.run([launcher, "1", "", "echo", "ran"], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (127, "")


def test_what_is_in_use_and_why(launcher: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def why(path: str) -> launchers.StartInUse:
        return launchers.try_here("auto", is_guarded=True, path=path)

    assert why(launcher) == ("launcher", launcher)
    assert launchers.find("off", launcher) == ("fork", "JOBQ_LAUNCHER=off")
    assert launchers.try_here("auto", is_guarded=False, path=launcher).kind == "fork"
    assert "without the launcher" in why(str(tmp_path / "none"))[1]
    foreign = tmp_path / "foreign"
    foreign.write_bytes(b"\x7fELF of another machine")
    assert "may not be executed" in why(str(foreign))[1]
    foreign.chmod(0o755)
    assert "Exec format error" in why(str(foreign))[1]
    foreign.write_text("#!/bin/sh\nexit 3\n")
    assert "ends with 3" in why(str(foreign))[1]
    monkeypatch.setattr(launchers, "_LOCAL", frozenset())
    assert "may hang" in why(launcher)[1]


def test_this_installation_has_one_where_it_can_be_built(launcher: str) -> None:
    """`make install` builds it; what lies there is what its sources give."""
    assert Path(launchers.PATH).read_bytes() == Path(launcher).read_bytes()


def test_it_needs_no_library(launcher: str) -> None:
    """Else LD_PRELOAD and LD_LIBRARY_PATH of a task would reach it before it is armed."""
    header = Path(launcher).read_bytes()
    assert ctypes.sizeof(ctypes.c_void_p) == 8
    offset, size, count = (
        int.from_bytes(header[at : at + length], sys.byteorder) for at, length in ((32, 8), (54, 2), (56, 2))
    )
    kinds = [int.from_bytes(header[at : at + 4], sys.byteorder) for at in range(offset, offset + size * count, size)]
    assert 3 not in kinds  # PT_INTERP, elf(5)
