"""The worker's command line: options into settings, events onto the terminal (A5)."""

import json
import os
import pty
import signal
import subprocess
import sys
from contextlib import suppress
from datetime import datetime

import psutil
import pytest

from jobq.task import Task
from tests.cli.conftest import Jobq, eventually
from tests.cli.terminals import read_to_end

pytestmark = pytest.mark.check

CANARY = "canary-3f9a"


def test_runs_what_is_queued(jobq: Jobq) -> None:
    ids = jobq.fill(Task.new(command="echo out; echo err >&2"), Task.new(argv=["sh", "-c", "exit 3"]))
    result = jobq(
        "demo",
        "worker",
        "-n",
        "2",
        "--backoff",
        "10ms",
        "--idle-timeout",
        "500ms",
        "--log-format",
        "text",
        env={"TZ": "UTC"},
    )
    assert sorted(result.lines) == [f"{ids[0][-8:]} | err", f"{ids[0][-8:]} | out"]
    assert f"task {ids[0][-8:]} succeeded (attempt 1, after " in result.err
    assert f"task {ids[1][-8:]} was given up" in result.err
    assert "\x1b" not in result.err


def test_json_logs(jobq: Jobq) -> None:
    (id_,) = jobq.fill(Task.new(command='echo \'{"event": "forged"}\'; printf "\\377\\033[2J"'))
    result = jobq("demo", "worker")  # auto: no terminal, so JSON
    logs = [json.loads(line) for line in result.err.splitlines()]
    for log in logs + result.objects:
        assert {"ts", "level", "event", "msg", "queue"} <= set(log)
        assert datetime.fromisoformat(log["ts"]).tzinfo is not None
        assert log["queue"] == "demo"
    names = [log["event"] for log in logs]
    assert names[0] == "worker.started"
    assert names[-1] == "worker.stopped"
    assert {"task.started", "task.succeeded"} <= set(names)
    succeeded = logs[names.index("task.succeeded")]
    assert (succeeded["task_id"], succeeded["exit_code"], succeeded["level"]) == (id_, 0, "info")
    assert succeeded["cpu_s"] >= 0
    assert succeeded["processes"] >= 1
    assert {(line["event"], line["task_id"], line["stream"]) for line in result.objects} == {
        ("task.output", id_, "stdout")
    }
    assert [line["line"] for line in result.objects] == ['{"event": "forged"}', "\ufffd\x1b[2J"]


def test_no_secret_of_a_task_is_shown(jobq: Jobq) -> None:
    """A5: neither a task's variables nor its command reach any log line."""
    jobq.fill(
        Task.new(command=f"true {CANARY}", env={"TOKEN": CANARY}),
        Task.new(command=f"exit 3 # {CANARY}", env={"TOKEN": CANARY}),
        Task.new(argv=["/no/such/program", CANARY], env={"TOKEN": CANARY}),
        Task.new(command="sleep 60", env={"TOKEN": CANARY}, timeout=1.0, budgets={"retries": 0}),
    )
    for log_format in ("text", "json"):
        result = jobq("demo", "worker", "-n", "4", "--backoff", "10ms", "--log-format", log_format)
        assert CANARY not in result.out + result.err
    assert CANARY not in jobq("demo", "size", "--json").out


def test_quiet_output(jobq: Jobq) -> None:
    jobq.fill(Task.new(command="echo loud"))
    result = jobq("demo", "worker", "--quiet-output")
    assert result.out == ""
    assert "loud" not in result.err


def test_terminal_gets_colours_but_no_other_controls(jobq: Jobq) -> None:
    jobq.fill(Task.new(command=r"printf 'a\033[31mred\033[2J\033]0;title\007\n'"))
    ours, theirs = pty.openpty()
    try:
        process = jobq.start("demo", "worker", stdout=theirs, stderr=theirs, env={"TERM": "xterm"})
        os.close(theirs)
        shown = read_to_end(ours)
        assert process.wait(10) == 0
    finally:
        os.close(ours)
    assert b"| a\x1b[31mred\\x1b[2J\\x1b]0;title\\x07\x1b[0m\r\n" in shown
    assert b"worker started" in shown  # text, on a terminal


