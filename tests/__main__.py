"""Runs the suite: `python -m tests [--tier test|check|night] [--record] [PYTEST OPTIONS] [PATHS]`.

A tier is a mark. What has none is `test`; `check` adds what is marked `check`; `night` is what is marked `night`, and
nothing else. Without a tier it is `check`. Files are packed into batches by the seconds that they took (`seconds.json`,
which `--record` writes anew) and each batch is a process of pytest of its own, four at a time: most tests wait for
leases, processes and services, so four keep two cores busy, and no process collects more than it runs. What measures
margins of time then has the machine to itself. A test that fails is not run again: the run has failed.
"""

import argparse
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Final

from tests import seconds, summary
from tests.azure import emulator
from tests.postgres import server

_HERE: Final = Path(__file__).parent
_ROOT: Final = _HERE.parent
_SIDE_BY_SIDE: Final = 4
# Runs that follow each other. The second has leases of seconds and many cases at once in a file, and what it kills,
# workers elsewhere would see; the third measures margins of time.
_APART: Final = ("conformance", "guardian")
_ALONE: Final = ("containment", "timing", "chaos")
# A batch ends soon enough for the last one to leave no process idle for long, and is worth the start of pytest.
_BATCH_SECONDS: Final = 40.0
_UNKNOWN_SECONDS: Final = 2.0  # of a file that no run has recorded
_NOTHING_COLLECTED: Final = 5  # of pytest


def main(words: list[str]) -> int:
    """Run the batches of all three runs; return the exit code."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # ignored below `nohup`, and so by what tests start
    signal.signal(signal.SIGINT, signal.default_int_handler)  # likewise below a shell's `&`
    parser = argparse.ArgumentParser(prog="python -m tests", allow_abbrev=False)
    parser.add_argument("--tier", choices=seconds.TIERS, default="check")
    parser.add_argument("--record", action="store_true", help="write what each file took into tests/seconds.json")
    asked, rest = parser.parse_known_args(words)
    options, files = _split(rest)
    options = [f"--tier={asked.tier}", *options]
    took = seconds.read(asked.tier)
    began, processes = time.monotonic(), summary.processes_started()
    # Short, and not pytest's own: the path of a socket has 107 bytes, and what tests make is below it.
    place = Path(tempfile.mkdtemp(prefix="jobq-"))
    codes: list[int] = []
    with _services() as environment:
        for run, (own, at_once) in enumerate(_runs(files)):
            batches = _batches(own, took) if at_once > 1 else [own] * bool(own)
            codes += _run_all(batches, options, place / str(run), environment, at_once)
            if any(code < 0 for code in codes):  # interrupted
                break
    reports = sorted(place.glob("*/*.xml"))  # below are the folders of tests, with what they write
    print(*summary.lines(reports, began, processes), sep="\n", flush=True)
    has_run = summary.has_run(reports)
    bad = [abs(code) for code in codes if code not in {0, _NOTHING_COLLECTED}]
    if asked.record and not bad:
        seconds.write(asked.tier, reports)
    if bad:
        print(f"what the tests have left is in {place}", file=sys.stderr)
    else:
        shutil.rmtree(place, ignore_errors=True)
    return max(bad, default=0 if has_run else _NOTHING_COLLECTED)


def _split(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return pytest's options, and what is to run: files, or tests by their ids; all files where none is named."""
    options, named = [], []
    for word in words:
        path = Path(word.partition("::")[0]).resolve()
        if not (path.exists() and path.is_relative_to(_HERE)):
            options.append(word)
        elif path.is_dir():
            named += [str(file.relative_to(_ROOT)) for file in sorted(path.rglob("test_*.py"))]
        else:
            named.append(word)
    return options, named or [str(file.relative_to(_ROOT)) for file in sorted(_HERE.rglob("test_*.py"))]


