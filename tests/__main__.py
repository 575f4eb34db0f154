"""Runs the whole suite as two processes side by side: `python -m tests [PYTEST OPTIONS]`.

Most tests wait for leases, processes and services, so two of them take little more than half the time of one after the
other. The first prints as it goes, the second when both are done; the exit code is the worse one.
"""

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

_HERE: Final = Path(__file__).parent
# What needs services and the command line; all other folders, those to come included, are the other half.
_SECOND: Final = ("azure", "cli", "conformance", "docs")
_NOTHING_COLLECTED: Final = 5


def main(options: list[str]) -> int:
    """Run both halves; return the exit code."""
    second = [str(_HERE / name) for name in _SECOND]
    others = (folder for folder in _HERE.iterdir() if any(folder.glob("test_*.py")))
    first = sorted(str(folder) for folder in others if folder.name not in _SECOND)
    with tempfile.TemporaryFile() as output:
        beside = subprocess.Popen(
            _command("second", options, second), stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
        )
        try:
            code = subprocess.run(_command("first", options, first), stdin=subprocess.DEVNULL, check=False).returncode
            codes = [code, beside.wait()]
        finally:
            if beside.poll() is None:
                beside.terminate()
                beside.wait()
            output.seek(0)
            sys.stdout.flush()
            sys.stdout.buffer.write(output.read())
            sys.stdout.flush()
    if set(codes) == {_NOTHING_COLLECTED}:
        return _NOTHING_COLLECTED
    return max(code for code in codes if code != _NOTHING_COLLECTED)


def _command(name: str, options: list[str], folders: list[str]) -> list[str]:
    return [sys.executable, "-m", "pytest", "-o", f"cache_dir=.pytest_cache/{name}", *options, *folders]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