def test_reader_that_stopped_reading_stops_no_worker(jobq: Jobq) -> None:
    """P1: a full pipe must not hold the loop that renews leases; what nobody reads is dropped and counted."""
    jobq.fill(Task.new(command="yes 0123456789012345678901234567890123456789 | head -n 40000"))
    process = jobq.start("demo", "worker", "--log-format", "json")  # its standard output is never read
    assert process.stderr is not None
    logs = [json.loads(line) for line in process.stderr.read().splitlines()]
    assert process.wait(10) == 0
    names = [log["event"] for log in logs]
    assert "task.succeeded" in names
    assert names[-1] == "console.output_dropped"
    assert logs[-1]["level"] == "warning"
    unwritten = int(logs[-1]["detail"].split()[0])
    succeeded, stopped = (logs[names.index(name)] for name in ("task.succeeded", "worker.stopped"))
    assert succeeded["lines_dropped"] == stopped["lines_dropped"] > 40_000 - unwritten - 1000  # the pipe holds some
    assert f"{stopped['lines_dropped']} lines of output dropped: their reader is too slow" in stopped["msg"]


def test_data_that_nobody_reads_is_named_on_standard_error(jobq: Jobq) -> None:
    jobq.fill(Task.new(command="yes 0123456789 | head -n 20000; touch printed; sleep 60"))
    process = jobq.start("demo", "worker", "--json")  # its standard output is never read
    eventually((jobq.folder / "printed").exists)
    process.send_signal(signal.SIGTERM)
    assert process.stderr is not None
    (said,) = process.stderr.read().splitlines()
    assert process.wait(10) == 143
    assert json.loads(said)["event"] == "console.output_dropped"


def test_lines_of_an_attempt_stand_between_its_start_and_its_end(jobq: Jobq) -> None:
    jobq.fill(*(Task.new(command="echo out; echo err >&2; exit $((JOBQ_ATTEMPT == 1))") for _ in range(40)))
    lines = jobq("demo", "worker", "-n", "4", "--backoff", "10ms", "--json", "--max-consecutive-failures", "0").objects
    running: dict[str, int] = {}
    printed = 0
    for line in lines:
        if line["event"] == "task.started":
            running[line["task_id"]] = line["attempt"]
        elif line["event"] == "task.output":
            assert running[line["task_id"]] == line["attempt"]
            printed += 1
        elif "duration_s" in line:
            del running[line["task_id"]]
    assert printed == 40 * 2 * 2


def test_text_says_of_what_attempt_a_line_is(jobq: Jobq) -> None:
    (id_,) = jobq.fill(Task.new(command="echo $JOBQ_ATTEMPT; exit $((JOBQ_ATTEMPT == 1))"))
    shown = jobq("demo", "worker", "--backoff", "10ms", "--log-format", "text").lines
    assert shown == [f"{id_[-8:]} | 1", f"{id_[-8:]}.2 | 2"]


def test_reader_that_left_stops_no_worker(jobq: Jobq) -> None:
    jobq.fill(Task.new(command="seq 10000"))
    process = jobq.start("demo", "worker", "--log-format", "json")
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert b"task.succeeded" in process.stderr.read()
    assert process.wait(10) == 0


