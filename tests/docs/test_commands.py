"""Every command line that the documentation and `--help` show is run, on this machine, in a folder of its own.

Lines that cannot be run here are named below with the reason; so is whatever is changed about a line before it is run.
A new line in a page or in an example is run by itself: if it cannot be, this test asks for the reason.
"""

import contextlib
import os
import re
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import click
import pytest

from jobq.batch_plan import Plan
from jobq.batches import batches_of
from jobq.cli.common import ExampleCommand
from jobq.cli.main import cli
from jobq.signing.keys import KeyFile, SigningKey
from jobq.task import Task
from tests.cli.conftest import Jobq

pytestmark = pytest.mark.check

ROOT: Final = Path(__file__).parents[2]
PAGES: Final = sorted(
    {"README.md", "CONTRIBUTING.md", *(str(page.relative_to(ROOT)) for page in ROOT.glob("docs/*.md"))}
    - {"docs/batches.md"}  # tests/cli/test_batches_page.py runs it, with its programs
    - {"docs/from-parallel.md"}  # tests/cli/localrun/test_parallel_examples.py does
)
SOME_ID: Final = "01a1fe07-5953-7359-9cd5-f423114d42f8"  # the dead letter of the examples

# By how a line begins: why it is not run.
NOT_RUN: Final = {
    "make ": "installs, or is what runs this very test",
    "jobq demo fanout scans --blobs": "needs an account of Azure; tests/leases does the same on its emulator",
    ".venv/bin/python -m benchmarks": "measures; tests/unit/test_benchmarks.py tries what the sections share",
    "az login": "needs an account of Azure",
    "jobq myaccount/": "needs an account of Azure; tests/azure does the same on its emulator",
    "jobq sb://": "needs a namespace of Azure; tests/sb/test_command_line.py does the same on an emulator",
    "jobq postgresql://": "needs a database; tests/postgres/test_command_line.py does the same on a server of its own",
    "pip install 'jobq[postgres]'": "needs an index that has jobq; `make install` brings the same extra",
    "docker ": "needs a container engine; tests/deploy takes the image's steps without one",
    "kubectl ": "needs a cluster; tests/deploy builds and validates what is applied",
    "az deployment": "needs an account of Azure",
    "jobq healthcheck": "needs a worker; tests/telemetry has one",
    "pip install 'jobq[otel]'": "as above",
    "jobq checkpoint": "speaks to the worker of the task that runs it; tests/journal does it inside of one",
    "date | jobq checkpoint": "as above",
    "jobq progress": "as above",
    "jobq demo top": "follows a queue for ever on a terminal; tests/cli/display/test_top.py looks at it",
    "jobq demo batch wait": "waits for a worker; tests/cli/test_batch.py does it beside one",
    "watch ": "repeats its command for ever",
    "jobq demo push --wait": "waits for a worker; tests/journal does it beside one",
    "curl ": "needs a storage service that refuses stale fencing numbers",
    "jobq serve demo": "serves until it is interrupted; tests/service does the same",
    "jobq demo serve --port": "as above",
    "jobq ui ": "serves until it is interrupted; tests/dashboard/test_ui.py does the same",
    "jobq demo ui ": "as above",
    "pip install 'jobq[ui]'": "as of the other extras",
    "jobq serve postgresql://": "as above",
    "jobq http://": "needs a service; tests/service does the same with one of its own",
    "pip install 'jobq[server]'": "needs an index that has jobq; `make install` brings the same extra",
    'eval "$(jobq completion zsh)"': "needs zsh and its compinit; test_completion looks at the script",
}
# By the whole line: the exit code that is right here, and why.
OTHER_CODES: Final = {
    "jobq demo delete": (2, "it holds tasks; tests/cli/test_delete.py deletes an empty one"),
    "jobq demo clear": (2, "it asks, and nobody is there; test_look answers it on a terminal"),
}
# What is put in place of what, and why.
CHANGED: Final = {
    "sqlite:///data/": ("sqlite://{folder}/data/", "this test has no right to write in /data"),
    "--idle-timeout 10m": ("--idle-timeout 1s", "nobody wants to wait"),
    "jobq run --gpus 1": ("JOBQ_OFFER_GPUS=0 jobq run --gpus 1", "this machine has no card"),
}
# Lines that wait until a queue is empty: they get an empty one.
ON_EMPTY: Final = {"while jobq demo size --fail-if-empty; do sleep 10; done"}

