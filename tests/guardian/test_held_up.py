"""S11: a worker that is stopped while it holds its queue's lock goes on, so that its neighbours keep their leases."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.guardian.stage import children, guardian, state, until

# Begins to write, and is stopped by whoever wants it to; says when it has committed.
_WRITER = """
import os, signal, sqlite3, sys
database = sqlite3.connect(sys.argv[1], isolation_level=None)
database.execute("PRAGMA journal_mode = WAL")
if sys.argv[2] == "locked":
    database.execute("BEGIN IMMEDIATE")
    database.execute("CREATE TABLE IF NOT EXISTS t (n)")
print("stops", flush=True)
os.kill(os.getpid(), signal.SIGSTOP)
if database.in_transaction:
    database.execute("COMMIT")
print("went on", flush=True)
"""


def test_s11_a_worker_that_is_stopped_with_the_lock_is_continued(tmp_path: Path) -> None:
    program = guardian(sys.executable, "-c", _WRITER, str(tmp_path / "jobs.db"), "locked", stderr=subprocess.PIPE)
    with program:
        assert program.line() == "stops"
        assert program.line() == "went on"
        assert program.wait() == 0
        assert program.popen.stderr is not None
        with program.popen.stderr as said:
            assert said.read().count(b"the worker was stopped while it held the lock") == 1


def test_a_worker_that_is_stopped_without_it_stays_so(tmp_path: Path) -> None:
    """It harms nobody: its tasks end with their leases."""
    with guardian(sys.executable, "-c", _WRITER, str(tmp_path / "jobs.db"), "free") as program:
        assert program.line() == "stops"
        (worker,) = children(program.pid)
        until(lambda: state(worker) == "T")
        time.sleep(1.6)  # three looks: the time itself is the subject
        assert state(worker) == "T"
        os.kill(worker, signal.SIGCONT)
        assert program.line() == "went on"
        assert program.wait() == 0
