"""Completions, asked for as the shells do."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

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


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_others_get_their_script(jobq: Jobq, shell: str) -> None:
    assert "_JOBQ_COMPLETE" in jobq("completion", shell).out


def test_another_shell_is_refused(jobq: Jobq) -> None:
    assert "is not one of" in jobq("completion", "tcsh", code=2).err
