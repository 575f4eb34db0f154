"""`make bench`: jobq beside the bare thing it stands on, in one run; medians of several rounds, ratios above all.

python -m benchmarks.bench [sqlite] [claim] [spawn] [call] [memory] [start] [worker] [run] [journal] [telemetry]
    [--rounds N] [--json]
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks import (
    bare_sqlite,
    call_cost,
    claim_depth,
    journal,
    memory,
    run_rate,
    spawn_rate,
    startup,
    telemetry,
    worker_rate,
)

SECTIONS: dict[str, Callable[[Path, int], list[dict[str, object]]]] = {
    "sqlite": bare_sqlite.measure,
    "claim": claim_depth.measure,
    "spawn": spawn_rate.measure,
    "call": call_cost.measure,
    "memory": memory.measure,
    "start": startup.measure,
    "worker": worker_rate.measure,
    "run": run_rate.measure,
    "journal": journal.measure,
    "telemetry": telemetry.measure,
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure jobq against the bare thing it stands on.")
    parser.add_argument("sections", nargs="*", help="all when none is named")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each measurement; the median counts")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    arguments = parser.parse_args()
    began = time.monotonic()
    for name in arguments.sections or SECTIONS:
        with tempfile.TemporaryDirectory(prefix="jobq-bench-") as folder:
            for row in SECTIONS[name](Path(folder), arguments.rounds):
                print(json.dumps(row) if arguments.json else show(row), flush=True)
    print(f"took {time.monotonic() - began:.0f} s", file=sys.stderr)


def show(row: dict[str, object]) -> str:
    return "  ".join(f"{value:,.3g}" if isinstance(value, float) else str(value) for value in row.values())


if __name__ == "__main__":
    main()