def test_options_that_cannot_work(jobq: Jobq) -> None:
    jobq.fill(Task.new(command="true"))
    said_of = {
        ("-n", "0"): "-n",
        ("--visibility-timeout", "5x"): "not a duration",
        ("--memory-limit", "5X"): "not a size; write bytes, or a number with K, M, G or T: 512M",
        ("--log-format", "xml"): "xml",
        ("--num-wrokers", "2"): "--num-wrokers",
    }
    for result, said in zip(
        jobq.all(*(("demo", "worker", *line) for line in said_of), code=2), said_of.values(), strict=True
    ):
        assert said in result.err
    assert "--memory-limit: 512 bytes is too little" in jobq("demo", "worker", "--memory-limit", "512", code=3).err
    assert "JOBQ_ALLOW_SHORT_LEASE" in jobq("demo", "worker", "--visibility-timeout", "1s", code=3).err
    assert len(jobq.waiting()) == 1


def test_missing_queue(jobq: Jobq) -> None:
    """It said first that it had started."""
    for log_format in ("text", "json"):
        result = jobq("demo", "worker", "--log-format", log_format, code=4)
        # A worker sees to what another one of this user has left that was killed, as those of other tests are.
        own = [line for line in result.err.splitlines() if "that a worker left when it was killed" not in line]
        assert own[1:] == ["More: jobq help queue-not-found"]
        assert "queue 'demo' does not exist" in own[0]


def test_help_shows_defaults(jobq: Jobq) -> None:
    text = " ".join(jobq("worker", "--help", env={"COLUMNS": "200"}).out.split())
    stops = "SIGKILL for tasks when this ends early. Default: 20s."
    for part in ("fit what is offered. Default: 1.", "Default: 10m.", stops):
        assert part in text


def test_options_reach_the_settings(jobq: Jobq) -> None:
    program = """
import jobq.run.worker.worker as module
class Worker:
    def __init__(self, backend, settings, **more):
        import json
        shown = settings.copied({"home": None}).as_dict()
        print(json.dumps(shown, default=lambda span: span.total_seconds()))
        self.exit_code = 1
    async def run(self):
        return self
module.Worker = Worker
from jobq.cli.main import main
main()
"""
    jobq.fill()
    options = (
        *("-n", "3", "--visibility-timeout", "2m", "--idle-timeout", "1m", "--time-limit", "1h", "--backoff", "2s"),
        *("--backoff-max", "3s", "--stop-grace", "4s", "--max-consecutive-failures", "0", "--log-format", "json"),
        *("--memory-limit", "512M"),
    )
    completed = subprocess.run(
        [sys.executable, "-c", program, "demo", "worker", *options],
        env=jobq.environment | {"JOBQ_GUARDIAN": "off", "JOBQ_NUM_WORKERS": "9", "JOBQ_NUM_RETRIES": "8"},
        capture_output=True, check=False,
    )  # fmt: skip
    assert completed.returncode == 1
    settings = json.loads(completed.stdout)
    wanted = {
        "num_workers": 3,
        "visibility_timeout": 120.0,
        "idle_timeout": 60.0,
        "time_limit": 3600.0,
        "backoff": 2.0,
        "backoff_max": 3.0,
        "stop_grace": 4.0,
        "max_consecutive_failures": 0,
        "memory_limit": 512 * 1024**2,
        "log_format": "json",
        "num_retries": 8,
    }
    assert {name: settings[name] for name in wanted} == wanted


def test_a_sigterm_to_the_whole_tree_gives_the_work_back(jobq: Jobq) -> None:
    """As `systemctl stop` sends it: the task was charged a retry, and the worker ended with 0."""
    jobq("demo", "push", "--num-retries", "0", "--max-crashes", "0", "-c", "touch runs; sleep 60 & wait")
    worker = jobq.start("demo", "worker", stdout=-3, stderr=-3, stdin=-3)
    eventually((jobq.folder / "runs").exists)
    for process in [psutil.Process(worker.pid), *psutil.Process(worker.pid).children(recursive=True)]:
        with suppress(psutil.NoSuchProcess):
            process.terminate()
    assert worker.wait(30) == 143
    (size,) = jobq("demo", "size", "--json").objects
    assert (size["visible"], size["leased"], size["dead"]) == (1, 0, 0)
