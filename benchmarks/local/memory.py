"""Resident memory of a guardian and its worker with 1 and with 256 tasks running, tasks not counted."""

import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.measure import Row
from benchmarks.sections import Options

SLOTS = (1, 256)
SECONDS = 60.0


def measure(folder: Path, options: Options) -> Iterator[Row]:
    """Yield the medians at each number of slots, and what one more slot costs."""
    rounds = range(options.rounds)
    found = {slots: [_resident(folder / f"{slots}-{number}", slots) for number in rounds] for slots in SLOTS}
    medians = {
        slots: (statistics.median(pair[0] for pair in pairs), statistics.median(pair[1] for pair in pairs))
        for slots, pairs in found.items()
    }
    for slots, own in medians.items():
        yield {"what": f"memory, {slots} slots", "guardian": {"MB": own[0]}, "worker": {"MB": own[1]}}
    few, many = SLOTS
    a_slot = (sum(medians[many]) - sum(medians[few])) / (many - few)
    yield {"what": "memory, one more slot", "guardian and worker": {"MB": a_slot}}


def _resident(folder: Path, slots: int) -> tuple[float, float]:
    """Return the resident megabytes of guardian and worker while all slots are taken."""
    folder.mkdir()
    environment = {**os.environ, "JOBQ_HOME": str(folder), "JOBQ_SCHEDULED_EVENTS": "off"}
    jobq = [sys.executable, "-m", "jobq", "bench"]
    tasks = "exec sleep 1000\n" * slots
    subprocess.run([*jobq, "push", "-"], env=environment, input=tasks, text=True, check=True, capture_output=True)
    # A group of its own: what is ended is what was started here.
    with subprocess.Popen(
        [*jobq, "worker", "-n", str(slots)], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as guardian:
        try:
            end = time.monotonic() + SECONDS
            while len(children := _children(guardian.pid)) < slots + 1:
                assert time.monotonic() < end, f"{len(children)} of {slots} tasks run after {SECONDS:g} s"
                time.sleep(0.05)
            time.sleep(1.0)  # for the last of the starts to be told
            worker = min(children)  # forked first
            return _resident_mb(guardian.pid), _resident_mb(worker)
        finally:
            guardian.send_signal(signal.SIGTERM)
            guardian.wait(SECONDS)


def _children(pid: int) -> list[int]:
    return [int(number) for number in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _resident_mb(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1000
    raise AssertionError("no VmRSS")
