"""Runs seeds from the command line; `make lab SEED=17` replays one."""

import argparse
import json
import os
import sys
import time
from typing import Any

from tests.simulation.campaign import SHARES, BrokenRun, Totals, run_many, run_one
from tests.simulation.shrink import shrink
from tests.simulation.stores import STORES

_HELP = """\
examples:
  python -m tests.simulation --seeds 2000 --floors     the share of CI: fails where it saw too little, too
  python -m tests.simulation --seconds 28800           what eight hours find
  python -m tests.simulation --replay 17 --trace       one run, a line a change, with its digest
  python -m tests.simulation --shrink 17               which blows a failing run needs

The exit code is 1 when a rule was broken, and 3 when a share was void.
"""


def main(words: list[str]) -> int:
    """Run what the command line asks for; return the exit code."""
    parser = _parser()
    arguments = parser.parse_args(words)
    if arguments.floors and arguments.store not in SHARES:
        parser.error(f"--floors: {arguments.store} has none")
    if arguments.shrink is not None:
        return _shrink(arguments.shrink, arguments)
    if arguments.replay is not None:
        return _replay(arguments.replay, arguments)
    return _many(arguments)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.simulation",
        description="Run the real worker on virtual time under faults that a seed decides, and check every rule.",
        epilog=_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--first", type=int, default=1, metavar="SEED", help="the first seed (default: 1)")
    parser.add_argument("--seeds", type=int, metavar="N", help="how many (default: 100, or as many as --seconds allow)")
    parser.add_argument("--seconds", type=float, metavar="N", help="begin no more runs after this")
    parser.add_argument("--processes", type=int, metavar="N", help="at once (default: one a processor)")
    parser.add_argument("--store", choices=sorted(STORES), default="memory", help="the backend (default: memory)")
    parser.add_argument("--floors", action="store_true", help="a run that saw less than CI's share must is void")
    parser.add_argument("--stop", action="store_true", help="begin no more runs once a rule was broken")
    parser.add_argument("--json", action="store_true", help="print figures as JSON")
    parser.add_argument("--replay", type=int, metavar="SEED", help="run one seed")
    parser.add_argument("--trace", action="store_true", help="with --replay: print what happened")
    parser.add_argument("--shrink", type=int, metavar="SEED", help="find the blows that a failing seed needs")
    return parser


def _many(arguments: argparse.Namespace) -> int:
    count = arguments.seeds or (10**9 if arguments.seconds else 100)
    end = time.monotonic() + (arguments.seconds or float("inf"))
    printed: list[BrokenRun] = []
    is_terminal = sys.stderr.isatty()

    def progress(totals: Totals) -> None:
        for failure in totals.failures[len(printed) :]:
            printed.append(failure)
            print(f"seed {failure.seed}: {failure.rule}: {failure.text}", file=sys.stderr, flush=True)
        if is_terminal:
            line = f"{totals.seeds} seeds, {len(printed)} failed, {totals.seconds:.0f} s"
            print(f"\r{line:60}", end="", file=sys.stderr, flush=True)

    totals = run_many(
        range(arguments.first, arguments.first + count),
        STORES[arguments.store],
        processes=arguments.processes,
        stop_at=lambda seen: time.monotonic() > end or (arguments.stop and bool(seen.failures)),
        on_progress=progress,
    )
    if is_terminal:
        print(file=sys.stderr)
    missed = SHARES[arguments.store].missed(totals) if arguments.floors else []
    if arguments.json:
        print(json.dumps({**totals.figures(), "void": missed}, sort_keys=True))
    else:
        _print(totals, missed)
    for failure in totals.failures:
        store = "" if arguments.store == "memory" else f" STORE={arguments.store}"
        print(f"replay it: make lab SEED={failure.seed}{store} TRACE=1", file=sys.stderr)
    return 1 if totals.failures else 3 if missed else 0


def _print(totals: Totals, missed: list[str]) -> None:
    rate = totals.steps / max(totals.seconds, 1e-9)
    print(
        f"{totals.seeds:,} seeds, {len(totals.failures)} failed; {totals.steps:,} steps, {totals.checks:,} checks,"
        f" {totals.leases:,} leases of {totals.lease_hours:,.0f} hours; {totals.seconds:.0f} s, {rate:,.0f} steps/s"
    )
    for kind, times in sorted(totals.faults.items()):
        print(f"{times:>10,}  {kind}")
    for reason in missed:
        print(f"void: {reason}")


def _replay(seed: int, arguments: argparse.Namespace) -> int:
    world = run_one(seed, STORES[arguments.store], keeps_trace=arguments.trace)
    for line in world.monitor.lines:
        print(line)
    print(f"seed {seed}: digest {world.monitor.digest}, {world.loop.steps} steps, {world.blows} blows")
    for violation in world.monitor.violations:
        print(violation)
    return int(bool(world.monitor.violations))


def _shrink(seed: int, arguments: argparse.Namespace) -> int:
    store = STORES[arguments.store]
    whole = run_one(seed, store)
    if not whole.monitor.violations:
        print(f"seed {seed} breaks nothing")
        return 0

    def without(skip: frozenset[int]) -> Any:
        broken = run_one(seed, store, skip=skip).monitor.violations
        return broken[0] if broken else None

    found = shrink(whole.blows, whole.monitor.violations[0], without)
    world = run_one(seed, store, skip=found.skip, keeps_trace=True)
    for line in world.monitor.lines:
        print(line)
    print(f"seed {seed}: needs the blows {list(found.kept)} of {whole.blows}; {found.violation}")
    return 1


if __name__ == "__main__":
    CODE = main(sys.argv[1:])
    sys.stdout.flush()
    os._exit(CODE)  # see `run_one`
