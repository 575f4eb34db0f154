"""docs/library.md and leases.md run as they stand: each example is a program, tried in a folder of its own."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

DOCS: Final = Path(__file__).parents[2] / "docs"
PAGES: Final = "".join((DOCS / page).read_text() for page in ("library.md", "leases.md"))
EXAMPLES: Final = re.findall(r"```python\n(.*?)```", PAGES, re.DOTALL)
PRINTED: Final = (
    ["succeeded=4, failed=0"],
    ["hello"],
    ["[0, 1, 4]"],
    ["attempt 1 of ", "fence 0.0.1", "Complete() 3"],
    ["10"],
    ["1 is retried later"],
    ["1 1"],
    ["failed failed; last: ValueError (exit code 1)", "ValueError: no 1", "are back with fresh budgets"],
    ["token 1"],
    ["handling 500", "done 2500"],
)


@pytest.mark.parametrize(("example", "printed"), list(zip(EXAMPLES, PRINTED, strict=True)))
def test_an_example_runs(example: str, printed: list[str], tmp_path: Path) -> None:
    program = tmp_path / "example.py"
    program.write_text(example)
    shown = subprocess.run(
        [sys.executable, "-W", "error", str(program)],
        env={"JOBQ_HOME": str(tmp_path), "HOME": str(tmp_path), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert shown.returncode == 0, shown.stderr
    assert shown.stderr == ""
    for text in printed:
        assert text in shown.stdout
