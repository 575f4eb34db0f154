"""What `push` accepts, refuses, acknowledges, and how it says where to go on (S1, S8, A7)."""

import os
import pty
import re
import select
import shlex
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing

import pytest

from jobq.errors import MalformedTask
from jobq.submit.input_lines import LineCutter, TaskOptions
from jobq.task import Task
from tests.cli.conftest import Jobq, eventually
from tests.cli.terminals import read_to_end


def test_commands_are_acknowledged_in_order(jobq: Jobq) -> None:
    result = jobq("demo", "push", "-c", "echo 1", "-c", "echo 2", "--ids")
    assert result.lines == [task.id for task in jobq.waiting()]
    assert jobq.commands() == ["echo 1", "echo 2"]
    assert result.err == "created queue demo\nqueued 2 tasks on demo\n"


def test_json_ids(jobq: Jobq) -> None:
    assert [set(line) for line in jobq("demo", "push", "-c", "true", "-c", "false", "--json").objects] == [{"id"}] * 2


def test_program_after_two_dashes(jobq: Jobq) -> None:
    jobq("demo", "push", "--priority", "2", "--", "prog", "-c", 'it\'s "quoted"', "--", "-x", "")
    (task,) = jobq.waiting()
    assert task.argv == ("prog", "-c", 'it\'s "quoted"', "--", "-x", "")
    assert task.priority == 2


def test_file_with_commands_comments_and_objects(jobq: Jobq) -> None:
    file = jobq.folder / 'it\'s a "file" of tasks.txt'
    lines = [
        b"\xef\xbb\xbfecho 1\r",
        b"",
        b"# a comment",
        b"   ",
        b'{"argv": ["prog", "a b"], "id": "named", "env": {"A": "own"}, "budgets": {"retries": 7}, "timeout": 5}',
        b'{"kwargs": {"x": [1, null]}, "priority": 3}',
        b"{ echo a group of the shell; }",
        "echo gr\u00fc\u00dfe".encode(),
    ]
    file.write_bytes(b"\n".join(lines))  # no end after the last
    result = jobq("demo", "push", str(file), "--env", "A=all", "--env", "B=2", "--num-retries", "1", "--timeout", "2m")
    assert "queued 5 tasks on demo" in result.err
    by_priority, *rest = jobq.waiting()
    assert by_priority.kwargs == {"x": [1, None]}
    assert [task.command for task in rest] == ["echo 1", None, "{ echo a group of the shell; }", "echo gr\u00fc\u00dfe"]
    named = rest[1]
    assert (named.id, named.argv, named.timeout) == ("named", ("prog", "a b"), 5)
    assert (named.env, named.budgets.retries) == ({"A": "own", "B": "2"}, 7)
    assert (rest[0].env, rest[0].budgets.retries, rest[0].timeout) == ({"A": "all", "B": "2"}, 1, 120)


def test_stdin_is_read_when_nothing_is_given(jobq: Jobq) -> None:
    jobq("demo", "push", stdin="echo 1\necho 2\n")
    assert jobq.commands() == ["echo 1", "echo 2"]
    assert "queued 0 tasks" in jobq("demo", "push", stdin="").err


def test_options_reach_the_task(jobq: Jobq) -> None:
    (jobq.folder / "there").mkdir()
    jobq(
        *("demo", "push", "-c", "true", "--cwd", "there", "--timeout", "1h30m", "--id", "one", "--env", "SECRET"),
        *("--max-crashes", "5", "--max-preemptions", "6"),
        env={"SECRET": "a=b c", "JOBQ_NUM_RETRIES": "9"},
    )
    (task,) = jobq.waiting()
    assert task.cwd == str(jobq.folder / "there")
    assert (task.timeout, task.id, task.env) == (5400, "one", {"SECRET": "a=b c"})
    assert (task.budgets.retries, task.budgets.crashes, task.budgets.preemptions) == (9, 5, 6)


def test_delay(jobq: Jobq) -> None:
    jobq("demo", "push", "-c", "true", "--delay", "1h")
    assert jobq("demo", "size", "--json").objects == [{"visible": 0, "leased": 0, "scheduled": 1, "dead": 0}]


REFUSALS = {
    ("--timeout", "5x", "-c", "true"): "5x' is not a duration",
    ("--timeout", "0", "-c", "true"): "timeout",
    ("--num-retries", "-1", "-c", "true"): "--num-retries",
    ("-c", ""): "command",
    ("-c", "true", "tasks.txt"): "one word",
    ("-c", "true", "/dev/null"): "one place",
    ("-c", "true", "--", "prog"): "one place",
    ("--",): "no program",
    ("--id", "x", "-c", "true", "-c", "false"): "--id names one task",
    ("--id", "x", "-"): "--id names one task",
    ("--id", "no spaces", "-c", "true"): "id: must be",
    ("--env", "NOT_SET", "-c", "true"): "there is no such variable",
    ("--env", "=x", "-c", "true"): "env",
    ("nowhere.txt",): "cannot read nowhere.txt: No such file",
    (".",): "cannot read .: Is a directory",
}


