"""Does what the documentation shows, on this machine, in a folder of its own: its command lines, files and programs.

What cannot be run here is named below with the reason; so is whatever is changed about a line before it is run.
A new line in a page or in an example is run by itself: if it cannot be, its test asks for the reason.
"""

import contextlib
import os
import re
import shlex
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from jobq.signing.keys import KeyFile, SigningKey
from tests.cli.conftest import Jobq
from tests.fork_server import forked

ROOT: Final = Path(__file__).parents[2]
PAGES: Final = sorted(
    {"README.md", "CONTRIBUTING.md", *(str(page.relative_to(ROOT)) for page in ROOT.glob("docs/*.md"))}
    - {"docs/from-parallel.md"}  # test_from_parallel.py runs its pairs
)

# By how a line begins: why it is not run.
NOT_RUN: Final = {
    "make ": "installs, or is what runs this very test",
    "jobq demo fanout scans --blobs": "needs an account of Azure; tests/leases does the same on its emulator",
    ".venv/bin/python -m pytest": "as above",
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
# By the whole line: the exit codes that are right here, one after the other, and why.
OTHER_CODES: Final = {
    "jobq demo delete": ([2], "it holds tasks; tests/cli/test_delete.py deletes an empty one"),
    "jobq demo clear": ([2], "it asks, and nobody is there; test_look answers it on a terminal"),
    "jobq demo batch wait s7": ([1, 0], "the page has some fail the first time"),
}
# What is put in place of what, and why.
CHANGED: Final = {
    "sqlite:///data/": ("sqlite://{folder}/data/", "this test has no right to write in /data"),
    "--idle-timeout 10m": ("--idle-timeout 1s", "nobody wants to wait"),
    "jobq run --gpus 1": ("JOBQ_OFFER_GPUS=0 jobq run --gpus 1", "this machine has no card"),
    "seed=1..5000": ("seed=1..20", "nobody wants to wait"),
}
# What each program of a page must print; a page that shows a new one needs a row of it.
PRINTED: Final[dict[str, list[tuple[str, ...]]]] = {
    "README.md": [("visible=4", "succeeded=4")],
    "docs/batches.md": [("param.lr\n", "seconds\n"), ("[1.5, 3.5]",)],
    "docs/guarantees.md": [(), ()],
    "docs/leases.md": [("token 1",), ("handling 500", "done 2500")],
    "docs/library.md": [
        ("succeeded=4, failed=0",),
        ("hello",),
        ("[0, 1, 4]",),
        ("attempt 1 of ", "fence 0.0.1", "Complete() 3"),
        ("10",),
        ("1 is retried later",),
        ("1 1",),
        ("failed failed; last: ValueError (exit code 1)", "ValueError: no 1", "are back with fresh budgets"),
    ],
}
# Pages whose programs are parts of one.
FRAGMENTS: Final = {"docs/backends.md": "test_backends.py takes the whole through the conformance suite"}

FENCE: Final = re.compile(r"^ *```(\w+)(?: (\S+))?\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
SHELLS: Final = {"console", "sh"}
# What bash takes as it stands: words without its signs, and quoted ones; then perhaps a comment.
PLAIN: Final = re.compile(r"jobq((?: +(?:[\w./:=@%+,-]|\{\w*\}|'[^']*')+)*)(?: +#.*)?")
SHORT_ID: Final = re.compile(r"\b[0-9a-f]{8}\b")


class Block(NamedTuple):
    """A fenced block of a page; `name` is that of the file it shows, or empty."""

    kind: str
    name: str
    text: str


class Line(NamedTuple):
    """A command line, and what the page shows of its output."""

    text: str
    output: list[str]


def blocks_of(page: str) -> list[Block]:
    """Return the fenced blocks of a page, in their order."""
    return [Block(*found) for found in FENCE.findall((ROOT / page).read_text())]


def lines_of(block: Block) -> list[Line]:
    """Return the command lines of a block: none unless it is for a shell, or if it shows a file."""
    found: list[Line] = []
    if block.kind not in SHELLS or block.name:
        return found
    for text in map(str.strip, block.text.splitlines()):
        if block.kind == "console" and not text.startswith("$ "):
            found[-1].output.append(text)
        elif text and not text.startswith("#"):
            found.append(Line(text.removeprefix("$ "), []))
    return found


def is_program(block: Block) -> bool:
    """Return whether a block is a program of Python that stands for itself."""
    return block.kind == "python" and not block.name


def shows_what_runs(page: str) -> bool:
    return any(lines_of(block) or (is_program(block) and page not in FRAGMENTS) for block in blocks_of(page))


class Reader:
    """Somebody who types what is shown, in a folder that has the files which pages speak of.

    Args:
        folder: an empty one.
    """

    def __init__(self, folder: Path) -> None:
        self.jobq = Jobq(folder)
        self.folder = folder
        for block in (block for page in PAGES for block in blocks_of(page)):
            if block.name:
                (folder / block.name).write_text(block.text)
        (folder / "tasks.txt").write_text("echo one\necho two\n")
        (folder / "commands.txt").write_text("echo one\necho two\n")
        (folder / "runs.csv").write_text("lr,depth\n0.1,1\n0.01,2\n")
        (folder / "train.py").write_text("import sys\nprint('trained', *sys.argv[1:])\n")
        (folder / "backup.sh").write_text("#!/bin/sh\necho backed up\n")
        (folder / "backup.sh").chmod(0o755)
        (folder / "some.log").write_text("a line\n")
        (folder / "simulate").symlink_to("/bin/echo")
        (folder / "files.txt").write_text("tasks.txt\ncommands.txt\n")
        with contextlib.closing(sqlite3.connect(folder / "users.db")) as database:
            database.executescript("CREATE TABLE users (id INTEGER, name TEXT); INSERT INTO users VALUES (1, 'A. B.')")
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

    def reads(self, page: str) -> None:
        """Do what a page shows, in its order: write its files, type its lines, run its programs."""
        programs = iter(PRINTED.get(page, ()))
        codes = {text: iter(found) for text, (found, _) in OTHER_CODES.items()}
        for block in blocks_of(page):
            if block.name:
                (self.folder / block.name).write_text(block.text)
            elif is_program(block) and page not in FRAGMENTS:
                self.runs_program(block.text, next(programs))
            for line in lines_of(block):
                self.runs(line, next(codes[line.text]) if line.text in codes else 0)

    def runs(self, line: Line, code: int = 0) -> str:
        """Run it as bash would; it must end with this code, and show what the page shows; return what it printed."""
        if any(line.text.startswith(head) for head in NOT_RUN):
            return ""
        text = line.text
        for shown, (other, _) in CHANGED.items():
            text = text.replace(shown, other.format(folder=self.folder))
        plain = PLAIN.fullmatch(text)
        done = forked.run(
            Jobq.argv(*shlex.split(plain[1])) if plain else ["bash", "-c", text],
            env=self.environment,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=90,
        )
        assert done.returncode == code, (text, done)
        assert "Traceback" not in done.stderr, (text, done)
        said = {SHORT_ID.sub("ID", told.strip()) for told in (done.stdout + done.stderr).splitlines()}
        assert {SHORT_ID.sub("ID", told) for told in line.output} <= said, (text, said)
        return str(done.stdout)

    def runs_program(self, text: str, printed: Sequence[str]) -> None:
        """Run a program with queues of its own and warnings as errors; it must end well, and print this and more."""
        home = Path(tempfile.mkdtemp(dir=self.folder))
        program = home / "program.py"
        program.write_text(text)
        done = subprocess.run(
            [sys.executable, "-W", "error", program],
            env={"JOBQ_HOME": str(home), "HOME": str(home), "PATH": "/usr/bin:/bin"},
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert (done.returncode, done.stderr) == (0, ""), (text, done)
        assert [part for part in printed if part not in done.stdout] == [], (text, done.stdout)
