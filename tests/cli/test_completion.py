"""Completions, asked for as the shells do."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from jobq.task import Task
from tests.cli.conftest import Jobq

SCRIPT = """
eval "$(jobq completion bash)"
COMP_WORDS=({words}) COMP_CWORD={index}
_jobq_completion jobq
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash on this machine")
@pytest.mark.parametrize(
    ("words", "offers"),
    [("jobq demo wo", "worker"), ("jobq demo push --num", "--num-retries"), ("jobq comp", "completion")],
)
def test_bash_completes(jobq: Jobq, words: str, offers: str) -> None:
    """Commands after a queue, options of a command, commands without a queue."""
    environment = {**jobq.environment, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    script = SCRIPT.format(words=words, index=len(words.split()) - 1)
    done = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert offers in done.stdout.split(), done


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash on this machine")
@pytest.mark.parametrize(
    ("words", "offers"),
    [
        ("jobq de", ["dead", "delete", "demo"]),
        ("jobq demo status my", ["my-1", "my-2"]),
        ("jobq demo dead retry my-1", ["my-1"]),
        ("jobq demo push com", ["commands.txt"]),
        ("jobq demo push --each com", ["commands.txt"]),
        ("jobq run --each com", ["commands.txt"]),
        ("jobq demo fanout n --lines com", ["commands.txt"]),
        ("jobq other status my", []),
        ("jobq devstoreaccount1/demo status my", []),
    ],
)
def test_queues_files_and_ids_are_offered(jobq: Jobq, words: str, offers: list[str]) -> None:
    """Those of this machine; nothing is asked over a network, and nothing is said."""
    jobq.fill(*(Task.new(command="true", id=f"my-{number}") for number in (1, 2)), Task.new(command="true", id="other"))
    (jobq.folder / "commands.txt").touch()
    environment = {**jobq.environment, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    script = SCRIPT.format(words=words, index=len(words.split()) - 1)
    # A shell completes files by itself where it is told to; outside of a terminal that is `compgen`.
    script = f"compopt() {{ COMPREPLY+=($(compgen -f -- {words.rsplit(maxsplit=1)[-1]})); }}\n{script}"
    done = subprocess.run(
        ["bash", "-c", script], env=environment, capture_output=True, text=True, check=True, cwd=jobq.folder
    )
    assert (sorted(done.stdout.split()), done.stderr) == (offers, "")


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_others_get_their_script(jobq: Jobq, shell: str) -> None:
    assert "_JOBQ_COMPLETE" in jobq("completion", shell).out


def test_another_shell_is_refused(jobq: Jobq) -> None:
    assert "is not one of" in jobq("completion", "tcsh", code=2).err
