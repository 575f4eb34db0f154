"""Search all models: `python -m tests.models [--json] [--quick] [PART OF A NAME ...]`.

The exit code is 1 when one is not as it must be.
"""

import argparse
import json
import sys
from dataclasses import asdict

from tests.models.cases import CASES
from tests.models.search import search


def main(words: list[str]) -> int:
    """Search; print a line for each, and the run that breaks a rule."""
    parser = argparse.ArgumentParser(prog="python -m tests.models", description="Search all states of small models.")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument("--quick", action="store_true", help="leave out what `make check` leaves out")
    parser.add_argument("part", nargs="*", help="of a name; all without one")
    options = parser.parse_args(words)
    chosen = [case for case in CASES if not options.part or any(part in case.name for part in options.part)]
    wrong = 0
    for case in chosen:
        if options.quick and case.is_long:
            continue
        found = search(case.model, case.most)
        fault = case.verdict(found)
        wrong += bool(fault)
        if options.json:
            print(json.dumps({"name": case.name, "breaks": case.breaks, **asdict(found), "fault": fault}), flush=True)
            continue
        came = found.broken or "holds"
        print(f"{case.name}: {found.states} states, {found.seconds:.1f} s, {came}", flush=True)
        for number, step in enumerate(found.run, 1):
            print(f"    {number}. {step}")
        if fault:
            print(f"    NOT AS IT MUST BE: {fault}", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
