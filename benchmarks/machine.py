"""How busy others keep this machine: the share of its CPU that went to processes which are not the benchmark's."""

import os
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.measure import live_children, own_cpu, running_cpu

BUSY_SHARE = 0.1  # of all cores; beyond it rates are of little worth
LOOK_SECONDS = 0.5


@dataclass(frozen=True)
class Reading:
    """CPU seconds since the machine was started.

    Attributes:
        used: on all cores, by anybody.
        passed: on all cores, used or not.
        ours: of this process, of what it has reaped, and of what runs below it: servers of a benchmark too.
    """

    used: float
    passed: float
    ours: float


def parse(stat: str, ours: float, ticks: int = os.sysconf("SC_CLK_TCK")) -> Reading:
    """Return the reading that a text of /proc/stat is."""
    label, *fields = stat.splitlines()[0].split()
    assert label == "cpu", stat
    user, nice, system, idle, iowait, irq, softirq, steal = (int(field) / ticks for field in fields[:8])
    used = user + nice + system + irq + softirq + steal  # stolen: another machine's work on the same cores
    return Reading(used, used + idle + iowait, ours)


def read() -> Reading:
    return parse(Path("/proc/stat").read_text(), own_cpu() + running_cpu(*live_children()))


def share_of_others(before: Reading, after: Reading) -> float:
    """Return which share of all CPU between two readings others had."""
    others = (after.used - before.used) - (after.ours - before.ours)
    passed = after.passed - before.passed  # none between two ticks of the kernel's clock
    return max(0.0, others / passed) if passed else 0.0


def look() -> float:
    """Return the share of the others for a moment in which nothing is measured."""
    before = read()
    time.sleep(LOOK_SECONDS)
    return share_of_others(before, read())


def warning(share: float, when: str) -> str | None:
    """Return what is to be printed beside the figures, or None where the machine was quiet enough."""
    if share <= BUSY_SHARE:
        return None
    return f"WARNING: {when}, others used {share:.0%} of this machine's CPU: believe CPU a unit, and no rate"
