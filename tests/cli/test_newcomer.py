"""What somebody types in the first hour, slip of the finger included: what is said, and the exit code."""

import json
import re
import shlex
import signal
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import jobq as jobq_package
from jobq.backend import Backend
from jobq.errors import MalformedTask
from jobq.journal.store import journal_of
from jobq.queue import connect as jobq_connect
from jobq.task import Budgets, Task
from tests.cli.conftest import Jobq, eventually

_AS_PUSHED = Budgets(retries=3, preemptions=100, crashes=3)
TYPED: list[tuple[str, str, int]] = [
    ("jobq", "Usage: jobq [QUEUE] COMMAND", 2),
    ("jobq help", "Queue commands.", 0),
    ("jobq demo help", "Queue commands.", 0),
    ("jobq demo help push", "jobq demo push -c", 0),
    ("jobq help dead list", "Usage: jobq [QUEUE] dead list", 0),
    ("jobq demo checkpoint --json x", "No such option '--json'", 2),
    ("jobq help push", "jobq demo push -c", 0),
    ("jobq --help", "Queue commands.", 0),
    ("jobq --version", "jobq ", 0),
    ("jobq demo", "no command after 'demo', which is taken for the queue", 2),
    ("jobq push", "which queue? Write `jobq QUEUE push ...`, as in `jobq demo push`, or set JOBQ_QUEUE", 2),
    ("jobq psuh -c true", "no such command 'psuh'; did you mean 'push'?", 2),
    ("jobq demo psuh tasks.txt", "no such command 'psuh'; did you mean 'push'?", 2),
    ("jobq demo submit -c true", "no such command 'submit'; did you mean 'push'?", 2),
    ("jobq demo ls", "no such command 'ls'; did you mean 'peek'?", 2),
    ("jobq ls", "no command after 'ls', which is taken for the queue; did you mean 'queues'?", 2),
    ("jobq list", "did you mean 'queues'?", 2),
    ("jobq queues", "queues.db does not exist; the first push makes it", 4),
    ("jobq demo list", "no such command 'list'; did you mean 'peek', 'ps' or 'dead list'?", 2),
    ("jobq demo results", "of which batch? --batch NAME; `jobq demo batch list` shows them, `jobq demo status ID`", 2),
    ("jobq demo rm 01a2", "no such command 'rm'; did you mean 'cancel', 'delete', 'clear' or 'dead purge'?", 2),
    ("jobq demo drop", "did you mean 'delete', 'clear' or 'dead purge'?", 2),
    ("jobq demo delete", "queue 'demo' does not exist", 4),
    ("jobq demo dead delete 01a2", "no such command 'delete'; did you mean 'purge'?", 2),
    ("jobq demo dead rm 01a2", "no such command 'rm'; did you mean 'purge'?", 2),
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
    ("jobq demo peek -n 0", "0 is not in the range 1<=x<=10000; -1 shows all that can be shown", 2),
    ("jobq sb://mynamespace/q worker --visibility-timeout 10m", "a lock of Service Bus lasts 5 minutes at most", 3),
    ("jobq demo push --resume monday --dedup-by-content tasks.txt", "leave out --dedup-by-content", 2),
    ("jobq worker demo", "which queue? Write `jobq QUEUE worker ...`, as in `jobq demo worker`", 2),
    ("jobq create demo", "which queue? Write `jobq QUEUE create ...`, as in `jobq demo create`", 2),
    ("jobq push demo tasks.txt", "which queue? Write `jobq QUEUE push ...`, as in `jobq demo push`", 2),
    ("jobq dead list demo", "which queue? Write `jobq QUEUE dead list ...`, as in `jobq demo dead list`", 2),
    ("jobq config demo", "Got unexpected extra argument (demo)", 2),
    ("JOBQ_QUEUE=demo jobq size demo", "Got unexpected extra argument (demo)", 2),
    ("JOBQ_STORAGE=acct jobq size", "or set JOBQ_QUEUE; JOBQ_STORAGE names an account alone", 2),
    ("jobq demo status", "Missing argument 'ID...'. `size`, `stats` and `ps` are about the whole queue.", 2),
    ("jobq demo stop", "no such command 'stop'; did you mean 'cancel' or 'pause'?", 2),
    ("jobq demo kill 01a2", "no such command 'kill'; did you mean 'cancel'?", 2),
    ("jobq demo info", "did you mean 'size', 'stats' or 'status'?", 2),
    ("jobq demo purge", "did you mean 'clear', 'dead purge' or 'delete'?", 2),
    ("jobq demo retry", "did you mean 'dead retry'?", 2),
    ("jobq demo dead clear", "did you mean 'purge'?", 2),
    ("jobq demo tail", "did you mean 'logs'?", 2),
    ("jobq demo watch", "did you mean 'top'?", 2),
    ("jobq demo show 01a2", "did you mean 'status', 'peek' or 'dead show'?", 2),
    ("jobq run --resume-failed", "--resume-failed needs --queue-file", 2),
    ("jobq demo worker -n four", "'four' is not a number from 1 to 4096", 2),
    ("jobq demo worker -n 0", "'0' is not a number from 1 to 4096", 2),
    ("jobq demo worker", "queue 'demo' does not exist; the first push makes it, or `jobq demo create`", 4),
    ("JOBQ_QUEUE=demo jobq size", "the first push makes it, or `jobq create`", 4),
    ("jobq sqlite://a.db/demo size --json", "the first push makes it, or `jobq sqlite://a.db/demo create`", 4),
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
    ("jobq sqlite:///hoem/me/jobs.db/demo push -c true", "the folder /hoem/me does not exist; if that is no slip", 3),
    ("jobq sqlite://no/where/jobs.db/demo create", "does not exist; if that is no slip, make it: mkdir -p no/where", 3),
    ("jobq sqlite://no/where/jobs.db/demo size", "the folder no/where does not exist; if that is no slip, make", 4),
    ("jobq sb://space/q", "no command after 'sb://space/q', which is taken for the queue", 2),
    ("jobq demo:push -c true", "no such command 'demo:push'; did you mean 'push'?", 2),
    ("jobq http://127.0.0.1:8000 size", "its last part is the queue, as in http://127.0.0.1:8000/demo", 3),
    ("jobq https://acct.queue.core.windows.net/jobs size", "did you mean acct/jobs?", 3),
    (
        "AZURE_TOKEN_CREDENTIALS=EnvironmentCredential jobq data/jobs push -c true",
        "data/jobs is a Storage Queue, and a queue in a file would be sqlite://data/jobs.db/demo",
        3,
    ),
    ("jobq ftp://x/demo push -c true", "no installed backend serves ftp://; known here:", 3),
    ("jobq postgresql://me:secret@h/d/q size", "a password does not belong into a queue spec", 3),
    ("jobq memory://here/demo push -c true", "memory:// lives in one process and ends with this command", 3),
    ("jobq 'a b' push -c true", "'a b' is not a queue name, or a spec that ends in one", 3),
    ("jobq Acct/q push -c true", "is not the name of a storage account: 3 to 24 lower-case letters and digits", 3),
    ("jobq run nothing.txt", "cannot read nothing.txt: No such file or directory", 2),
    ("jobq demo push tasks.txt", "cannot read tasks.txt: No such file or directory", 2),
    ("jobq demo worker --concurrency 4", "No such option '--concurrency'", 2),
    ("jobq config --chnged", "No such option '--chnged'", 2),
    ("jobq demo push -c true --timeout 0", "Invalid value for '--timeout': must be more than 0", 2),
    ("jobq demo fanout n --lines f --timeout 0s -c true", "Invalid value for '--timeout': must be more than 0", 2),
    ("jobq demo push -c true --timeout abc", "'abc' is not a duration; write a number with ms, s, m, h, d or w", 2),
    ("jobq demo push -c ''", "it is empty", 2),
    ("jobq demo push -c true --env NOPE", "there is no such variable here; write NOPE=VALUE", 2),
    ("jobq demo push -c true --on-exit 3=maybe", "'maybe' is neither retry, nor fail, nor delay: with a duration", 2),
    ("jobq demo push --call foo", "'foo' must name a function as package.module:function", 2),
    ("jobq demo push -c true --wait-timeout 3s", "--wait-timeout goes with --wait", 2),
    ("jobq demo push -c echo hi", "cannot read hi: No such file or directory; -c takes a whole command as one word", 2),
    ("jobq demo push -c echo hi you", "extra argument (you); -c takes a whole command as one word: -c 'echo hello'", 2),
    ("jobq demo fanout s --lines nofile -- wc {line}", "cannot read nofile: No such file or directory", 2),
    ("jobq demo push --", "no program after `--`", 2),
    ("jobq demo push -c true --id 'b c'", "id: must be 1 to 100 letters, digits or", 2),
    ("jobq demo worker --memory-limit 5", "too little for any program; was a unit left out, as in 5M?", 3),
    ("jobq demo worker --log-format jsn", "'jsn' is not one of", 2),
    ("jobq demo logs", "Missing argument 'ID'", 2),
    ("jobq demo logs 01a2", "queue 'demo' does not exist", 4),
    ("jobq demo cancel 01a2", "queue 'demo' does not exist", 4),
    ("jobq demo ps", "queue 'demo' does not exist", 4),
    ("jobq demo stats", "queue 'demo' does not exist", 4),
    ("jobq demo clear --yes", "queue 'demo' does not exist", 4),
    ("jobq demo clear", "there is no terminal to ask on; add --yes", 2),
    ("jobq demo run tasks.txt", "run has a queue of its own: write `jobq run ...`", 2),
    ("jobq run -c 'echo hi'", 'uses none of its arguments, so all jobs would be the same: write "$ARG_1" where', 2),
    ("jobq run -c 'echo hi'", "commands by themselves come from a FILE or a pipe: echo 'echo hello' | jobq run", 2),
    ("jobq run python train.py", "unexpected extra argument", 2),
    ("jobq run 'echo hi'", "cannot read echo hi: No such file or directory; commands come from a FILE or a pipe", 2),
    ("jobq run --resume", "--resume needs --queue-file", 2),
    ("jobq demo lease run nightly", "which program? Write it after `--`", 2),
    ("jobq demo dead lst", "no such command 'lst'; did you mean 'list'?", 2),
    ("jobq --quiet --verbose demo size", "--quiet and --verbose contradict each other", 2),
]


