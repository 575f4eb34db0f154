"""What a worker of this machine held comes back at once when nothing of it lives."""

import json
import os
import signal
import subprocess

import pytest

from jobq.run.spawn.choose_spawner import is_possible
from jobq.run.spawn.containment import try_here
from jobq.task import Task
from tests.cli.conftest import Jobq, eventually
from tests.guardian.stage import guardian_below, living, marker, state, until, worker_below
from tests.guardian.three import SCRUBBED

pytestmark = pytest.mark.check

LONG = ("demo", "worker", "--visibility-timeout", "10m", "--stop-grace", "0s")


CONTAINED = try_here("cgroup", is_guarded=True)


@pytest.mark.skipif(CONTAINED.kind != "cgroup", reason=CONTAINED.why)
@pytest.mark.parametrize("journal", ["auto", "off"])
@pytest.mark.parametrize("whom", [("watcher",), ("watcher", "guardian", "worker")], ids="+".join)
def test_l6_what_a_killed_worker_of_this_machine_held_comes_back_at_once(
    jobq: Jobq, whom: tuple[str, ...], journal: str
) -> None:
    """Its lease is of ten minutes, but nothing lives that it could protect."""
    jobq.environment["JOBQ_CONTAINMENT"] = "cgroup"
    spreads = "(setsid sleep 1000 &); touch begun; sleep 1000"
    (id_,) = jobq.fill(Task.new(command=f"[ $JOBQ_ATTEMPT -gt 1 ] || {{ {spreads}; }}"))
    killed = jobq.start(*LONG, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    eventually((jobq.folder / "begun").exists)
    pids = {"watcher": killed.pid, "guardian": guardian_below(killed.pid), "worker": worker_below(killed.pid)}
    for number in (signal.SIGSTOP, signal.SIGKILL):  # stopped first: none of them can do anything about it
        for name in whom:
            os.kill(pids[name], number)
    until(lambda: all(state(pid) in "ZX" for pid in pids.values()))
    jobq.environment["JOBQ_JOURNAL"] = journal
    last = json.loads(jobq("demo", "worker", "--log-format", "json").err.splitlines()[-1])
    assert (last["succeeded"], last["exit_code"]) == (1, 0)
    if journal == "off":
        return
    assert [each["outcome"] for each in jobq("demo", "status", id_, "--json").objects[0]["attempts"]] == [
        "lock_lost",
        "succeeded",
    ]


@pytest.mark.skipif(not is_possible(), reason="only who has a guardian is known to be dead")
def test_s3_what_may_live_on_keeps_its_lease(jobq: Jobq) -> None:
    """Nothing held the tasks together: one that scrubbed its environment lived, and its next attempt beside it."""
    mark = marker()
    spreads = f"{SCRUBBED.format(mark=mark)} & sleep 1000"
    jobq.fill(Task.new(command=f"echo >> attempts; [ $JOBQ_ATTEMPT -gt 1 ] || {{ {spreads}; }}"))
    jobq.environment["JOBQ_CONTAINMENT"] = "off"
    killed = jobq.start(*LONG, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        eventually(lambda: len(living(mark)) >= 1)
        pids = [killed.pid, guardian_below(killed.pid), worker_below(killed.pid)]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        for pid in reversed(pids):  # a parent that is stopped reaps none: each number is still its own
            os.kill(pid, signal.SIGKILL)
        until(lambda: all(state(pid) in "ZX" for pid in pids))
        jobq.environment["JOBQ_CONTAINMENT"] = "auto"
        jobq("demo", "worker", "--time-limit", "0.5s")  # it looks at the dead first
        assert living(mark), "nothing outlived the blow, so nothing is shown"
        assert (jobq.folder / "attempts").read_text() == "\n"
    finally:
        for pid in living(mark):
            os.kill(pid, signal.SIGKILL)
