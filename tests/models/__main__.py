"""Search all models: `python -m tests.models [--json] [--quick] [PART OF A NAME ...]`.

The exit code is 1 when one is not as it must be.
"""

import argparse
import json
import sys
from typing import Any

from tests.models.cases import CASES
from tests.models.search import Found, search


def main(words: list[str]) -> int:
    """Search; print a line for each and the run that breaks a rule, or one JSON object at the end."""
    parser = argparse.ArgumentParser(prog="python -m tests.models", description="Search all states of small models.")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument("--quick", action="store_true", help="leave out what `make check` leaves out")
    parser.add_argument("part", nargs="*", help="of a name; all without one")
    options = parser.parse_args(words)
    chosen = [
        case
        for case in CASES
        if (not options.part or any(part in case.name for part in options.part))
        and not (options.quick and case.is_long)
    ]
    searches: list[dict[str, Any]] = []
    examples, wrong = [], []
    for case in chosen:
        found = search(case.model, case.most)
        came = found.broken or "holds"
        searches.append({"model": case.name, "states": found.states, "seconds": round(found.seconds, 2), "came": came})
        if found.run:
            examples.append({"model": case.name, "steps": len(found.run), "run": "; ".join(map(_step, found.run))})
        if fault := case.verdict(found):
            wrong.append({"model": case.name, "fault": fault})
        if not options.json:
            _show(case.name, found, fault)
    if options.json:
        total = {"states": sum(each["states"] for each in searches), "wrong": len(wrong)}
        print(json.dumps({**total, "searches": searches, "counter_examples": examples, "faults": wrong}))
    return int(bool(wrong))


def _show(name: str, found: Found, fault: str) -> None:
    print(f"{name}: {found.states} states, {found.seconds:.1f} s, {found.broken or 'holds'}")
    for number, step in enumerate(found.run, 1):
        print(f"    {number}. {step}")
    if fault:
        print(f"    NOT AS IT MUST BE: {fault}")
    sys.stdout.flush()


def _step(told: str) -> str:
    return told.partition("  [")[0]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
