"""`jobq QUEUE pull`: one task under its lease, its output, and an exit code that tells what became of it."""

import signal
import time

from jobq.task import Budgets, Task
from tests.cli.conftest import Jobq, eventually


def test_runs_one_task_and_ends(jobq: Jobq) -> None:
    first, _ = jobq.fill(
        Task.new(command="echo one; echo err >&2; echo $JOBQ_LEASE_TOKEN"), Task.new(command="echo two")
    )
    result = jobq("demo", "pull")
    assert result.lines == ["one", "0.0.1"]
    assert result.err.startswith(f"err\ntask {first} done (exit code 0, after ")
    assert jobq.commands() == ["echo two"]
    assert jobq("demo", "pull", "--quiet-output").out == ""
    assert jobq("demo", "pull", code=4).err == "no task on demo\n"


def test_several_one_after_another(jobq: Jobq) -> None:
    jobq.fill(*(Task.new(command=f"echo {number}") for number in range(3)))
    assert jobq("demo", "pull", "-n", "2").lines == ["0", "1"]
    assert jobq("demo", "pull", "-n", "2").lines == ["2"]


def test_failure_is_given_back_then_given_up(jobq: Jobq) -> None:
    """S7: a pull spends the budgets that a worker would."""
    (id_,) = jobq.fill(Task.new(command="echo last; exit 3", budgets=Budgets(retries=1)))
    quick = {"JOBQ_BACKOFF": "0s"}
    result = jobq("demo", "pull", "--json", env=quick, code=1)
    assert result.err.startswith(f"last\ntask {id_} did not succeed (exit code 3, after ")
    (told,) = result.objects
    assert (told["id"], told["result"], told["exit_code"], told["output_tail"]) == (id_, "requeued", 3, "last\n")
    (told,) = jobq("demo", "pull", "--json", "--wait", "5s", env=quick, code=1).objects
    assert (told["result"], told["reason"]) == ("given_up", "failed")
    assert jobq("demo", "pull", "--json", code=4).objects == [{"id": None, "result": "none"}]


def test_what_it_may_not_run_is_given_back_and_it_says_why(jobq: Jobq) -> None:
    (id_,) = jobq.fill(Task.new(kwargs={"n": 1}))
    said = jobq("demo", "pull", code=1).err
    assert said.startswith(f"task {id_} was given back unstarted: this task is meant for a library callback; ")
    jobq("demo", "clear", "--yes")
    jobq.fill(Task.new(call="math:sqrt", kwargs={}))
    said = jobq("demo", "pull", code=1, env={"JOBQ_ALLOW_CALLS": "math:sin"}).err
    assert said.endswith(" was given back unstarted: math:sqrt is not among JOBQ_ALLOW_CALLS\n")


def test_waits_for_a_task(jobq: Jobq) -> None:
    jobq.fill()
    process = jobq.start("demo", "pull", "--wait", "30s")
    time.sleep(1)
    assert process.poll() is None
    jobq.fill(Task.new(command="echo here"))
    assert process.communicate(timeout=20)[0] == b"here\n"
    assert process.returncode == 0


def test_interrupted_gives_back(jobq: Jobq) -> None:
    jobq.fill(Task.new(command="touch started; exec sleep 60", cwd=str(jobq.folder)))
    process = jobq.start("demo", "pull", "--lease", "2m")
    eventually((jobq.folder / "started").exists)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert b"did not succeed (stopped: the worker got SIGINT" in err
    assert jobq.commands() == ["touch started; exec sleep 60"]
    assert jobq.waiting()[0].counters.preemptions == 1


def test_no_such_queue(jobq: Jobq) -> None:
    assert "does not exist" in jobq("demo", "pull", code=4).err
    assert "which queue?" in jobq("pull", code=2).err
