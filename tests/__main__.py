"""Runs the whole suite, most of it as two processes side by side: `python -m tests [PYTEST OPTIONS]`.

Most tests wait for leases, processes and services, so two of them take little more than half the time of one after the
other. The first prints as it goes, the second when both are done. What measures margins of time then has the machine to
itself. The exit code is the worst one.
"""

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

_HERE: Final = Path(__file__).parent
# What needs services and the command line; all other folders, those to come included, are the other half.
_SECOND: Final = ("azure", "cli", "conformance", "docs")
_ALONE: Final = ("guardian", "overlap")
_NOTHING_COLLECTED: Final = 5


def main(options: list[str]) -> int:
    """Run both halves, and what is to run alone; return the exit code."""
    others = (folder.name for folder in _HERE.iterdir() if any(folder.glob("test_*.py")))
    first = sorted(set(others) - {*_SECOND, *_ALONE})
    codes = _side_by_side(_command("first", options, first), _command("second", options, _SECOND))
    codes.append(_run(_command("alone", options, _ALONE)))
    if set(codes) == {_NOTHING_COLLECTED}:
        return _NOTHING_COLLECTED
    return max(code for code in codes if code != _NOTHING_COLLECTED)


def _side_by_side(first: list[str], second: list[str]) -> list[int]:
    with tempfile.TemporaryFile() as output:
        beside = subprocess.Popen(second, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
        try:
            return [_run(first), beside.wait()]
        finally:
            if beside.poll() is None:
                beside.terminate()
                beside.wait()
            output.seek(0)
            sys.stdout.flush()
            sys.stdout.buffer.write(output.read())
            sys.stdout.flush()


def _run(command: list[str]) -> int:
    return subprocess.run(command, stdin=subprocess.DEVNULL, check=False).returncode


def _command(name: str, options: list[str], folders: Sequence[str]) -> list[str]:
    places = [str(_HERE / folder) for folder in folders]
    return [sys.executable, "-m", "pytest", "-o", f"cache_dir=.pytest_cache/{name}", *options, *places]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
