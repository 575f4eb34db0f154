"""What somebody types in the first hour, slip of the finger included: what is said, and the exit code."""

import json
import re
import signal
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pytest

import jobq as jobq_package
from jobq.errors import MalformedTask
from jobq.queue import connect as jobq_connect
from jobq.task import Task
from tests.cli.conftest import Jobq, eventually
from tests.cli.test_wording import fill

pytestmark = pytest.mark.check


@pytest.fixture
def filled(jobq: Jobq) -> Jobq:
    fill(jobq)
    return jobq


def test_people_read_their_own_time_and_programs_utc(filled: Jobq) -> None:
    """Logs were in local time, what `dead show` and `status` say in UTC."""
    clock = re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d)?")
    shown = ("dead list", "dead show lost-task", "status train-1")
    here = {"TZ": "Etc/GMT-5"}  # five hours ahead of UTC
    for command in shown:
        times = clock.findall(filled("demo", *command.split(), env=here).out)
        assert times
        for each in times:
            assert each.endswith("+05:00"), command
            assert abs(datetime.fromisoformat(each) - datetime.now(UTC)) < timedelta(hours=1)
        for each in clock.findall(filled("demo", *command.split(), "--json", env=here).out):
            assert each.endswith("Z"), command
    log = filled("demo", "worker", "--log-format", "text", env=here).err
    hour = datetime.strptime(log[:8], "%H:%M:%S").replace(tzinfo=UTC).hour
    assert (hour - datetime.now(UTC).hour) % 24 in (4, 5)


def test_a_second_push_of_other_lines_warns_of_nothing(filled: Jobq) -> None:
    (filled.folder / "other.txt").write_text("echo other\n")
    for _ in range(2):
        assert "warning" not in filled("demo", "push", "other.txt").err
        filled("demo", "worker")
    assert "warning" not in filled("demo", "push", "--resume", "s1", "other.txt").err


def test_a_file_gets_what_tasks_print(jobq: Jobq) -> None:
    """It held JSON, or a short id before each line."""
    for log_format in ("auto", "text"):
        jobq("demo", "push", "-c", "echo one; echo two >&2")
        with (jobq.folder / "log").open("wb") as log:
            events = jobq("demo", "worker", "--log-format", log_format, stdout=log.fileno()).err
        assert sorted((jobq.folder / "log").read_text().splitlines()) == ["one", "two"]
        assert "succeeded" in events
    for asked in ("--json", "--log-format=json"):
        jobq("demo", "push", "-c", "echo one")
        with (jobq.folder / "log").open("wb") as log:
            jobq("demo", "worker", asked, stdout=log.fileno())
        lines = [json.loads(line) for line in (jobq.folder / "log").read_text().splitlines()]
        assert [one["line"] for one in lines if one["event"] == "task.output"] == ["one"], "it was asked for"


def test_one_file_for_both_streams_holds_json_alone(jobq: Jobq) -> None:
    jobq("demo", "push", "-c", "echo one")
    with (jobq.folder / "log").open("wb") as log:
        assert jobq.start("demo", "worker", stdout=log.fileno(), stderr=log.fileno()).wait(30) == 0
    lines = [json.loads(line) for line in (jobq.folder / "log").read_text().splitlines()]
    assert "task.output" in {one["event"] for one in lines}


def test_quiet_is_what_tasks_print_and_errors_for_people(jobq: Jobq) -> None:
    jobq("demo", "push", "--num-retries", "0", "-c", "echo one", "-c", "exit 3")
    result = jobq("demo", "worker", "-q", "--backoff", "0s")
    assert result.out == "one\n"
    assert " was given up: failed; last: exit code 3" in result.err
    assert "{" not in result.err


def test_the_last_line_of_a_worker_says_how_many_were_given_up(jobq: Jobq) -> None:
    """It said dead_lettered=2, and each task's line the command with the word QUEUE in it."""
    for spec in ("demo", "sqlite://other.db/demo"):
        jobq(spec, "push", "--num-retries", "0", "-c", "exit 3", "-c", "exit 4")
        log = jobq(spec, "worker", "--log-format", "text").err
        assert log.rstrip().endswith(f": 2 given up, see `jobq {spec} dead list`")
        assert log.count("dead list") == 1
    jobq("demo", "push", "--num-retries", "0", "-c", "exit 3")
    assert "1 given up, see `jobq dead list`" in jobq("worker", env={"JOBQ_QUEUE": "demo"}).err


