"""A new user's first quarter of an hour, typed into a shell in a terminal: what the screen shows at each step."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from jobq.task import Task
from tests.cli.conftest import Jobq, eventually
from tests.cli.terminals import Terminal

pytestmark = pytest.mark.check

README: Final = Path(__file__).parents[2] / "README.md"
PROMPT: Final = "ready>"
CLEAR: Final = "\x0c"  # Ctrl-L
CTRL_C: Final = "\x03"


class Shell(Terminal):
    """An interactive bash, with jobq on its PATH."""

    def __init__(self, jobq: Jobq, *, columns: int, rows: int = 24, **env: str) -> None:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        environment = jobq.environment | {"PATH": path, "PS1": f"{PROMPT} ", "HISTFILE": ""} | env
        super().__init__(["bash", "--norc", "--noprofile", "-i"], environment, jobq.folder, columns=columns, rows=rows)
        self.until(lambda text: text.strip() == PROMPT)

    def enter(self, line: str) -> None:
        """Type a command line on an empty screen."""
        self.type(CLEAR)
        self.until(lambda text: text.strip() == PROMPT)
        self.type(f"{line}\n")
        self.until(lambda text: text.strip() != PROMPT)  # the terminal shows what was typed before the command runs

    def until_prompt(self) -> str:
        """Wait for the end of a command."""
        return self.until(lambda text: text.rstrip().endswith(f"\n{PROMPT}"), "prompt")

    def says(self, line: str, *words: str) -> None:
        """Enter a line, which must end and show these words, however the terminal folded them."""
        self.enter(line)
        self.until_prompt()
        for word in words:
            assert _folded(word) in _folded(self.text), (word, self.text)


def _folded(text: str) -> str:
    return "".join(text.split())


@pytest.fixture
def shells(jobq: Jobq) -> Iterator[Jobq]:
    (jobq.folder / "train.py").write_text(
        "import os, sys, time\n"
        "print('training', *sys.argv[1:], flush=True)\n"
        "while not os.path.exists('enough'): time.sleep(0.02)\n"
        "print('trained', *sys.argv[1:])\n"
    )
    (jobq.folder / "commands.txt").write_text("echo one\nuntil test -e go-on; do sleep 0.02; done; echo two\nexit 3\n")
    yield jobq
    (jobq.folder / "enough").touch()
    (jobq.folder / "go-on").touch()


@pytest.mark.parametrize("columns", [80, 40])
def test_first_steps(shells: Jobq, columns: int) -> None:
    push, worker = [line[2:] for line in README.read_text().splitlines() if line.startswith("$ ")][:2]
    with Shell(shells, columns=columns) as shell:
        shell.says(push, "created queue demo", "queued 2 tasks on demo")
        shell.says("jobq demo size", "visible leased scheduled dead 2 0 0 0")

        shell.enter(worker)
        shell.until(lambda text: _folded("| training --seed 1") in _folded(text) and "memory" in text)
        shell.until_shows("python tra" if columns == 40 else "python train.py --seed 1", "0 done, 0 failed", "queue: ")
        shell.type(CTRL_C)
        shell.until_prompt()
        assert "memory" not in shell.text
        assert _folded("was interrupted") in _folded(shell.text)
        shell.says("echo code $?", "code 130")
        shell.says("jobq demo size", "2 0 0 0")

        (shells.folder / "enough").touch()
        shell.says("jobq demo worker -n 2", "| trained --seed 1", "| trained --seed 2", "worker stopped (succeeded=2")
        shell.says("echo code $?", "code 0")


@pytest.mark.parametrize("columns", [80, 40])
def test_what_failed(shells: Jobq, columns: int) -> None:
    with Shell(shells, columns=columns) as shell:
        shell.says("jobq demo push --num-retries 0 -c 'echo why; exit 3'", "queued 1 task on demo")
        shell.says("jobq demo peek", "ID DELIVERIES RUNS", "0 echo why; exit 3")
        shell.says(
            "jobq demo worker", "| why", "failed (attempt 1, ", ": exit code 3", "1 given up, see `jobq demo dead list`"
        )
        shell.says("jobq demo dead list", "ID DIED DELIVERIES WHY RUNS", "failed; last: exit code 3 echo why; exit 3")
        shell.says("jobq demo redrive", "no such command 'redrive'; did you mean 'dead retry'?")
        shell.says("jobq demo dead retry --all", "retried 1 dead letter")
        shell.says("jobq demo size", "1 0 0 0")


def test_a_file_of_commands(shells: Jobq) -> None:
    with Shell(shells, columns=80) as shell:
        shell.enter("jobq run -n 2 commands.txt")
        shell.until_shows("memory", "until test -e go-on", "2 of 3, 1 failed", "\none")
        (shells.folder / "go-on").touch()
        shell.until_prompt()
        shell.until_shows("two", "failed: line 3 (exit code 3): exit 3", "2 done, 1 failed in")
        assert "memory" not in shell.text


def test_typos_and_completion(shells: Jobq) -> None:
    with Shell(shells, columns=80) as shell:
        shell.says("jobq demo wroker", "jobq: no such command 'wroker'; did you mean 'worker'?")
        shell.says("jobq demo worker --num-wrokers 2", "Did you mean '--num-workers'?")
        shell.says("JOBQ_NUM_WORKER=2 jobq config --changed", "JOBQ_NUM_WORKER is no variable of jobq; did you mean")
        shell.says('eval "$(jobq completion bash)"')
        shell.type(CLEAR)
        shell.until(lambda text: text.strip() == PROMPT)
        shell.type("jobq demo dead re\t")
        shell.until_shows("jobq demo dead retry")
        shell.type(CTRL_C)


def test_colours_and_none(shells: Jobq) -> None:
    with Shell(shells, columns=80) as shell:
        shell.says("jobq demo size", "does not exist")
        assert shell.colours() == {"red"}
    with Shell(shells, columns=80, NO_COLOR="1") as shell:
        shell.says("jobq demo size", "does not exist")
        shell.says("jobq demo push -c 'exit 3' --num-retries 0")
        shell.says("jobq demo worker", "was given up")
        assert shell.colours() == set()


def test_a_window_that_changes_its_size(shells: Jobq) -> None:
    with Shell(shells, columns=100, rows=30) as shell:
        shell.says("jobq demo push -c 'python train.py'")
        shell.enter("jobq demo worker")
        shell.until_shows("| training", "procs")
        shell.resize(40, 12)
        shell.until(lambda text: "slot     age  memory  command" in text and "procs" not in text)
        shell.resize(80, 24)
        shell.until_shows("procs")
        (shells.folder / "enough").touch()
        shell.until_prompt()
        assert "procs" not in shell.text
        assert "| trained" in shell.text


def test_a_closed_window(shells: Jobq) -> None:
    """The shell hangs up its jobs; the task goes back to the queue."""
    with Shell(shells, columns=80) as shell:
        shell.says("jobq demo push -c 'python train.py'")
        shell.enter("jobq demo worker")
        shell.until_shows("| training", "memory")
        shell.hang_up()
        eventually(lambda: shells("demo", "size", "--json").objects[0] == {
            "visible": 1, "leased": 0, "scheduled": 0, "dead": 0,
        })  # fmt: skip


def test_a_long_command_is_cut_on_a_terminal_alone(shells: Jobq) -> None:
    shells.kill_tasks(Task(id="dead-one", command=f"echo {'x' * 400}end; exit 3"))
    shells.fill(Task(id="long-one", command=f"echo {'x' * 400}end"))
    for command in ("peek", "dead list"):
        assert "xend" in shells("demo", *command.split()).out, "no pipe is cut"
        with Shell(shells, columns=80) as shell:
            shell.says(f"jobq demo {command}", "xxx...")
            assert "xend" not in shell.text
            shell.says(f"jobq demo {command} --full", "xend")
