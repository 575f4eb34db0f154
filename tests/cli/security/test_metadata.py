"""The recipes of docs/security.md: a cloud's metadata address is closed to tasks, and open to their worker (A12)."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from jobq.task import Task
from tests.cli.conftest import Jobq

STAGE = Path(__file__).with_name("metadata_stage.py")
USER = str(1_500_000 + os.getpid())  # nobody's
PYTHON = shutil.which("python3", path="/usr/bin:/bin")  # which any user can run
NETWORK = """set -e
ip link set lo up
ip address add 169.254.169.254/32 dev lo
ip -6 address add fd00:ec2::254/128 dev lo nodad
"""
WAIT = """
import urllib.request as r
r.build_opener(r.ProxyHandler({})).open("http://127.0.0.1/wait", timeout=20)
"""
ASK = """
import urllib.request as r
for at in ("169.254.169.254", "[fd00:ec2::254]"):
    try:
        r.build_opener(r.ProxyHandler({})).open(f"http://{at}/stolen", timeout=20)
        print("reached", at)
    except OSError as error:
        print("closed", at)
"""


def recipes() -> dict[str, str]:
    """Return those of the page, by their program."""
    page = (Path(__file__).parents[3] / "docs/security.md").read_text()
    section = page.partition("## The metadata address")[2].partition("\n## ")[0]
    return {text.split()[0]: text for text in re.findall(r"^```text\n(.*?)^```", section, re.MULTILINE | re.DOTALL)}


def lacks(program: str) -> str | None:
    """Return why a recipe cannot be tried here, if it cannot."""
    if os.geteuid() != 0:
        return "a network of one's own, and another user, need root"
    if missing := [name for name in (program, "unshare", "ip", "setpriv") if shutil.which(name) is None]:
        return f"{', '.join(missing)}: not installed"
    tried = ["unshare", "--net", "sh", "-c", f"{NETWORK}{recipes()[program]}"]
    done = subprocess.run(tried, capture_output=True, text=True, check=False)
    return f"this kernel or container refuses it: {done.stderr[-200:]}" if done.returncode else None


def worker(jobq: Jobq, rules: str) -> str:
    """Run a worker in such a network, and return what its one task printed."""
    run = f"{NETWORK}{rules}\nexec {sys.executable} {STAGE} {jobq.folder} {sys.executable} -m jobq demo worker"
    done = subprocess.run(
        ["unshare", "--net", "sh", "-c", run],
        env=jobq.environment | {"JOBQ_SCHEDULED_EVENTS": "on"},
        cwd=jobq.folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("program", ["nft", "iptables"])
def test_a12_by_a_firewall_tasks_do_not_reach_it_and_their_worker_does(jobq: Jobq, program: str) -> None:
    if why := lacks(program):
        pytest.skip(why)
    assert PYTHON is not None
    recipe = recipes()[program].replace("2000-2063", USER)
    as_user = ["setpriv", "--reuid", USER, "--regid", USER, "--clear-groups", "--pdeathsig", "keep"]
    for rules, seen in (("", "reached"), (recipe, "closed")):
        jobq.fill(Task.new(argv=[*as_user, PYTHON, "-c", WAIT + ASK], cwd="/"))
        printed = worker(jobq, rules)
        assert f"{seen} 169.254.169.254" in printed
        assert f"{seen} [fd00:ec2::254]" in printed
        asked = (jobq.folder / "asked").read_text()
        (jobq.folder / "asked").unlink()
        assert "/metadata/scheduledevents" in asked, "the worker's own look"
        assert ("/stolen" in asked) == (seen == "reached")


def test_a12_without_root_a_task_without_a_network_does_not_reach_it(jobq: Jobq) -> None:
    if why := lacks("nft"):  # for the network of the test
        pytest.skip(why)
    assert PYTHON is not None
    wrapped = recipes()["unshare"].split()
    if subprocess.run([*wrapped[:-1], "true"], capture_output=True, check=False).returncode:
        pytest.skip("this kernel or container lets nobody make a user namespace")
    jobq.fill(Task.new(argv=[*wrapped[:-1], PYTHON, "-c", ASK], cwd="/"), Task.new(argv=[PYTHON, "-c", WAIT]))
    printed = worker(jobq, "")
    assert "closed 169.254.169.254" in printed
    assert "closed [fd00:ec2::254]" in printed
    assert "/metadata/scheduledevents" in (jobq.folder / "asked").read_text()
