"""Runs the suite, most of it four files at a time: `python -m tests [PYTEST OPTIONS] [PATHS]`; all without a path.

Most tests wait for leases, processes and services: four at a time keep two cores busy. What measures margins of time,
and what must not be swept up by a neighbour's worker, then has the machine to itself. A summary of all runs ends it.
The exit code is the worst one.

Neighbours are this program's doing, not the tests': what fails beside them runs again by itself. One that passes there
each time is reported as flaky, which is a fault to mend, and fails no run; more than a few at once are no chance.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from tests import summary
from tests.azure import emulator
from tests.postgres import server

_HERE: Final = Path(__file__).parent
# Whole files, in the order of `tests.conftest`: what they share stays in one process. A process that dies ends the run:
# pytest-xdist would wait for ever for the files that it had left.
_BY_FILE: Final = ("--dist", "loadfile", "--no-loadscope-reorder", "--max-worker-restart=0")
# The first has leases of seconds, and many cases at once in a file; what the other kills, workers elsewhere would see.
_APART: Final = ("conformance", "guardian")
_ALONE: Final = ("containment", "timing", "overlap")
_BY_ITSELF: Final = 5  # times, of what failed beside others
_MOST_SUSPECTS: Final = 3
_FAILED: Final = 1  # of pytest, like the next two
_INTERRUPTED: Final = 2
_NOTHING_COLLECTED: Final = 5


def main(options: list[str]) -> int:
    """Run what may run side by side, and what is to run alone; return the exit code."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # ignored below `nohup`, and so by what tests start
    signal.signal(signal.SIGINT, signal.default_int_handler)  # likewise below a shell's `&`
    options, chosen = _split(options)
    began, processes = time.monotonic(), summary.processes_started()
    # Short, and not pytest's own: the path of a socket has 107 bytes, and what tests make is below it.
    place = Path(tempfile.mkdtemp(prefix="jobq-"))
    runs = (
        (["-n", "4", *_BY_FILE, *options], sorted(chosen.keys() - {*_APART, *_ALONE})),
        (["-n", "4", *_BY_FILE, *options], _APART),
        (options, _ALONE),
    )
    codes: list[int] = []
    flaky: list[str] = []
    with _services() as environment:
        for number, (own, folders) in enumerate(runs):
            if paths := [path for folder in folders for path in chosen.get(folder, ())]:
                codes.append(_run(own, paths, place / str(number), environment))
                if codes[-1] == _FAILED and "-n" in own:
                    suspects = summary.failed_in(place / f"{number}.xml")
                    if len(suspects) <= _MOST_SUSPECTS and _pass_by_themselves(suspects, place / "again", environment):
                        flaky += suspects
                        codes[-1] = 0
                if codes[-1] == _INTERRUPTED:
                    break
    print(*summary.lines(sorted(place.glob("*.xml")), began, processes, flaky), sep="\n", flush=True)
    if not set(codes) <= {0, _NOTHING_COLLECTED}:
        print(f"what the tests have left is in {place}", file=sys.stderr)
    else:
        shutil.rmtree(place, ignore_errors=True)
    if set(codes) == {_NOTHING_COLLECTED}:
        return _NOTHING_COLLECTED
    return max(abs(code) for code in codes if code != _NOTHING_COLLECTED)  # below 0: died by a signal


def _split(options: list[str]) -> tuple[list[str], dict[str, list[str]]]:
    """Return pytest's options, and what is to run by its folder: the paths among them, all folders without one."""
    chosen: dict[str, list[str]] = {}
    for option in list(options):
        path = Path(option.partition("::")[0]).resolve()
        if path.exists() and path.is_relative_to(_HERE) and path != _HERE:
            chosen.setdefault(path.relative_to(_HERE).parts[0], []).append(option)
            options = [other for other in options if other != option]
    every = (folder for folder in _HERE.iterdir() if any(folder.rglob("test_*.py")))
    return options, chosen or {folder.name: [str(folder)] for folder in every}


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


def _pass_by_themselves(suspects: Sequence[str], place: Path, environment: Mapping[str, str]) -> bool:
    place.mkdir(exist_ok=True)
    print(f"\nby themselves, {_BY_ITSELF} times:", *suspects, sep="\n  ", flush=True)
    return all(_run(["-q"], suspects, place / str(number), environment) == 0 for number in range(_BY_ITSELF))


def _run(options: list[str], paths: Sequence[str], place: Path, environment: Mapping[str, str]) -> int:
    own = ["-o", f"cache_dir=.pytest_cache/{place.name}", f"--basetemp={place}"]
    own += ["-o", "junit_family=xunit1", f"--junitxml={place}.xml"]
    command = [sys.executable, "-m", "pytest", *own, *options, *paths]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, env=environment) as pytest:
        while True:
            try:
                code = pytest.wait()
                break
            except KeyboardInterrupt:  # pytest has heard it, too: it ends, and says what it has found
                continue
    if not place.with_suffix(".xml").exists():
        print(f"{' '.join(paths)}: died with code {code}, without a report", flush=True)
        return code or 1
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
