"""Runs the whole suite, most of it three files at a time: `python -m tests [PYTEST OPTIONS]`.

Most tests wait for leases, processes and services: three at a time keep two cores busy, and no more. What measures
margins of time then has the machine to itself. A summary of all runs ends it. The exit code is the worst one.
"""

import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests import summary

_HERE: Final = Path(__file__).parent
# Whole files, in the order of `tests.conftest`: what they share stays in one process. A process that dies ends the run:
# pytest-xdist would wait for ever for the files that it had left.
_BY_FILE: Final = ("--dist", "loadfile", "--no-loadscope-reorder", "--max-worker-restart=0")
_CONFORMANCE: Final = ("conformance",)  # one backend beside another; each has many cases at once
_ALONE: Final = ("guardian", "containment", "overlap")
_INTERRUPTED: Final = 2
_NOTHING_COLLECTED: Final = 5


def main(options: list[str]) -> int:
    """Run what may run side by side, and what is to run alone; return the exit code."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # ignored below `nohup`, and so by what tests start
    signal.signal(signal.SIGINT, signal.default_int_handler)  # likewise below a shell's `&`
    folders = {folder.name for folder in _HERE.iterdir() if any(folder.glob("test_*.py"))}
    began, processes = time.monotonic(), summary.processes_started()
    # Short, and not pytest's own: the path of a socket has 107 bytes, and what tests make is below it.
    place = Path(tempfile.mkdtemp(prefix="jobq-"))
    runs = (
        (["-n", "3", *_BY_FILE, *options], sorted(folders.difference(_CONFORMANCE, _ALONE))),
        (["-n", "2", *_BY_FILE, *options], _CONFORMANCE),
        (options, _ALONE),
    )
    codes = []
    for number, (own, chosen) in enumerate(runs):
        codes.append(_run(own, chosen, place / str(number)))
        if codes[-1] == _INTERRUPTED:
            break
    print(*summary.lines(sorted(place.glob("*.xml")), began, processes), sep="\n", flush=True)
    if not set(codes) <= {0, _NOTHING_COLLECTED}:
        print(f"what the tests have left is in {place}", file=sys.stderr)
    else:
        shutil.rmtree(place, ignore_errors=True)
    if set(codes) == {_NOTHING_COLLECTED}:
        return _NOTHING_COLLECTED
    return max(abs(code) for code in codes if code != _NOTHING_COLLECTED)  # below 0: died by a signal


def _run(options: list[str], folders: Sequence[str], place: Path) -> int:
    own = ["-o", f"cache_dir=.pytest_cache/{folders[0]}", f"--basetemp={place}"]
    own += ["-o", "junit_family=xunit1", f"--junitxml={place}.xml"]
    command = [sys.executable, "-m", "pytest", *own, *options, *(str(_HERE / folder) for folder in folders)]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL) as pytest:
        while True:
            try:
                code = pytest.wait()
                break
            except KeyboardInterrupt:  # pytest has heard it, too: it ends, and says what it has found
                continue
    if not place.with_suffix(".xml").exists():
        print(f"{' '.join(folders)}: died with code {code}, without a report", flush=True)
        return code or 1
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