# On a queue with tasks and a dead letter, see `filled`.
TYPED_LATER: list[tuple[str, str, int]] = [
    ("jobq demo push --id train-1 -c 'echo one'", "queued 0 tasks on demo; 1 was there already, and nothing", 0),
    ("jobq demo push --id train-1 -c 'echo two'", "task id 'train-1' is taken by a task with another payload", 1),
    ("jobq demo push --id train-2 -c 'echo two'", "queued 1 task on demo", 0),
    ("jobq demo push named.txt", "queued 1 task on demo; 1 was there already, and nothing was changed", 0),
    ("jobq demo push bad.txt", "go on behind it with: tail -n +3 bad.txt | jobq demo push -", 2),
    ("jobq demo push same.txt", "tasks such as those of same.txt wait on demo already", 0),
    ("jobq demo push same.txt -q", "", 0),
    ("jobq demo push --resume s1 same.txt", "queued 1 task on demo", 0),
    ("jobq run --queue-file run.db same.txt", "1 done, 0 failed in", 0),
    ("jobq run --queue-file run.db same.txt", "; the queue is kept: sqlite://run.db/run", 0),
    ("jobq demo push list.json", "list.json, line 1: JSON in a list; jq -c '.[]' FILE writes one object a line", 2),
    ("jobq demo push lines.json", "line 1: JSON in a list; jq -c '.[]' FILE writes one object a line", 2),
    ("jobq demo push object.json", "line 1: JSON over several lines; jq -c . FILE writes one object a line", 2),
    ("jobq demo push script.sh", "script.sh begins as a script does (#!), and each of its lines becomes a task", 0),
    ("jobq demo peek", "train-12 0 echo twelve", 0),
    ("jobq demo peek --full", "train-12 0 echo twelve", 0),
    ("jobq demo peek -n 0", "0 is not in the range", 2),
    ("jobq demo ps", "nothing runs", 0),
    ("jobq demo ps --full", "nothing runs", 0),
    ("jobq demo status train-", "train- is a part of several ids: train-1, train-12", 2),
    ("jobq demo status rain-12", "rain-12 is train-12", 0),
    ("jobq demo status train-1", "state: ready", 0),
    ("jobq demo status nothing", "no task with the id nothing is known", 4),
    ("jobq demo logs ain-12", "ain-12 is train-12", 0),
    ("jobq demo logs in-1", "in-1 is a part of several ids", 2),
    ("jobq demo cancel ain-12", "no task with the id ain-12 is known", 4),
    ("jobq demo cancel gone-task", "gone-task was canceled already", 0),
    ("jobq demo cancel gone-task", "canceled 0 tasks that waited", 0),
    ("jobq demo cancel train", "no task with the id train is known", 4),
    ("jobq demo cancel", "give the IDs of tasks, or --where, or --all; one of them", 2),
    ("jobq demo cancel --all", "there is no terminal to ask on; add --yes", 2),
    ("jobq demo dead list", "failed 4 times; last: exit code 3 exit 3", 0),
    ("jobq demo dead list --full", "failed 4 times; last: exit code 3 exit 3", 0),
    ("jobq demo dead show lost", "description: failed 4 times; last: exit code 3", 0),
    ("jobq demo dead show los", "no dead letter with the id los", 4),
    ("jobq demo dead show lost-ta", "lost-ta is lost-task", 0),
    ("jobq demo dead retry lost", "no dead letter with the id lost", 4),
    ("jobq demo dead purge lost", "no dead letter with the id lost", 4),
    ("jobq demo dead retry", "give the IDs of dead letters (`dead list` shows them), or --all", 2),
    ("jobq demo cancel --where command=echo", "nothing is exactly so; * stands for anything", 0),
    ("jobq demo stats", "attempts ended in the last 1h: none", 0),
    ("jobq queues", "demo empty", 0),
    ("jobq demo delete", "demo holds 2 tasks and 1 dead letter; --force deletes it all the same", 2),
    ("jobq empty delete", "queue empty is deleted", 0),
    ("jobq deom worker", "queue 'deom' does not exist (did you mean 'demo'?); the first push makes it, or", 4),
    ("jobq nothing-here queues", "demo empty", 0),
    ("jobq demo size", "visible leased scheduled dead 2 0 0 1", 0),
    (
        "jobq empty worker --visibility-timeout 5s",
        "a lease of 5s is shorter than 10s; raise --visibility-timeout to 10s",
        3,
    ),
    (
        "JOBQ_LOCK_LOST_BEHAVIOR=sigterm jobq empty worker --visibility-timeout 30s",
        "lower JOBQ_LOCK_LOST_GRACE below 9s, or raise --visibility-timeout to 34s",
        3,
    ),
    ("JOBQ_LOCK_LOST_BEHAVIOR=sigterm jobq empty worker --visibility-timeout 34s", "worker stopped", 0),
    ("jobq postgresql://127.0.0.1:1/db/q size", "127.0.0.1:1/db: cannot connect (ConnectionRefusedError: Connect", 75),
    ("jobq postgresql://127.0.0.1:1/db/q size", "Does the server run there, and is its port open to this machine?", 75),
    ("jobq http://127.0.0.1:1/q size", "does `jobq serve` run there, and is its port open to this machine?", 75),
]


