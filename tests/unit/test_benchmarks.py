"""What holds for the scripts in `benchmarks/`, which no other test runs."""

import sys
from pathlib import Path

_FOLDER = Path(__file__).parents[2] / "benchmarks"


def test_no_script_hides_a_module_of_python() -> None:
    # The peers' scripts run from this folder, so it comes first where they import: `http` there ended them all.
    assert {path.stem for path in _FOLDER.glob("*.py")} & sys.stdlib_module_names == set()
