"""Signals to a worker, and kills of any of its processes: the task's end with it, and the task runs again."""

import os
import signal

import pytest

from tests.blackbox.support import PATIENCE, Bench, kill, until

pytestmark = pytest.mark.check

# It writes a line and stays, with a process that left its group and session; from its second start on it ends.
TASK = "echo $JOBQ_ATTEMPT >> ran; test $JOBQ_ATTEMPT = 1 || exit 0; setsid sleep 300 & sleep 300; echo late >> ran"
LEASE = ("--visibility-timeout", "4s")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_worker_that_is_told_to_stop_gives_its_task_back(bench: Bench, number: int, code: int) -> None:
    task = bench.push("-c", TASK)
    worker = bench.start("q", "worker")
    bench.has("ran")
    worker.send_signal(number)
    bench.ends(worker, code)
    assert not bench.tasks()
    assert bench.objects("q", "size") == [{"visible": 1, "leased": 0, "scheduled": 0, "dead": 0}]
    bench.jobq("q", "worker")
    assert bench.lines("ran") == ["1", "2"]
    [status] = bench.objects("q", "status", task)
    assert (status["state"], status["attempt"]) == ("succeeded", 2)


def test_a_task_that_ignores_sigterm_is_killed_after_the_grace(bench: Bench) -> None:
    bench.push("-c", "trap '' TERM; echo began >> ran; while :; do sleep 300; done")
    worker = bench.start("q", "worker", "--stop-grace", "1s")
    bench.has("ran")
    worker.terminate()
    bench.ends(worker, 143)
    assert not bench.tasks()


def test_sigusr1_lets_the_task_end_and_takes_nothing_new(bench: Bench) -> None:
    bench.push("-c", "echo began >> ran; until test -e go; do sleep 0.05; done; echo ended >> ran")
    bench.push("-c", "echo second >> ran")
    worker = bench.start("q", "worker")
    bench.has("ran")
    worker.send_signal(signal.SIGUSR1)
    until(lambda: any('"worker.draining"' in line for line in bench.lines("err")), "the worker has heard it")
    (bench.work / "go").touch()
    bench.ends(worker, 0)
    assert bench.lines("ran") == ["began", "ended"]
    assert bench.objects("q", "size")[0]["visible"] == 1


@pytest.mark.parametrize("victims", ["the one that was started", "its children", "all"])
def test_after_a_sigkill_no_process_is_left_and_the_task_runs_again_once(bench: Bench, victims: str) -> None:
    task = bench.push("-c", TASK)
    worker = bench.start("q", "worker", *LEASE)
    bench.has("ran")
    until(lambda: len(bench.tasks()) >= 3, "the task's three processes run")
    before = bench.tasks()
    started, all_of_jobq = {worker.pid}, bench.others()
    chosen = {"the one that was started": started, "its children": all_of_jobq - started, "all": all_of_jobq}[victims]
    for process in chosen:
        os.kill(process, signal.SIGSTOP)  # none may see the others die
    kill(chosen)
    if victims != "all":  # where all are dead and there is no control group, the next start ends them
        until(lambda: not bench.tasks() & before, "no process of the task lives", 8)
    bench.works_until("ran", 2, *LEASE)
    assert not bench.tasks()
    assert bench.lines("ran") == ["1", "2"]
    [status] = bench.objects("q", "status", task)
    assert (status["state"], status["attempt"]) == ("succeeded", 2)


def test_each_process_of_a_worker_may_be_killed_by_itself(bench: Bench) -> None:
    victim, count = 0, 1
    while victim < count:
        before = len(bench.lines("ran"))
        bench.push("-c", "echo began >> ran; setsid sleep 300 & exec sleep 300")
        worker = bench.start("q", "worker", *LEASE)
        bench.has("ran", before + 1)
        processes = sorted(bench.others())
        kill({processes[victim]})
        until(lambda: not bench.tasks(), "no process of the task lives", 8)
        worker.terminate()
        worker.wait(PATIENCE)
        until(lambda: not bench.others(), "no process of the worker lives")
        bench.jobq("q", "clear", "--yes")
        victim, count = victim + 1, len(processes)
    assert count > 1