FENCE: Final = re.compile(r"^ *```(console|sh|bash|shell)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
# A file that a page shows: `NAME` at the beginning of the sentence that ends before its text.
FILES: Final = re.compile(r"^`([a-z]+\.sh)` [^\n]*:\n\n```text\n(.*?)^```", re.MULTILINE | re.DOTALL)
PYTHON: Final = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
SHORT_ID: Final = re.compile(r"\b[0-9a-f]{8}\b")


class Line(NamedTuple):
    """A command line, and what the page shows of its output."""

    text: str
    output: list[str]


def lines_of(page: str) -> list[Line]:
    """Return the command lines of a page, in their order."""
    found: list[Line] = []
    for kind, block in FENCE.findall((ROOT / page).read_text()):
        for text in map(str.strip, block.splitlines()):
            if kind == "console" and not text.startswith("$ "):
                found[-1].output.append(text)
            elif text and not text.startswith("#"):
                found.append(Line(text.removeprefix("$ "), []))
    return found


def examples(command: click.Command = cli, *path: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the name of each command with its examples."""
    if isinstance(command, ExampleCommand):
        yield " ".join(("jobq", *path)), tuple(command._examples)
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from examples(found, *path, name)


EXAMPLES: Final = dict(examples())


class Reader:
    """Somebody who types what is shown, in a folder that has the files which it speaks of."""

    def __init__(self, folder: Path) -> None:
        self.jobq = Jobq(folder)
        self.folder = folder
        (folder / "tasks.txt").write_text("echo one\necho two\n")
        (folder / "commands.txt").write_text("echo one\necho two\n")
        (folder / "runs.csv").write_text("lr,depth\n0.1,1\n0.01,2\n")
        (folder / "train.py").write_text("import sys\nprint('trained', *sys.argv[1:])\n")
        (folder / "training.py").write_text(_python_of("docs/python-tasks.md"))
        (folder / "folds.py").write_text(_python_of("docs/work-specifications.md"))
        for page in PAGES:
            for name, text in FILES.findall((ROOT / page).read_text()):
                (folder / name).write_text(text)
        (folder / "backup.sh").write_text("#!/bin/sh\necho backed up\n")
        (folder / "backup.sh").chmod(0o755)
        (folder / "some.log").write_text("a line\n")
        (folder / "simulate").symlink_to("/bin/echo")
        (folder / "files.txt").write_text("tasks.txt\ncommands.txt\n")
        with contextlib.closing(sqlite3.connect(folder / "users.db")) as database:
            database.executescript("CREATE TABLE users (id INTEGER, name TEXT); INSERT INTO users VALUES (1, 'A. B.')")
        (folder / "numpy.py").touch()  # which tests do not install
        (folder / "mypackage").mkdir()
        (folder / "mypackage" / "training.py").write_text("def fold(n):\n    print('fold', n)\n")
        (folder / "data").mkdir()
        key = SigningKey(id="ed25519-56475aa75463474c", algorithm="ed25519", secret=bytes(range(32)))
        key.write_new(folder / "alice.key")
        (folder / "alice.public").write_text(key.trusted().model_dump_json())
        KeyFile(keys=(key.trusted(),)).write(folder / "trusted.json")
        (folder / "home" / ".config" / "fish" / "completions").mkdir(parents=True)
        self.environment = self.jobq.environment | {
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "HF_TOKEN": "a token",
            "JOBQ_TRUSTED_KEYS": str(folder / "trusted.json"),
        }

    def runs(self, line: Line) -> None:
        """Run it as bash would; it must end as it should, and show what the page shows."""
        if any(line.text.startswith(head) for head in NOT_RUN):
            return
        text = line.text
        for shown, (other, _) in CHANGED.items():
            text = text.replace(shown, other.format(folder=self.folder))
        done = subprocess.run(
            ["bash", "-c", text],
            env=self.environment,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=90,
        )
        code = OTHER_CODES.get(line.text, (0, ""))[0]
        assert done.returncode == code, (text, done)
        assert "Traceback" not in done.stderr, (text, done)
        said = {SHORT_ID.sub("ID", told.strip()) for told in (done.stdout + done.stderr).splitlines()}
        assert {SHORT_ID.sub("ID", told) for told in line.output} <= said, (text, said)

    def next_home(self, name: str, *, filled: bool) -> None:
        """Begin with other queues: a dead letter, and a task that waits."""
        self.jobq.home = self.folder / name
        self.environment["JOBQ_HOME"] = str(self.jobq.home)
        self.jobq.kill_tasks(Task.new(command="exit 1", id=SOME_ID))
        self.jobq.lease("nightly")
        self.jobq.token("0123456789ab")
        if filled:
            self.jobq.inside(lambda backend: batches_of(backend).begin("s7", Plan()))
            self.jobq.fill(Task.new(command="echo waited"))


def _python_of(page: str) -> str:
    return str(PYTHON.findall((ROOT / page).read_text())[0])


@pytest.fixture
def reader(tmp_path: Path) -> Reader:
    return Reader(tmp_path)


@pytest.mark.parametrize("page", [page for page in PAGES if lines_of(page)])
def test_what_a_page_shows_runs(reader: Reader, page: str) -> None:
    for line in lines_of(page):
        reader.runs(line)


@pytest.mark.parametrize("command", [name for name, shown in EXAMPLES.items() if shown])
def test_what_help_shows_runs(reader: Reader, command: str) -> None:
    for number, text in enumerate(EXAMPLES[command]):
        reader.next_home(f"queues {number}", filled=text not in ON_EMPTY)
        reader.runs(Line(text, []))


def test_every_command_has_an_example() -> None:
    assert [name for name, shown in EXAMPLES.items() if not shown] == []


def test_the_tables_speak_of_lines_that_are_there() -> None:
    shown = [line.text for page in PAGES for line in lines_of(page)]
    shown += [text for texts in EXAMPLES.values() for text in texts]
    for head in NOT_RUN:
        assert any(text.startswith(head) for text in shown), head
    for part in CHANGED:
        assert any(part in text for text in shown), part
    assert set(OTHER_CODES) | ON_EMPTY <= set(shown)
