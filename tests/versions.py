"""Runs the quick part of the tests on each Python that this machine has: a part of `make night`.

Each Python has an environment of its own, .venv-3.N, as with `make test PYTHON=python3.N`. The exit code is 1 when the
tests failed on one of them. Any Python 3 can run this file.
"""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
MINORS = range(11, 16)
# No service has to be started for these; together they start, run, kill and settle on a real queue.
QUICK = (
    "tests/unit",
    "tests/sqlite",
    "tests/conformance/test_sqlite.py",
    "tests/conformance/test_memory.py",
    "tests/timing/test_lifetime.py",
    "tests/process/test_end_to_end.py",
    "tests/process/library/test_callback_processes.py",
    "tests/cli/test_main.py",
    "tests/cli/test_worker.py",
)


def main() -> int:
    """Run them all; print a line for each Python."""
    report, worst = [], 0
    for minor in MINORS:
        python = find(minor)
        if python is None:
            report.append(f"3.{minor:<10} not on this machine")
            continue
        version = subprocess.run([python, "-V"], capture_output=True, text=True, check=True).stdout.split()[1]
        print(f"\n== Python {version}", flush=True)
        began = time.monotonic()
        code = test(python, f".venv-3.{minor}")
        worst = max(worst, code)
        report.append(f"{version:<12} {'passed' if code == 0 else 'FAILED'} in {time.monotonic() - began:.0f} s")
    print("\n" + "\n".join(report))
    return worst


def find(minor: int) -> "str | None":
    """Return a Python 3.`minor` that runs: on PATH, or of pyenv, whose names on PATH run only where it is asked to."""
    name = f"python3.{minor}"
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    shims = [Path(entry).parent for entry in os.environ.get("PATH", "").split(os.pathsep) if entry.endswith("/shims")]
    roots = [root / "versions" for root in (pyenv, *shims)]
    candidates = [shutil.which(name), *(str(found) for root in roots for found in root.glob(f"3.{minor}.*/bin/{name}"))]
    for candidate in candidates:
        if candidate and subprocess.run([candidate, "-V"], capture_output=True, check=False).returncode == 0:
            return candidate
    return None


def test(python: str, environment: str) -> int:
    """Make the environment and run the tests in it; return 0 or 1."""
    made = subprocess.run(["make", "--no-print-directory", "install", f"PYTHON={python}"], cwd=ROOT, check=False)
    if made.returncode:
        return 1
    command = [f"{environment}/bin/python", "-m", "pytest", "-q", *QUICK]
    return int(subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, check=False).returncode != 0)


if __name__ == "__main__":
    sys.exit(main())
