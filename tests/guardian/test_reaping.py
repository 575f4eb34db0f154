"""Which processes the guardian kills, and in which order (P2, P3, P4)."""

import subprocess
import sys

import pytest

from tests.guardian.reaping_cases import CASES


@pytest.mark.parametrize("case", CASES)
def test_what_tasks_leave_is_killed_whole(case: str) -> None:
    command = [sys.executable, "-m", "tests.guardian.reaping_cases", case]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
