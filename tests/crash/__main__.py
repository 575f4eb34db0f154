"""Crash the embedded store wherever it writes: `python -m tests.crash [--json] [--every N] [--bug NAME] [PART ...]`.

Parts are kills, power, migrations and migrations-power; all without one. With a planted bug the search ends at the
first point that finds it. The exit code is 1 when something was wrong, 3 where no child can be traced.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Final

from tests.crash import kills, power
from tests.crash.kills import Point
from tests.crash.planted import BUGS
from tests.crash.subjects import migrations, verbs
from tests.crash.tracer import missing
from tests.crash.workload import Opens

_MEMORY: Final = Path("/dev/shm")  # a sync costs nothing there; what was synced is known from the calls
PARTS: Final[dict[str, Callable[[Path, Sequence[Opens], int], Iterator[Point]]]] = {
    "kills": lambda folder, opens, every: kills.points(verbs(folder / "right", *opens), folder / "crash", every),
    "power": lambda folder, opens, every: power.points(verbs(folder / "right", *opens), folder / "crash", every),
    "migrations": lambda folder, _, every: chain.from_iterable(
        kills.points(each, folder / "crash", every) for each in migrations()
    ),
    "migrations-power": lambda folder, _, every: chain.from_iterable(
        power.points(each, folder / "crash", every) for each in migrations()
    ),
}


def main(words: list[str]) -> int:
    """Search; print a line for each part, and each fault."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash", description="Crash the store wherever it writes.")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="look at one point in N")
    parser.add_argument("--bug", choices=BUGS, help="plant a bug")
    parser.add_argument("part", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}")
    options = parser.parse_args(words)
    if unknown := set(options.part) - PARTS.keys():
        parser.error(f"there is no part {', '.join(sorted(unknown))}")
    if why := missing():
        print(json.dumps({"skipped": why}) if options.json else f"skipped: {why}")
        return 3
    codes = [
        _search(part, BUGS.get(options.bug, ()), options.every, as_json=options.json, to_first=bool(options.bug))
        for part in options.part or PARTS
    ]
    return max(codes)


def _search(part: str, opens: Sequence[Opens], every: int, *, as_json: bool, to_first: bool) -> int:
    began, count, wrong = time.perf_counter(), 0, 0
    with tempfile.TemporaryDirectory(prefix="jobq-crash-", dir=_MEMORY if _MEMORY.is_dir() else None) as folder:
        for point in PARTS[part](Path(folder), opens, every):
            count += 1
            if point.fault:
                wrong += 1
                line = json.dumps({"part": part, **point._asdict()}) if as_json else f"{point.place}: {point.fault}"
                print(line, flush=True)
                if to_first:
                    break
    seconds = time.perf_counter() - began
    figures = {"part": part, "points": count, "wrong": wrong, "seconds": round(seconds, 1)}
    told = f"{part}: {count} points, {wrong} wrong, {seconds:.1f} s ({count / seconds:.0f} a second)"
    print(json.dumps(figures) if as_json else told, flush=True)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