def test_refusals_queue_nothing(jobq: Jobq) -> None:
    results = jobq.all(*(("demo", "push", *line) for line in REFUSALS), code=2)
    for result, said in zip(results, REFUSALS.values(), strict=True):
        assert said in result.err
        assert "Traceback" not in result.err
    assert not jobq.file.exists()


def test_unreadable_file(jobq: Jobq) -> None:
    file = jobq.folder / "secret.txt"
    file.touch(mode=0o000)
    if os.access(file, os.R_OK):
        pytest.skip("root may read anything")
    assert "cannot read" in jobq("demo", "push", str(file), code=2).err


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"echo \0", "command: holds a NUL byte"),
        (b"echo \xff", "byte 6: not UTF-8"),
        (b'{"command": "x"', "not JSON"),
        (b'{"command": "x", "oops": 1}', "oops: unknown field"),
        (b'{"command": "x", "generation": 1}', "generation: unknown field"),
        (b'{"command": "x", "argv": ["y"]}', "exactly one of"),
        (b'{"command": "x", "command": "y"}', "key stands twice"),
        (b'{"command": "x", "env": 1}', "env"),
        (b"x" * (1024 * 1024 + 1), "at most 1048576 fit"),
        (b"# " + b"x" * (7 * 1024 * 1024), "longer than"),
    ],
)
def test_bad_lines(line: bytes, said: str) -> None:
    cutter = LineCutter()
    ((number, cut), *_) = cutter.feed(line) + cutter.feed(b"")
    assert number == 1
    with pytest.raises(MalformedTask, match=said):
        TaskOptions().task_of_line(cut)


@pytest.mark.parametrize("line", [b"echo \0", b'{"command": "x", "oops": 1}', b"# " + b"x" * (7 * 1024 * 1024)])
def test_bad_line_in_the_middle(jobq: Jobq, line: bytes) -> None:
    file = jobq.folder / "my tasks.txt"
    file.write_bytes(b"echo 1\n\necho 3\n" + line + b"\necho 5\n")
    result = jobq("demo", "push", str(file), "--ids", code=2)
    assert f"{file}, line 4: " in result.err
    assert "the lines before 4 are queued; go on behind it with: tail -n +5 " in result.err
    assert result.lines == [task.id for task in jobq.waiting()]
    assert jobq.commands() == ["echo 1", "echo 3"]


def test_a_bad_first_line_is_to_be_mended(jobq: Jobq) -> None:
    """Nothing is queued, so the file may be pushed as a whole; to go on behind the line would lose it."""
    (jobq.folder / "tasks.txt").write_text('{"args": ["true"]}\ntrue\n')
    said = jobq("demo", "push", "tasks.txt", code=2).err
    assert "; no line is queued: mend it and push again, or go on behind it with: tail -n +2 tasks.txt" in said


def test_the_way_to_go_on_works(jobq: Jobq) -> None:
    file = jobq.folder / "it's here.txt"
    file.write_text("echo 1\nech\0o 2\necho 3\n")
    advice = jobq("demo", "push", str(file), code=2).err.partition("go on behind it with: ")[2].splitlines()[0]
    script = advice.replace("| jobq ", f"| {shlex.join([sys.executable, '-m', 'jobq'])} ")
    subprocess.run(["bash", "-c", script], env=jobq.environment, check=True, capture_output=True)
    assert jobq.commands() == ["echo 1", "echo 3"], "the bad line is not read again"


def test_taken_id_in_the_middle_names_its_line(jobq: Jobq) -> None:
    jobq.fill(Task.new(command="first", id="taken"))
    lines = 'echo 1\n{"command": "second", "id": "taken"}\necho 3\n'
    result = jobq("demo", "push", "-", stdin=lines, code=1)
    assert "standard input, line 2: task id 'taken' is taken" in result.err
    assert jobq.commands() == ["first", "echo 1"]


def test_same_id_again_is_fine(jobq: Jobq) -> None:
    for _ in range(2):
        assert jobq("demo", "push", "-c", "true", "--id", "once", "--ids").lines == ["once"]
    assert jobq.commands() == ["true"]


def test_many_lines_in_batches(jobq: Jobq) -> None:
    count = 2_345
    result = jobq("demo", "push", "--ids", stdin="".join(f"echo {n}\n" for n in range(count)))
    assert f"queued {count} tasks" in result.err
    assert jobq.commands() == [f"echo {n}" for n in range(count)]
    assert result.lines == [task.id for task in jobq.waiting()]


