"""What each page of the documentation shows is done as it stands there, and each folder of examples/ runs."""

import re
from pathlib import Path
from typing import Final

import pytest

from tests.docs.runner import (
    FRAGMENTS,
    PAGES,
    PLAIN,
    PRINTED,
    ROOT,
    Line,
    Reader,
    blocks_of,
    is_program,
    shows_what_runs,
)

pytestmark = pytest.mark.check

# What is in a file when a page was read.
LEFT: Final = {"docs/batches.md": {"s7.csv": r"(?:.*\n){41}", "whole": "1\n2\n"}}
# What the output of an example must have: results, not decoration.
PROMISED: Final = {
    "sweep": r"12: 9 succeeded, 3 dead(?s:.*)diverged with lr(?s:.*)\nfits\.00,succeeded",
    "training": r"\ntraining\.0,succeeded,succeeded,0,,2,.*,0\.1216\n",
    "etl": r"orders of all pages: 50005000\n",
    "gpu": r"(?s)(?=.*had card 0 to itself)(?=.*had card 1 to itself).*\n +0 +0 +0 +0\n$",
    "nightly": r"^[abc] backs up, with token 1\n$",
}


@pytest.mark.slow("runs each command that is shown, each a process")
@pytest.mark.parametrize("page", [page for page in PAGES if shows_what_runs(page)])
def test_what_a_page_shows_runs(tmp_path: Path, page: str) -> None:
    Reader(tmp_path).reads(page)
    for name, pattern in LEFT.get(page, {}).items():
        assert re.fullmatch(pattern, (tmp_path / name).read_text())


@pytest.mark.slow("runs each command that is shown, each a process")
@pytest.mark.parametrize("name", PROMISED)
def test_an_example_runs(tmp_path: Path, name: str) -> None:
    reader = Reader(tmp_path)
    reader.environment["JOBQ_HOME"] = str(tmp_path)  # without a space, which the words of etl's tasks would have
    printed = reader.runs(Line(str(ROOT / "examples" / name / "run.sh"), []))
    assert re.search(PROMISED[name], printed), printed
    if name == "training":  # it went on where it was
        assert "attempt 1 begins after epoch 0" in (tmp_path / "log").read_text()


def test_each_folder_of_examples_is_listed_and_tried() -> None:
    folders = {path.parent.name for path in (ROOT / "examples").glob("*/run.sh")}
    listed = set(re.findall(r"^\| \[(\w+)\]\(\1\)", (ROOT / "examples/README.md").read_text(), re.MULTILINE))
    assert folders == listed == set(PROMISED)


def test_each_program_has_a_row_of_what_it_prints() -> None:
    programs = {page: sum(map(is_program, blocks_of(page))) for page in PAGES if page not in FRAGMENTS}
    assert {page: number for page, number in programs.items() if number} == {
        page: len(printed) for page, printed in PRINTED.items()
    }
    assert all(any(map(is_program, blocks_of(page))) for page in FRAGMENTS)


def test_a_line_that_bash_would_change_is_left_to_bash() -> None:
    """`Reader.runs` splits only what bash takes as it stands."""
    for text in ("jobq a $HOME", "jobq a > b", "jobq a; b", "jobq *.log", 'jobq "$A"', "jobq {a,b}", "jobq -c a\\ b"):
        assert PLAIN.fullmatch(text) is None