def _runs(files: Iterable[str]) -> Iterator[tuple[list[str], int]]:
    """Yield what runs together, and in how many processes."""
    rest: list[str] = []
    apart: list[str] = []
    alone: list[str] = []
    for file in files:
        folder = Path(file.partition("::")[0]).resolve().relative_to(_HERE).parts[0]
        (apart if folder in _APART else alone if folder in _ALONE else rest).append(file)
    yield rest, _SIDE_BY_SIDE
    yield apart, _SIDE_BY_SIDE // 2
    yield alone, 1


def _batches(files: Sequence[str], took: Mapping[str, float]) -> list[list[str]]:
    """Pack neighbours, which share fixtures, until a batch takes long enough; the longest batch comes first."""
    batches: list[tuple[float, list[str]]] = []
    for file in files:
        expected = took.get(file.partition("::")[0], _UNKNOWN_SECONDS)
        if batches and batches[-1][0] + expected <= _BATCH_SECONDS:
            batches[-1] = (batches[-1][0] + expected, [*batches[-1][1], file])
        else:
            batches.append((expected, [file]))
    return [own for _, own in sorted(batches, key=lambda batch: -batch[0])]


@contextlib.contextmanager
def _services() -> Iterator[dict[str, str]]:
    """One PostgreSQL and one Azurite for all runs and their processes: each takes seconds of CPU to start."""
    with contextlib.ExitStack() as stack:
        environment = dict(os.environ)
        environment.pop("PYTHONDONTWRITEBYTECODE", None)  # each process would compile the tests anew, for seconds
        database = stack.enter_context(server.session())
        environment[server.VARIABLE] = database.named("postgres").url
        if emulator.is_installed():  # else each test says what is missing
            environment[emulator.VARIABLE] = stack.enter_context(emulator.session()).given
        yield environment


def _run_all(
    batches: Sequence[list[str]], options: Sequence[str], place: Path, environment: Mapping[str, str], at_once: int
) -> list[int]:
    """Run batches, some at once; print what each came to as it ends, and all that a failed one said."""
    place.mkdir()
    codes: list[int] = []
    is_whole = bool({"-v", "-vv", "-s"} & set(options))
    with ThreadPoolExecutor(at_once) as pool:
        runs = {
            pool.submit(_run, files, options, place / str(number), environment): files
            for number, files in enumerate(batches)
        }
        try:
            for done, run in enumerate(as_completed(runs), 1):
                code, said = run.result()
                codes.append(code)
                if is_whole or code not in {0, _NOTHING_COLLECTED}:
                    print(said, flush=True)
                if code != _NOTHING_COLLECTED:
                    last = said.strip().rpartition("\n")[2].strip("= ")
                    print(f"{done:3}/{len(batches)}  {_name(runs[run])}: {last}", flush=True)
        except KeyboardInterrupt:  # each pytest has heard it, too: it ends, and says what it has found
            pool.shutdown(cancel_futures=True)
            codes.append(-signal.SIGINT)
    return codes


def _run(files: Sequence[str], options: Sequence[str], place: Path, environment: Mapping[str, str]) -> tuple[int, str]:
    """Run one batch; return pytest's exit code and all that it printed."""
    own = ["-q", "-o", f"cache_dir=.pytest_cache/{place.parent.name}-{place.name}", f"--basetemp={place}"]
    own += ["-o", "junit_family=xunit1", f"--junitxml={place}.xml"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *own, *options, *files],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=environment,
        check=False,
    )
    said = done.stdout.decode(errors="replace")
    if not place.with_suffix(".xml").exists():
        return abs(done.returncode) or 1, f"{said}\n{' '.join(files)}: ended with {done.returncode}, without a report\n"
    return done.returncode, said


def _name(files: Sequence[str]) -> str:
    """Return what a line has room for."""
    names = [Path(file).relative_to("tests").as_posix() if Path(file).parts[0] == "tests" else file for file in files]
    return names[0] if len(names) == 1 else f"{names[0]} to {names[-1]} ({len(names)} files)"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
