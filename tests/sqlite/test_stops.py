"""S11: a process that is stopped by Ctrl-Z has not got the file's lock."""

import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from tests.sqlite.support import ask, backend, real_file


@contextmanager
def started(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Start it in a process group of its own, which is not orphaned: Ctrl-Z stops no other (setpgid(2))."""
    command = [sys.executable, "-m", "tests.sqlite.stopping", *arguments]
    with subprocess.Popen(command, process_group=0, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def stops(process: subprocess.Popen[str]) -> bool:
    """Wait until it has been stopped, or has ended."""
    found = os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
    return found is not None and found.si_code == os.CLD_STOPPED


@pytest.mark.parametrize("kind", ["direct", "thread"])
async def test_s11_a_ctrl_z_within_a_transaction_acts_after_its_end(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "jobs.db"
    async with backend(real_file(path)) as queue:
        await queue.create()
    with started(str(path), kind) as process:
        assert stops(process), "it is to stop all the same"
        with closing(sqlite3.connect(path, isolation_level=None, timeout=0)) as database:
            database.execute("BEGIN IMMEDIATE")
            database.execute("ROLLBACK")
        assert ask(path, "SELECT count(*) FROM queue") == [(3,)]
        process.send_signal(signal.SIGCONT)
        assert process.stdout is not None
        assert process.stdout.read().split() == ["written", "True"]
        assert process.wait() == 0


async def test_a_ctrl_z_stops_one_that_waits_for_the_lock(tmp_path: Path) -> None:
    """It holds nothing, so it stops at once, and gets the lock when it goes on."""
    path = tmp_path / "jobs.db"
    async with backend(real_file(path)) as queue:
        await queue.create()
    with closing(sqlite3.connect(path, isolation_level=None, timeout=0)) as database:
        database.execute("BEGIN IMMEDIATE")
        with started(str(path), "waiting") as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "waits\n"
            process.send_signal(signal.SIGTSTP)
            assert stops(process)
            database.execute("ROLLBACK")
            process.send_signal(signal.SIGCONT)
            assert process.stdout.read().split() == ["written", "True"]
            assert process.wait() == 0
