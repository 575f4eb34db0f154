"""`jobq QUEUE push --spec`, as docs/work-specifications.md shows it."""

import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

from tests.cli.conftest import Jobq, eventually

PAGE = (Path(__file__).parents[3] / "docs" / "work-specifications.md").read_text()


@pytest.fixture
def folds(jobq: Jobq) -> Path:
    (example,) = re.findall(r"```python[^\n]*\n(.*?)```", PAGE, re.DOTALL)
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


def test_garbage_is_collected_while_it_runs(jobq: Jobq, folds: Path) -> None:
    """Only what a start imports is not looked at."""
    (folds / "collecting.py").write_text("import gc\n\ndef tasks():\n    yield str(gc.isenabled())\n")
    jobq("demo", "create")
    assert jobq("demo", "push", "--spec", "collecting:tasks", "--dry-run").lines == ["True"]


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("folds", "write MODULE:NAME"),
        ("nowhere:Folds", "no module 'nowhere'"),
        ("folds:Nothing", "has no 'Nothing'"),
        ("folds:Path", "does not derive from jobq.WorkSpecification"),
        ("./folds.py:Folds", "write folds:Folds"),
        ("here/folds:Folds", "write folds:Folds"),
        (".folds:Folds", "write folds:Folds"),
        ("folds.py:Folds", "write folds:Folds"),
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


@pytest.mark.parametrize(
    ("text", "says", "frames"),
    [
        ("def tasks(:\n", "SyntaxError: ", 1),
        ("import json\nimport no_such_thing\n", "ModuleNotFoundError: No module named 'no_such_thing'", 1),
        ("from json import no_such_thing\n", "ImportError: cannot import name 'no_such_thing'", 1),
        ("def f():\n    raise ValueError('mine')\nf()\n", "ValueError: mine", 2),
        ("import sys\nsys.exit(3)\n", "SystemExit: 3", 1),
    ],
)
def test_a_module_that_cannot_be_imported(jobq: Jobq, text: str, says: str, frames: int) -> None:
    (jobq.folder / "broken.py").write_text(text)
    said = jobq("demo", "push", "--spec", "broken:tasks", code=2).err
    assert f"jobq: --spec broken:tasks: cannot import broken: {says}" in said
    assert said.count("File ") == said.count('broken.py", line') == frames
    assert "bug" not in said


@pytest.mark.parametrize(
    "text",
    [
        "def tasks():\n    yield 'echo 1'\n    sys.exit(3)\n",
        "async def tasks():\n    yield 'echo 1'\n    sys.exit(3)\n",
        "class tasks(jobq.WorkSpecification):\n    def task_seeds(self):\n        sys.exit(3)\n",
        "class tasks(jobq.WorkSpecification):\n list_tasks = lambda *_: [':']\n already_done = lambda *_: sys.exit()\n",
        "class tasks(jobq.WorkSpecification):\n    def __init__(self):\n        sys.exit(3)\n",
    ],
)
def test_a_specification_that_exits_has_failed(jobq: Jobq, text: str) -> None:
    (jobq.folder / "leaving.py").write_text(f"import sys\nimport jobq\n{text}")
    said = jobq("demo", "push", "--spec", "leaving:tasks", code=1).err
    assert "the specification failed" in said
    assert said.count("File ") == said.count("leaving.py") == 1
    assert "bug" not in said


@pytest.mark.parametrize("arguments", [("--ids",), ("--json",), ("--dry-run",), ("--dry-run", "--json")])
def test_what_a_specification_prints_is_no_data(jobq: Jobq, arguments: tuple[str, ...]) -> None:
    (jobq.folder / "chatty.py").write_text(
        "import os\n"
        "print('imported')\n"
        "def tasks():\n"
        "    for number in range(3):\n"
        "        print('listing', number)\n"
        "        os.system('echo from a child')\n"
        "        yield f'echo {number}'\n"
    )
    jobq("demo", "create")
    result = jobq("demo", "push", "--spec", "chatty:tasks", *arguments)
    assert len(result.lines) == 3
    assert all("listing" not in line and "child" not in line and "imported" not in line for line in result.lines)
    assert {"imported", "listing 2", "from a child"} <= set(result.err.splitlines())
    if "--json" in arguments:
        assert all(found["id"] for found in result.objects)
    with (jobq.folder / "kept").open("wb") as file:  # buffered otherwise than a pipe
        jobq("demo", "push", "--spec", "chatty:tasks", *arguments, stdout=file.fileno())
    assert len((jobq.folder / "kept").read_text().splitlines()) == 3


@pytest.mark.parametrize("kind", ["listing", "checking"])
def test_one_interrupt_ends_it_though_a_thread_blocks(jobq: Jobq, kind: str) -> None:
    (jobq.folder / "slow.py").write_text(
        "import jobq, time\n"
        "def block():\n    open('blocked', 'w').close()\n    time.sleep(600)\n"
        "class listing(jobq.WorkSpecification):\n"
        "    def list_tasks(self, seed):\n        yield 'echo 1'\n        time.sleep(0.1)\n        yield 'echo 2'\n"
        "        block()\n        yield 'echo 3'\n"
        "class checking(jobq.WorkSpecification):\n"
        "    def list_tasks(self, seed):\n        return ['echo 1', 'echo 2', 'echo 3']\n"
        "    def already_done(self, task):\n        return block() if task.command == 'echo 3' else False\n"
    )
    process = jobq.start("demo", "push", "--spec", f"slow:{kind}", "--ids", stdin=subprocess.DEVNULL)
    assert process.stdout is not None
    ids = {process.stdout.readline().strip().decode() for _ in range(2)}
    eventually((jobq.folder / "blocked").exists)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert re.search(rb"jobq: interrupted; considered [23], skipped 0, queued 2 on demo\n", err)
    assert {task.id for task in jobq.waiting()} == ids


def test_a_reader_that_leaves_a_dry_run_is_no_fault_of_it(jobq: Jobq) -> None:
    end, descriptor = os.pipe()
    os.close(end)
    said = jobq("demo", "push", "--spec", "folds:Folds", "--dry-run", "--no-create", stdout=descriptor, code=None).err
    os.close(descriptor)
    assert "failed" not in said


def test_one_place_and_dry_run_need_each_other(jobq: Jobq) -> None:
    assert "one place" in jobq("demo", "push", "--spec", "folds:Folds", "-c", "true", code=2).err
    assert "--dry-run goes with --spec" in jobq("demo", "push", "-c", "true", "--dry-run", code=2).err
