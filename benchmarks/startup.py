"""How long commands take that do nothing, beside a Python that does nothing; sides take turns."""

import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

TURNS = 15
COMMANDS: dict[str, tuple[str, ...]] = {
    "--version": ("--version",),
    "--help": ("--help",),
    "push -c true": ("bench", "push", "-c", "true"),
    "size": ("bench", "size"),
}


def measure(folder: Path, rounds: int) -> list[dict[str, object]]:  # noqa: ARG001 - a start has turns enough of its own
    """Return the medians and their ratios to `python -c pass`."""
    environment = {**os.environ, "JOBQ_HOME": str(folder)}
    script = Path(sys.executable).with_name("jobq")
    sides = {"bare": (sys.executable, "-c", "pass")} | {
        name: (str(script), *arguments) for name, arguments in COMMANDS.items()
    }
    took: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(TURNS):
        for name, argv in sides.items():
            began = time.perf_counter()
            subprocess.run(argv, env=environment, check=True, capture_output=True)
            took[name].append((time.perf_counter() - began) * 1000)
    bare = statistics.median(took["bare"])
    return [
        {
            "what": f"start, jobq {name}".ljust(42),
            "jobq": statistics.median(took[name]),
            "unit": "ms   python -c pass",
            "bare": bare,
            "rel": "ms   ratio",
            "ratio": statistics.median(took[name]) / bare,
        }
        for name in COMMANDS
    ]
