"""`make demo` shows what it says, in order."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_worker_that_is_killed_is_dead_before_the_next_step() -> None:
    """The guardian's last words came in the middle of the next command."""
    ended = subprocess.run(
        [sys.executable, "-m", "benchmarks.demo"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=60,
    )
    shown = ended.stdout
    assert ended.returncode == 0, shown
    assert "ERROR" not in shown
    _, _, after = shown.partition("\n$ kill -9 ")
    said, next_step, _ = after.partition("\n\n$ jobq demo size\n")
    assert next_step, shown
    assert "jobq guardian: the watcher was killed" in said
    assert "jobq guardian: the watcher was killed: so are the worker and what it ran" in said
    assert "survived" in after
