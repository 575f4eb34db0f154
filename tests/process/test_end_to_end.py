"""The main job on real input: the real command line, more than a thousand real commands, a worker killed half-way."""

import hashlib
import json
import os
import shlex
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fork_server import forked

pytestmark = pytest.mark.check

LEAST = 1000
SLOTS = 4
LEASE_SECONDS = 10


def jobq(*arguments: str, home: Path) -> "subprocess.Popen[bytes]":
    environment = {name: value for name, value in os.environ.items() if not name.startswith("JOBQ_")}
    return forked.Popen[bytes](
        [sys.executable, "-m", "jobq", *arguments],
        env={**environment, "JOBQ_HOME": str(home)},
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def standard_library() -> list[Path]:
    """Return the files of the Python standard library, packages of others left out."""
    root = Path(sysconfig.get_path("stdlib"))
    files = (path for path in root.rglob("*") if path.is_file() and "site-packages" not in path.parts)
    chosen = sorted(files)[: LEAST + LEAST // 5]
    assert len(chosen) >= LEAST
    return chosen


def until(condition: Callable[[], bool], seconds: float) -> None:
    """Poll files that processes write, which tell nobody, up to a deadline."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


@pytest.mark.slow("real processes, and leases of seconds")
@pytest.mark.timeout(180)
def test_every_result_is_right_although_a_worker_is_killed_half_way(tmp_path: Path) -> None:
    """S1, L6: hash every file of the standard library; SIGKILL one of two workers; nothing is lost."""
    results, starts = tmp_path / "results", tmp_path / "starts"
    results.mkdir()
    files = standard_library()
    lines = []
    for number, path in enumerate(files):
        out = results / str(number)
        lines.append(
            f"echo {number} >> {shlex.quote(str(starts))}; "
            f"sha256sum < {shlex.quote(str(path))} > {out}.$$ && mv {out}.$$ {out}"
        )
    pusher = jobq("demo", "push", "-", home=tmp_path)
    pusher.communicate(("\n".join(lines) + "\n").encode())
    assert pusher.returncode == 0

    worker = ("demo", "worker", "-n", str(SLOTS), "--visibility-timeout", f"{LEASE_SECONDS}s", "--idle-timeout", "60s")
    victim, survivor = jobq(*worker, home=tmp_path), jobq(*worker, home=tmp_path)
    try:
        # The tasks of a killed worker finish as orphans or not at all; either way the queue decides.
        until(lambda: sum(1 for _ in results.iterdir()) >= len(files) // 2, 90)
        victim.send_signal(signal.SIGKILL)
        until(lambda: all((results / str(number)).exists() for number in range(len(files))), 90)
        until(lambda: _size(tmp_path) == "0 0 0 0", 2 * LEASE_SECONDS)
        survivor.send_signal(signal.SIGUSR1)
        assert survivor.wait(30) == 0
    finally:
        for process in (victim, survivor):
            process.kill()
            process.communicate()

    for number, path in enumerate(files):
        expected = hashlib.sha256(path.read_bytes()).hexdigest()
        assert (results / str(number)).read_text().split()[0] == expected, path
    started = [int(line) for line in starts.read_text().split()]
    assert set(started) == set(range(len(files)))
    assert len(started) <= len(files) + SLOTS, "only what the killed worker held may have started twice"


def _size(home: Path) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("JOBQ_")}
    shown = forked.run(
        [sys.executable, "-m", "jobq", "demo", "size", "--json"],
        env={**environment, "JOBQ_HOME": str(home)},
        capture_output=True,
        check=True,
        text=True,
    )
    size = json.loads(shown.stdout)
    return " ".join(str(size[name]) for name in ("visible", "leased", "scheduled", "dead"))
