"""Each folder of examples/ runs as its run.sh says, and comes to what it promises."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.docs.test_commands import ROOT

pytestmark = pytest.mark.check

# What the output must have: results, not decoration.
PROMISED: Final = {
    "sweep": r"12: 9 succeeded, 3 dead(?s:.*)diverged with lr(?s:.*)\nfits\.00,succeeded",
    "training": r"\ntraining\.0,succeeded,succeeded,0,,2,.*,0\.1216\n",
    "etl": r"orders of all pages: 50005000\n",
    "gpu": r"(?s)(?=.*had card 0 to itself)(?=.*had card 1 to itself).*\n +0 +0 +0 +0\n$",
    "nightly": r"^[abc] backs up, with token 1\n$",
}


def test_each_folder_is_listed_and_tried() -> None:
    folders = {path.parent.name for path in (ROOT / "examples").glob("*/run.sh")}
    listed = set(re.findall(r"^\| \[(\w+)\]\(\1\)", (ROOT / "examples/README.md").read_text(), re.MULTILINE))
    assert folders == listed == set(PROMISED)


@pytest.mark.parametrize("name", PROMISED)
def test_an_example_runs(tmp_path: Path, name: str) -> None:
    environment = os.environ | {
        "JOBQ_HOME": str(tmp_path),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    done = subprocess.run(
        [ROOT / "examples" / name / "run.sh"], env=environment, capture_output=True, text=True, check=False, timeout=90
    )
    assert done.returncode == 0, done.stderr
    assert re.search(PROMISED[name], done.stdout), done.stdout


def test_the_training_went_on_where_it_was(tmp_path: Path) -> None:
    test_an_example_runs(tmp_path, "training")
    with (tmp_path / "log").open() as log:
        assert "attempt 1 begins after epoch 0" in log.read()