def test_no_time_left_is_told_where_nothing_was_done(jobq: Jobq) -> None:
    jobq("demo", "push", "--num-retries", "0", "-c", "exit 3")
    jobq("demo", "worker")
    jobq("demo", "push", "-c", "true")
    for command in ("stats", "ps", "top --once"):
        result = jobq("demo", *command.split())
        assert "/s" in result.out + result.err, command
        assert " left" not in result.out + result.err, command


@pytest.mark.parametrize("name", ["JobQ", "launch_workers", "batch_enqueue", "LockLostError", "EmptyQueue"])
def test_a_name_of_ai4s_jobq_in_a_program(name: str) -> None:
    """`from jobq import JobQ` said that there is none, and nothing else."""
    with pytest.raises(ImportError, match=f"ai4s-jobq's {name} is here: "):
        exec(f"from jobq import {name}")  # as it is typed
    assert not hasattr(jobq_package, "of_nobody")


def test_the_last_queue_is_gone(filled: Jobq) -> None:
    for queue in ("demo", "empty"):
        filled(queue, "delete", "--force")
    assert filled("queues").err == "there is no queue yet; the first push makes one\n"
    assert filled("queues", "--json").err == ""


def test_a_cancel_of_nothing_says_so_once(filled: Jobq) -> None:
    assert filled("demo", "cancel", "xyz", code=4).out == ""


def test_a_retry_of_nothing_says_so_once(filled: Jobq) -> None:
    assert filled("demo", "dead", "retry", "xyz", code=4).out == "", "it said that it had retried 0 as well"


def test_ctrl_c_says_how_long_it_waits(jobq: Jobq) -> None:
    jobq("demo", "push", "-c", "trap '' TERM; touch started; until test -e enough; do sleep 0.05; done")
    worker = jobq.start("demo", "worker", "--log-format", "text", "--stop-grace", "30s", stderr=subprocess.PIPE)
    eventually((jobq.folder / "started").exists)
    worker.send_signal(signal.SIGINT)
    assert worker.stderr is not None
    said = b"running=1): what runs has 30s to end, and is given back; a second Ctrl-C ends it at once\n"
    assert any(said in line for line in worker.stderr)
    worker.send_signal(signal.SIGINT)
    assert worker.wait(30) == 130


def test_a_dead_letter_counts_its_failures_once(filled: Jobq) -> None:
    shown = filled("demo", "status", "lost-task").out
    assert "failed 4 times" in shown
    assert "failures=3" not in shown


def test_a_name_that_another_file_has_taken(jobq: Jobq) -> None:
    for name, lines in (("tasks.txt", 5), ("slow.txt", 1)):
        (jobq.folder / name).write_text("true\n" * lines)
    jobq("demo", "push", "--resume", "monday", "tasks.txt")
    said = jobq("demo", "push", "--resume", "monday", "slow.txt", code=2).err
    assert "slow.txt has become shorter than what push:monday has queued, which stays; or it is another file" in said


def test_the_folder_of_the_queues(jobq: Jobq) -> None:
    assert f"in use: {jobq.home}" in jobq("config").out
    (home,) = [each for each in jobq("config", "--json").objects if each["setting"] == "home"]
    assert home["in_use"] == str(jobq.home)


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


@pytest.mark.parametrize(("imported", "code"), [("click", -signal.SIGINT), ("jobq.task", 130)])
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


def test_what_no_program_can_be_given_is_refused_at_the_push(jobq: Jobq) -> None:
    """It was started four times, and was a dead letter then."""
    (jobq.folder / "long.txt").write_text("true\ntrue " + "x" * 131_070 + "\n")
    result = jobq("demo", "push", "long.txt", code=2)
    assert "command: has 131076 bytes, and a program can be given 131072 in one piece; put it into a file" in result.err
    (jobq.folder / "long.txt").write_text("true " + "x" * 131_066 + "\n")
    jobq("demo", "push", "long.txt")
    jobq("demo", "worker", "--quiet-output")
    (size,) = jobq("demo", "size", "--json").objects
    assert (size["visible"], size["scheduled"], size["dead"]) == (0, 0, 0)
    result = jobq("demo", "push", "--env", "A=" + "x" * 131_000, "--env", f"B={'x' * 131_000}", "-c", "true")
    assert "queued 1 task" in result.err


async def test_a_program_hears_which_argument_is_too_long() -> None:
    async with jobq_connect("memory://long/demo") as queue:
        await queue.backend.create()
        with pytest.raises(MalformedTask, match=r"argv\.1: has 200001 bytes"):
            await queue.push([Task.new(command="true"), Task.new(argv=["true", "x" * 200_000])])
        with pytest.raises(MalformedTask, match=r"env\.A: has 200003 bytes"):
            await queue.push(Task.new(command="true", env={"A": "x" * 200_000}))
        assert (await queue.stats()).visible == 0
