"""`jobq QUEUE push --spec`, as docs/work-specifications.md shows it."""

import re
from pathlib import Path

import pytest

from tests.cli.conftest import Jobq

PAGE = (Path(__file__).parents[2] / "docs" / "work-specifications.md").read_text()


@pytest.fixture
def folds(jobq: Jobq) -> Path:
    (example,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (jobq.folder / "folds.py").write_text(example)
    return jobq.folder


@pytest.fixture(autouse=True)
def _folds(folds: Path) -> None:
    """Every test finds the module."""


def test_the_documented_example(jobq: Jobq) -> None:
    jobq("demo", "create")
    dry = jobq("demo", "push", "--spec", "folds:Folds", "--dry-run")
    assert len(dry.lines) == 50
    assert "python train.py --seed 3 --fold 4" in dry.lines
    assert "considered 50, skipped 0, would queue 50 on demo" in dry.err
    assert jobq.commands() == []
    assert "considered 50, skipped 0, queued 50 on demo" in jobq("demo", "push", "--spec", "folds:Folds").err
    assert sorted(map(str, jobq.commands())) == sorted(dry.lines)


def test_what_is_done_is_skipped_and_options_hold_for_commands(jobq: Jobq, folds: Path) -> None:
    (folds / "out").mkdir()
    (folds / "out" / "0-0.json").touch()
    (folds / "plain.py").write_text("def tasks():\n    yield 'echo hello'\n")
    assert "skipped 1, queued 49" in jobq("demo", "push", "--spec", "folds:Folds").err
    jobq("demo", "clear", "--yes")
    jobq("demo", "push", "--spec", "plain:tasks", "--timeout", "90s", "--num-retries", "7")
    (task,) = jobq.waiting()
    assert (task.timeout, task.budgets.retries) == (90, 7)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("folds", "write MODULE:NAME"),
        ("nowhere:Folds", "no module 'nowhere'"),
        ("folds:Nothing", "has no 'Nothing'"),
        ("folds:Path", "does not derive from jobq.WorkSpecification"),
        ("os:sep", "neither a jobq.WorkSpecification nor a function"),
    ],
)
def test_a_wrong_name_says_what_is_wrong(jobq: Jobq, name: str, says: str) -> None:
    assert says in jobq("demo", "push", "--spec", name, code=2).err


def test_a_specification_that_fails_tells_what_is_queued(jobq: Jobq) -> None:
    text = "def tasks():\n    yield 'echo 1'\n    raise ValueError('mine')\n"
    (jobq.folder / "broken.py").write_text(text)
    result = jobq("demo", "push", "--spec", "broken:tasks", code=1)
    assert "ValueError: mine" in result.err
    assert 'broken.py", line 3' in result.err
    assert result.err.count("File ") == 1
    assert "the specification failed; considered 1, skipped 0, queued 0 on demo" in result.err


def test_one_place_and_dry_run_need_each_other(jobq: Jobq) -> None:
    assert "one place" in jobq("demo", "push", "--spec", "folds:Folds", "-c", "true", code=2).err
    assert "--dry-run goes with --spec" in jobq("demo", "push", "-c", "true", "--dry-run", code=2).err
