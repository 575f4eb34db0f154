"""`python -m tests` ends with 0 where all passed, and with 5 where a tier has nothing of what was named."""

import subprocess
import sys
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]


@pytest.mark.check
@pytest.mark.parametrize(
    ("tier", "code", "last"), [("check", 0, "1 passed, 0 failed"), ("night", 5, "0 passed, 0 failed")]
)
def test_a_run_ends_as_its_tests_did(tier: str, code: int, last: str) -> None:
    command = [sys.executable, "-m", "tests", "--tier", tier, "tests/unit/test_summary.py"]
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    assert done.stdout.strip().splitlines()[-1].startswith(last)
