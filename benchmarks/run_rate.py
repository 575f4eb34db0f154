"""Commands per second of `jobq run -n 8`, beside `xargs -P 8` and, where it is installed, GNU parallel -j 8.

All read the same lines and run each with `sh -c` (jobq: bash where there is one, told to be plain sh here by a PATH
that has no bash), whole processes timed from start to exit, taking turns. Ours claims and settles each line durably and
supervises its process tree; xargs does neither. CPU time, of all processes, tells more where the machine is shared.
"""

import os
import resource
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

LINES = 5000
SLOTS = 8


def measure(folder: Path, rounds: int) -> list[dict[str, object]]:
    """Return our rate beside each of the others', medians and ratios."""
    commands = folder / "commands"
    commands.write_text("true\n" * LINES)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("JOBQ_")}
    environment |= {"PATH": str(_path_without_bash(folder)), "JOBQ_SCHEDULED_EVENTS": "off"}
    sides = {"jobq run": [sys.executable, "-m", "jobq", "run", "-n", str(SLOTS)]}
    for name, more in (
        ("xargs", ["-P", str(SLOTS), "-d", "\n", "-n", "1", "sh", "-c"]),
        ("parallel", ["-j", str(SLOTS), "sh", "-c", "{}"]),
    ):
        if program := shutil.which(name):
            sides[name] = [program, *more]
    rates: dict[str, list[float]] = {name: [] for name in sides}
    costs: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, argv in sides.items():
            seconds, cpu_seconds = _measured(argv, commands, environment)
            rates[name].append(LINES / seconds)
            costs[name].append(cpu_seconds / LINES * 1000)
    ours, *others = ((name, statistics.median(values)) for name, values in rates.items())
    return [
        {
            "what": f"run, {LINES} lines `true`, {SLOTS} slots, jobq beside {name}".ljust(42),
            "jobq": ours[1],
            "unit": f"/s   {name}",
            "other": rate,
            "rel": "/s   ratio",
            "ratio": ours[1] / rate,
            "cpu": "  CPU a line:",
            "our_cpu": statistics.median(costs["jobq run"]),
            "cpu_unit": "ms beside",
            "other_cpu": statistics.median(costs[name]),
            "u": "ms",
        }
        for name, rate in others
    ]


def _path_without_bash(folder: Path) -> Path:
    """Make a PATH that holds sh and nothing else."""
    place = folder / "bin"
    place.mkdir()
    found = shutil.which("sh")
    assert found is not None
    (place / "sh").symlink_to(found)
    return place


def _measured(argv: list[str], commands: Path, environment: dict[str, str]) -> tuple[float, float]:
    """Return wall and CPU seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with commands.open("rb") as lines:
        began = time.perf_counter()
        subprocess.run(
            argv, stdin=lines, env=environment, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        seconds = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
