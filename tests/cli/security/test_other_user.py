"""The recipe of docs/security.md by which a worker of root's runs a command as another user (A6, P2)."""

import os
import re
import shlex
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from jobq.run.spawn.choose_spawner import is_possible
from tests.cli.conftest import Jobq
from tests.guardian.stage import children, guardian_below, state, until, worker_below

pytestmark = pytest.mark.skipif(
    not is_possible() or os.geteuid() != 0 or shutil.which("setpriv") is None,
    reason="needs the guardian, root, who may become another user, and setpriv",
)


def recipe() -> list[list[str]]:
    """Return the command lines of the page, without `jobq`."""
    page = (Path(__file__).parents[3] / "docs/security.md").read_text()
    section = page.partition("## Tasks as another user")[2].partition("\n## ")[0]
    return [shlex.split(line) for line in re.findall(r"^jobq (.*)", section, re.MULTILINE)]


def test_the_recipe_as_it_is_printed(jobq: Jobq) -> None:
    push, worker = recipe()
    jobq(*push)
    assert [line["line"] for line in jobq(*worker).objects] == ["2000"]


def test_a6_as_another_user_a_task_does_not_reach_its_guardian_and_dies_with_it(jobq: Jobq) -> None:
    """Also when nobody else is left to kill it: the kernel does, which forgets that at a change of user."""
    push, worker = recipe()
    jobq(*push[:-2], "sh", "-c", "kill -9 $PPID 2> /dev/null || echo closed; exec sleep 1000")
    process = jobq.start(*worker, env={"JOBQ_CONTAINMENT": "off"}, stderr=subprocess.DEVNULL)
    assert process.stdout is not None
    assert process.stdout.readline().endswith(b'"line": "closed"}\n')
    guardian, loop = guardian_below(process.pid), worker_below(process.pid)
    (task,) = (pid for pid in children(guardian) if pid != loop)
    try:
        for stopped in (process.pid, loop):
            os.kill(stopped, signal.SIGSTOP)
        os.kill(guardian, signal.SIGKILL)
        until(lambda: state(task) in "ZX")
    finally:
        for stopped in (process.pid, loop):
            os.kill(stopped, signal.SIGKILL)