def test_slow_producer_does_not_wait_for_a_full_batch(jobq: Jobq) -> None:
    process = jobq.start("demo", "push", "-", "--ids")
    assert process.stdin is not None
    assert process.stdout is not None
    for n in range(3):
        process.stdin.write(f"echo {n}\n".encode())
        process.stdin.flush()
        began = time.monotonic()
        (id_,) = process.stdout.readline().split()
        assert (
            n == 0 or time.monotonic() - began < 2.0
        )  # about 0.3 s on an idle machine; the first also waits for the start
        assert id_.decode() in {task.id for task in jobq.waiting()}
    process.stdin.close()
    assert process.wait(10) == 0


def test_killed_pusher_loses_no_acknowledged_task(jobq: Jobq) -> None:
    process = jobq.start("demo", "push", "-", "--ids", stdin=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    os.set_blocking(process.stdin.fileno(), False)
    lines = b"".join(b"echo %d\n" % n for n in range(20_000))
    acknowledged = b""
    while acknowledged.count(b"\n") < 1_500:  # somewhere in the third or fourth batch, more on the way
        _, writable, _ = select.select([], [process.stdin], [], 0)
        if writable and lines:
            written = os.write(process.stdin.fileno(), lines[:32_768])
            lines = lines[written:]
        if select.select([process.stdout], [], [], 0.01)[0]:
            acknowledged += os.read(process.stdout.fileno(), 65_536)
    process.send_signal(signal.SIGKILL)
    process.wait()
    acknowledged += process.stdout.read()
    ids = acknowledged.decode().split("\n")[:-1]  # a last one may be cut
    assert set(ids) <= {task.id for task in jobq.waiting()}


def test_reader_of_ids_may_leave(jobq: Jobq) -> None:
    file = jobq.folder / "tasks.txt"
    file.write_text("echo\n" * 3000)
    command = f"{sys.executable} -m jobq demo push {file} --ids | head -1; echo ${{PIPESTATUS[0]}}"
    completed = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, env=jobq.environment, check=True
    )
    assert completed.stdout.splitlines()[-1] == "0"
    assert completed.stderr == "created queue demo\nqueued 3000 tasks on demo\n"


def test_nothing_given_on_a_terminal(jobq: Jobq) -> None:
    ours, theirs = pty.openpty()
    try:
        process = jobq.start("demo", "push", stdin=theirs)
        assert process.wait(10) == 2
        assert process.stderr is not None
        assert b"nothing to queue: give -c" in process.stderr.read()
    finally:
        os.close(ours)
        os.close(theirs)


def test_progress_only_on_a_terminal(jobq: Jobq) -> None:
    ours, theirs = pty.openpty()
    try:
        process = jobq.start("demo", "push", "-", stderr=theirs, env={"TERM": "xterm"})
        os.close(theirs)
        assert process.stdin is not None
        process.stdin.write(b"".join(b"echo %d %b\n" % (n, b"x" * 200) for n in range(5000)))
        process.stdin.close()
        shown = read_to_end(ours)
        assert process.wait(10) == 0
    finally:
        os.close(ours)
    assert b"queueing" in shown
    assert b"queued 5000 tasks on demo" in shown


def test_a_big_file_has_a_bar_with_its_rate_and_the_time_left(jobq: Jobq) -> None:
    (jobq.folder / "tasks.txt").write_text("".join(f"echo {number}\n" for number in range(20_000)))
    ours, theirs = pty.openpty()
    try:
        process = jobq.start("demo", "push", "tasks.txt", stderr=theirs, env={"TERM": "xterm", "COLUMNS": "200"})
        os.close(theirs)
        shown = read_to_end(ours)
        assert process.wait(10) == 0
    finally:
        os.close(ours)
    assert re.search(rb"\d+ tasks, [0-9,]+/s, \S+ left", shown)
    assert b"queued 20000 tasks on demo" in shown


def test_two_pushers_at_once_make_the_queue_once(jobq: Jobq) -> None:
    processes = [jobq.start("demo", "push", "-c", "true") for _ in range(3)]
    assert [process.wait(20) for process in processes] == [0, 0, 0]
    eventually(lambda: len(jobq.waiting()) == 3)


def test_an_id_whose_time_is_over_was_not_there_already(jobq: Jobq) -> None:
    """It was queued, and the push said that nothing was changed."""
    for given, stdin in ((("--id", "monthly", "-c", "true"), ""), (("-",), '{"id": "other", "command": "true"}\n')):
        jobq("demo", "push", *given, stdin=stdin)
        jobq("demo", "worker")
        assert "queued 0 tasks on demo; 1 was there already" in jobq("demo", "push", *given, stdin=stdin).err
        with closing(sqlite3.connect(jobq.file, isolation_level=None)) as database:
            database.execute("UPDATE task SET finished_at = finished_at - 31 * 86400")
        assert jobq("demo", "push", *given, stdin=stdin).err == "queued 1 task on demo\n"
        jobq("demo", "worker")
