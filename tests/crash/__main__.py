"""Crash the embedded store wherever it writes: `python -m tests.crash [--json] [--every N] [--bug NAME] [PART ...]`.

Parts are kills and power. Without one both are searched, and then each planted bug for, in one point of ten. With
`--bug` the search ends at the first point that finds it. The exit code is 1 when something was wrong, or a planted bug
was not found; 3 where no child can be traced.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from tests.crash import kills, power
from tests.crash.kills import Point
from tests.crash.planted import BUGS, FOUND_BY
from tests.crash.subjects import verbs
from tests.crash.tracer import missing
from tests.crash.workload import Opens

SKIPPED: Final = 3
SPARSELY: Final = 10
_MEMORY: Final = Path("/dev/shm")  # a sync costs nothing there; what was synced is known from the calls
PARTS: Final[dict[str, Callable[[Path, Sequence[Opens], int], Iterator[Point]]]] = {
    "kills": lambda folder, opens, every: kills.points(verbs(folder / "right", *opens), folder / "crash", every),
    "power": lambda folder, opens, every: power.points(verbs(folder / "right", *opens), folder / "crash", every),
}


def main(words: list[str]) -> int:
    """Search; print a line for each part and each fault, or one JSON object at the end."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash", description="Crash the store wherever it writes.")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="look at one point in N")
    parser.add_argument("--bug", choices=BUGS, help="plant a bug")
    parser.add_argument("part", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}")
    options = parser.parse_args(words)
    if unknown := set(options.part) - PARTS.keys():
        parser.error(f"there is no part {', '.join(sorted(unknown))}")
    if why := missing():
        print(json.dumps({"skipped": why}) if options.json else f"skipped: {why}")
        return SKIPPED

    def say(line: str) -> None:
        if not options.json:
            print(line, flush=True)

    parts, faults = [], []
    for part in options.part or PARTS:
        figures, wrong = _searched(part, options.bug, options.every)
        parts.append(figures)
        faults += [point._asdict() for point in wrong]
        for point in wrong:
            say(f"{point.place}: {point.fault}")
        say(f"{part}: {figures['points']} points, {figures['wrong']} wrong, {figures['seconds']} s")
    bugs = []
    for bug, part in [] if options.part or options.bug else FOUND_BY:
        figures, wrong = _searched(part, bug, SPARSELY)
        bugs.append({"bug": bug, **figures, "found": bool(wrong)})
        say(f"{bug}: {'found' if wrong else 'NOT FOUND'} by {part} after {figures['points']} points")
    if options.json:
        total = {key: sum(each[key] for each in parts) for key in ("points", "wrong", "seconds")}
        print(json.dumps({**total, "parts": parts, "faults": faults, "planted_bugs": bugs}))
    return int(bool(faults) or not all(each["found"] for each in bugs))


def _searched(part: str, bug: str | None, every: int) -> tuple[dict[str, Any], list[Point]]:
    """Return the figures of a search and its faults; only the first of a planted bug."""
    began, count, wrong = time.perf_counter(), 0, []
    with tempfile.TemporaryDirectory(prefix="jobq-crash-", dir=_MEMORY if _MEMORY.is_dir() else None) as folder:
        for point in PARTS[part](Path(folder), BUGS[bug] if bug else (), every):
            count += 1
            if point.fault:
                wrong.append(point)
                if bug:
                    break
    seconds = round(time.perf_counter() - began, 1)
    return {"part": part, "points": count, "wrong": len(wrong), "seconds": seconds}, wrong


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
