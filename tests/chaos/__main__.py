"""Strike real workers on real stores: `python -m tests.chaos --help`."""

import argparse
import asyncio
import json
import secrets
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final, TextIO

from tests.chaos.blows import PARTITIONS
from tests.chaos.campaign import LONG, Campaign, Plan
from tests.chaos.record import Record, of_campaign, table
from tests.chaos.stores import STORES, why_not
from tests.chaos.trees import kill_trees
from tests.fork_server import forked

_ROOT: Final = Path(__file__).parents[2]
VIOLATED: Final = 1
VOID: Final = 3
_EPILOG: Final = """\
exit codes:
  0 all held; 1 a rule was violated; 2 wrong usage, or a store that cannot be had here; 3 void: too little was struck

examples:
  python -m tests.chaos                                   each store for half a minute
  python -m tests.chaos --store postgres --seconds 3600   one of them for an hour
  python -m tests.chaos --store sqlite --seed 7           with the blows and tasks of a run before
  python -m tests.chaos --only partitions --seconds 600   T5: margins from the dead tree to its lease's expiry
  python -m tests.chaos --only trees                      T6: hostile trees, killed in each of five ways
  python -m tests.chaos --store service --older HEAD~50   two versions of jobq on one queue
  python -m tests.chaos --json chaos.jsonl                append a record of each campaign, one line each
"""


def main(words: Sequence[str] | None = None) -> int:
    """Run what was asked for; return the exit code."""
    asked = _parser().parse_args(words)
    stores = [asked.store] if asked.store else list(STORES)
    if asked.only == "partitions":
        stores = [name for name in stores if STORES[name].has_network]
        if not stores:
            print(f"{asked.store} has no network to partition", file=sys.stderr)
            return 2
    forked.is_cold = True  # the real command line, from its start
    for store in stores:
        if reason := why_not(store):
            print(reason, file=sys.stderr)
            return 2
    records = []
    with _out(asked.json) as out:
        for record in _records(stores, asked):
            print(*table(record), sep="\n", flush=True)
            records.append(record)
            if out:
                print(json.dumps(record), file=out, flush=True)
    if any(record["violations"] for record in records):
        return VIOLATED
    return VOID if any(record["void"] for record in records) else 0


def _out(name: str | None) -> AbstractContextManager[TextIO | None]:
    """Return where records go: `-` is standard output."""
    return nullcontext(sys.stdout) if name == "-" else Path(name).open("a") if name else nullcontext()


def _records(stores: Sequence[str], asked: argparse.Namespace) -> Iterator[Record]:
    if asked.only != "trees":
        for store in stores:
            with _checkout(asked.older) as older:
                plan = Plan(asked.seconds, asked.seed, older=older)
                if asked.only == "partitions":
                    plan = replace(plan, mix=LONG, only=PARTITIONS)
                yield _run(store, partial(_campaign, store, plan))
    if asked.only == "trees" or not (asked.only or asked.store):
        yield _run("trees", kill_trees)


@contextmanager
def _checkout(commit: str | None) -> Iterator[Path | None]:
    """Another version of jobq from this repository's history, in a folder that is named for it."""
    if commit is None:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="jobq-older-") as place:
        archive = Path(place) / "archive.tar"
        subprocess.run(["git", "-C", _ROOT, "archive", "-o", archive, commit, "jobq", "backends"], check=True)
        with tarfile.open(archive) as tar:
            tar.extractall(Path(place) / commit, filter="data")
        yield Path(place) / commit


def _run(name: str, test: Callable[[Path, Callable[[str], None]], Coroutine[Any, Any, Record]]) -> Record:
    """Run a test in a folder of its own, which stays when a rule was violated, or the test itself failed."""
    folder = Path(tempfile.mkdtemp(prefix=f"jobq-chaos-{name}-"))
    progress = _progress(f"{name}: ")
    try:
        record = asyncio.run(test(folder, progress))
    except KeyboardInterrupt:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    finally:
        progress("")
    if record["violations"]:
        print(f"what it has left is in {folder}; again: {_again(record)}", file=sys.stderr)
    else:
        shutil.rmtree(folder, ignore_errors=True)
    return record


async def _campaign(name: str, plan: Plan, folder: Path, progress: Callable[[str], None]) -> Record:
    progress("starts")
    store = STORES[name](folder)
    try:
        await store.start()
        outcome = await Campaign(folder, store, plan, progress).run()
    finally:
        await store.stop()
    return of_campaign(STORES[name], plan, outcome)


def _again(record: Record) -> str:
    if record["test"] == "T6":
        return f"python -m tests.chaos --only trees  # at {record['commit']}"
    only = " --only partitions" if record["test"] == "T5" else ""
    only += f" --older {record['older']}" if record["older"] else ""
    words = f"--store {record['store']} --seconds {record['seconds']:g} --seed {record['seed']}{only}"
    return f"python -m tests.chaos {words}  # at {record['commit']}"


def _progress(prefix: str) -> Callable[[str], None]:
    """Keep one line up to date on a terminal; elsewhere say nothing."""
    if not sys.stderr.isatty():
        return lambda _: None
    return lambda text: print(f"\r\033[K{text and prefix + text}", end="", file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos",
        description="Real workers over real stores, and blows: kills, stops, partitions, restarts of the store. What\n"
        "the tasks wrote is then compared with what the store wrote (rules.md T4, T5, T6).",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--store", choices=list(STORES), help="which one; all, one after the other, without it")
    parser.add_argument("--seconds", type=_seconds, default=30.0, metavar="N", help="for how long blows fall; 30")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(10**6), metavar="N", help="random by default")
    parser.add_argument("--only", choices=["partitions", "trees"], help="partitions: T5; trees: T6")
    parser.add_argument(
        "--older", type=_commit, metavar="COMMIT", help="one of the workers is of this commit; no checkout is changed"
    )
    parser.add_argument(
        "--json", metavar="FILE", help="where to append a record of each campaign; - is standard output"
    )
    return parser


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 < seconds < 10**6:  # also not a number
        raise argparse.ArgumentTypeError("must be above 0")
    return seconds


def _commit(text: str) -> str:
    asked = ["git", "-C", str(_ROOT), "rev-parse", "--quiet", "--short=12", "--verify", f"{text}^{{commit}}"]
    found = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
    if not found:
        raise argparse.ArgumentTypeError(f"{text} is no commit of this clone")
    return found


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
