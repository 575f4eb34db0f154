"""What somebody types in the first hour, slip of the finger included: what is said, and the exit code."""

import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Jobq

TYPED: list[tuple[str, str, int]] = [
    ("jobq", "Usage: jobq [QUEUE] COMMAND", 2),
    ("jobq help", "Queue commands.", 0),
    ("jobq help push", "jobq demo push -c", 0),
    ("jobq --help", "Queue commands.", 0),
    ("jobq --version", "jobq ", 0),
    ("jobq demo", "no command after 'demo', which is taken for the queue", 2),
    ("jobq push", "which queue? Write `jobq QUEUE push ...`, as in `jobq demo push`, or set JOBQ_QUEUE", 2),
    ("jobq psuh -c true", "no such command 'psuh'; did you mean 'push'?", 2),
    ("jobq demo psuh tasks.txt", "no such command 'psuh'; did you mean 'push'?", 2),
    ("jobq demo submit -c true", "no such command 'submit'; did you mean 'push'?", 2),
    ("jobq demo ls", "no such command 'ls'; did you mean 'peek'?", 2),
    ("jobq demo push -c", "Option '-c' requires an argument.", 2),
    (
        "jobq demo push 'echo hi'",
        "cannot read echo hi: No such file or directory; it was taken for a file of commands; a command is given with",
        2,
    ),
    (
        "jobq demo push python train.py --lr 0.1",
        "No such option '--lr'; a program and its arguments stand behind --, as in: -- python train.py --lr 0.1",
        2,
    ),
    ("jobq demo push python train.py", "a program and its arguments stand behind --, as in: -- python train.py", 2),
    ("jobq demo push -c true --retries 3", "No such option '--retries'", 2),
    ("jobq demo worker --workers 4", "No such option '--workers'", 2),
    ("jobq demo worker -n four", "'four' is not a valid integer", 2),
    ("jobq demo worker -n 0", "0 is not in the range", 2),
    ("jobq demo worker", "queue 'demo' does not exist; the first push makes it, or `jobq QUEUE create`", 4),
    ("jobq demo pull", "queue 'demo' does not exist; the first push makes it", 4),
    ("jobq demo size", "queue 'demo' does not exist", 4),
    ("jobq demo peek", "queue 'demo' does not exist", 4),
    ("jobq demo dead list", "queue 'demo' does not exist", 4),
    ("jobq demo status 01a2", "queue 'demo' does not exist", 4),
    ("jobq ./rel.db/demo push -c true", "'./rel.db/demo' is no queue spec; did you mean sqlite://rel.db/demo?", 3),
    ("jobq rel.db/demo push -c true", "did you mean sqlite://rel.db/demo?", 3),
    ("jobq jobs.db push -c true", "a queue in that file is sqlite://jobs.db/demo", 3),
    ("jobq ~/q push -c true", "did you mean q (a queue of this machine), or sqlite://", 3),
    ("jobq sqlite:rel.db/demo push -c true", "did you mean sqlite://rel.db/demo?", 3),
    ("jobq sqlite:///jobs.db push -c true", "its last part is the queue, as in sqlite:///jobs.db/demo", 3),
    ("jobq /demo push -c true", "did you mean demo (a queue of this machine), or sqlite:///jobs.db/demo", 3),
    ("jobq ftp://x/demo push -c true", "no installed backend serves ftp://; known here:", 3),
    ("jobq postgresql://me:secret@h/d/q size", "a password does not belong into a queue spec", 3),
    ("jobq memory://here/demo push -c true", "memory:// lives in one process and ends with this command", 3),
    ("jobq 'a b' push -c true", "'a b' is not a queue name, or a spec that ends in one", 3),
    ("jobq Acct/q push -c true", "is not the name of a storage account: 3 to 24 lower-case letters and digits", 3),
    ("jobq run nothing.txt", "cannot read nothing.txt: No such file or directory", 2),
    ("jobq demo push tasks.txt", "cannot read tasks.txt: No such file or directory", 2),
    ("jobq config --chnged", "No such option '--chnged'", 2),
]


@pytest.mark.parametrize(("typed", "said", "code"), TYPED, ids=[typed for typed, _, _ in TYPED])
def test_typed(jobq: Jobq, typed: str, said: str, code: int) -> None:
    words = [str(Path(word).expanduser()) if word.startswith("~") else word for word in shlex.split(typed)]
    result = jobq(*words[1:], code=code)
    assert said in " ".join((result.out + result.err).split()), result
    assert "Traceback" not in result.err
    assert not list(jobq.home.glob("*.db")), "a slip makes no queue anywhere"


def test_the_variables_of_ai4s_jobq_mean_no_queue_of_this_machine(jobq: Jobq) -> None:
    """It said nothing, and ended with 0: the tasks waited where no worker would ever look."""
    named = {"JOBQ_STORAGE": "acct", "JOBQ_QUEUE": "jobs", "AZURE_CONFIG_DIR": str(jobq.folder)}
    (setting,) = [each for each in jobq("config", "--json", env=named).objects if each["setting"] == "queue"]
    assert setting["value"] == "acct/jobs"
    result = jobq(
        "push", "-c", "true", env=named | {"JOBQ_CONNECTION_STRING": "AccountName=other;AccountKey=eA=="}, code=3
    )
    assert "acct" in result.err
    assert not list(jobq.home.glob("*.db"))


def test_a_file_of_this_folder_that_was_looked_for_at_the_root(jobq: Jobq) -> None:
    jobq("sqlite://jobs-here.db/demo", "push", "-c", "true")
    result = jobq("sqlite:///jobs-here.db/demo", "size", code=4)
    assert "(looked in /jobs-here.db); jobs-here.db in this folder is sqlite://jobs-here.db/demo" in result.err


@pytest.mark.parametrize(("imported", "code"), [("click", -signal.SIGINT), ("pydantic", 130)])
def test_ctrl_c_while_it_starts(jobq: Jobq, imported: str, code: int) -> None:
    """It printed the import that it was in."""
    program = f"""
import os, signal, sys
from importlib.abc import MetaPathFinder

class Interrupting(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "{imported}":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupting())
sys.argv = ["jobq", "demo", "size"]
from jobq.__main__ import main
main()
"""
    result = subprocess.run(
        [sys.executable, "-c", program], env=jobq.environment, capture_output=True, text=True, check=False, timeout=30
    )
    assert result.returncode == code, result
    assert result.stderr == ("" if code < 0 else "jobq: interrupted\n")
