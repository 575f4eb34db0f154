"""Runs the whole suite, most of it as processes side by side: `python -m tests [PYTEST OPTIONS]`.

Most tests wait for leases, processes and services, so two at a time take little more than half the time of one after
the other; a third would make time-outs of the services' own. Each group's output is printed when it is done. What
measures margins of time then has the machine to itself. The exit code is the worst one.
"""

import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

_HERE: Final = Path(__file__).parent
_AT_ONCE: Final = 2
# The longest first, so that no lane has one left when the others are done; those that share a service share a group.
_GROUPS: Final = (
    ("cli",),
    ("journal",),
    ("azure",),
    ("process",),
    ("sb", "service_bus"),
    ("postgres", "leases"),
    ("docs",),
    ("service",),
    ("telemetry", "deploy"),
)
_ALONE: Final = ("guardian", "overlap", "conformance")
_NOTHING_COLLECTED: Final = 5
_printing = threading.Lock()


def main(options: list[str]) -> int:
    """Run all groups, and what is to run alone; return the exit code."""
    folders = {folder.name for folder in _HERE.iterdir() if any(folder.glob("test_*.py"))}
    rest = tuple(sorted(folders.difference(_ALONE, *_GROUPS)))  # those to come included
    with ThreadPoolExecutor(_AT_ONCE) as lanes:
        codes = list(lanes.map(lambda group: _run(options, group), [*_GROUPS, rest]))
    codes.append(subprocess.run(_command(options, _ALONE), stdin=subprocess.DEVNULL, check=False).returncode)
    if set(codes) == {_NOTHING_COLLECTED}:
        return _NOTHING_COLLECTED
    return max(abs(code) for code in codes if code != _NOTHING_COLLECTED)  # below 0: died by a signal


def _run(options: list[str], group: Sequence[str]) -> int:
    began = time.monotonic()
    with tempfile.TemporaryFile() as output:
        command = _command(options, group)
        code = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, check=False
        ).returncode
        output.seek(0)
        with _printing:
            sys.stdout.buffer.write(output.read())
            print(f"{' '.join(group)}: {time.monotonic() - began:.0f} s", flush=True)
    return code


def _command(options: list[str], group: Sequence[str]) -> list[str]:
    places = [str(_HERE / folder) for folder in group]
    return [sys.executable, "-m", "pytest", "-o", f"cache_dir=.pytest_cache/{group[0]}", *options, *places]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
