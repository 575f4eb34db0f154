"""Whole commands as a side of a comparison, and programs that print what they have measured themselves."""

import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

import psutil

from benchmarks.measure import Meter
from jobq.run.process import kernel

_LIMIT_SECONDS = 900.0
_ORPHANS_SECONDS = 10.0  # for what a command leaves behind to end by itself


def whole(
    argv: Sequence[str], env: Mapping[str, str], cwd: Path | None = None, stdin: IO[bytes] | None = None
) -> Meter:
    """Return what a command takes from its start to its end, with the CPU of all that it starts.

    The CPU of a process that its parent does not wait for is lost to its parent: that of ai4s-jobq's workers, below a
    server that outlives the command. Such orphans fall to this process, which waits for them after the clock.
    """
    kernel.become_subreaper()
    others = set(psutil.Process().children())
    with Meter() as meter:
        with Meter() as clock:
            _run(argv, env, cwd, stdin or subprocess.DEVNULL, subprocess.DEVNULL)
        while orphans := set(psutil.Process().children()) - others:
            for orphan in psutil.wait_procs(orphans, _ORPHANS_SECONDS)[1]:
                orphan.kill()
    meter.seconds = clock.seconds
    return meter


def output(argv: Sequence[str], env: Mapping[str, str], cwd: Path | None = None) -> str:
    return _run(argv, env, cwd, subprocess.DEVNULL, subprocess.PIPE)


def _run(argv: Sequence[str], env: Mapping[str, str], cwd: Path | None, stdin: IO[bytes] | int, stdout: int) -> str:
    # A file, not a pipe: what the command leaves behind may hold it open.
    with tempfile.TemporaryFile("w+") as errors:
        done = subprocess.run(
            argv,
            env=env,
            cwd=cwd,
            stdin=stdin,
            stdout=stdout,
            stderr=errors,
            text=True,
            timeout=_LIMIT_SECONDS,
            check=False,
        )
        if done.returncode:
            errors.seek(0)
            raise RuntimeError(f"{argv[0]} ended with {done.returncode}:\n{errors.read()[-2000:]}")
    return done.stdout or ""