@pytest.fixture
def filled(jobq: Jobq) -> Jobq:
    jobq.kill_tasks(Task(id="lost-task", command="exit 3"))
    jobq.fill(
        Task.new(id="train-1", command="echo one", budgets=_AS_PUSHED), Task.new(id="train-12", command="echo twelve")
    )
    jobq.fill(Task(id="gone-task", command="true"))
    jobq.inside(lambda backend: journal_of(backend).cancel(["gone-task"]))
    (jobq.folder / "same.txt").write_text("echo one\n")
    (jobq.folder / "bad.txt").write_text('true\n{"command": 3}\ntrue\n')
    (jobq.folder / "list.json").write_text('[{"cmd": "true"}, {"cmd": "true"}]')
    (jobq.folder / "lines.json").write_text('[\n  {"cmd": "true"}\n]\n')
    (jobq.folder / "object.json").write_text('{\n  "cmd": "true"\n}\n')
    (jobq.folder / "script.sh").write_text("#!/bin/sh\ntrue\n")
    lines = [{"id": "train-1", "command": "echo one"}, {"id": "train-3", "command": "true"}]
    (jobq.folder / "named.txt").write_text("\n".join(map(json.dumps, lines)))

    async def empty(backend: Backend) -> None:
        await backend.create()

    jobq.inside(empty, "empty")
    return jobq


@pytest.mark.parametrize(("typed", "said", "code"), TYPED_LATER, ids=[typed for typed, _, _ in TYPED_LATER])
def test_typed_later(filled: Jobq, typed: str, said: str, code: int) -> None:
    before, after = typed.split("jobq ", 1)
    env = dict(word.split("=", 1) for word in before.split())
    result = filled(*shlex.split(after), env=env, code=code)
    assert said in " ".join((result.out + result.err).split()), result
    assert "Traceback" not in result.err


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


@pytest.mark.parametrize(("typed", "said", "code"), TYPED, ids=[typed for typed, _, _ in TYPED])
def test_typed(jobq: Jobq, typed: str, said: str, code: int) -> None:
    before, after = typed.split("jobq", 1)
    words = [str(Path(word).expanduser()) if word.startswith("~") else word for word in shlex.split(after)]
    result = jobq(*words, env=dict(word.split("=", 1) for word in before.split()), code=code)
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
