"""Which queue, which command, what becomes of errors (architecture 3, 10, 12)."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import click
import pytest

from jobq.cli.main import cli
from tests.cli.conftest import Jobq

HEAVY = {"azure", "aiohttp", "psutil", "pydantic", "rich"}
NEVER_FOR_HELP = HEAVY | {"sqlite3", "jobq.task", "jobq.settings"}
BRIEF = (["size"], ["peek"], ["push", "-c", "true"], ["dead", "list"], ["ps"], ["stats"], ["queues"], ["create"])


@pytest.mark.parametrize("command", [None, *cli.list_commands(click.Context(cli))])
def test_help_imports_nothing_heavy(jobq: Jobq, command: str | None) -> None:
    heavy = NEVER_FOR_HELP if command else NEVER_FOR_HELP | {"asyncio"}
    assert not _imported(jobq, *(["demo", command] if command else []), "--help") & heavy


@pytest.mark.parametrize("words", BRIEF, ids=" ".join)
def test_short_commands_start_no_event_loop(jobq: Jobq, words: list[str]) -> None:
    jobq("demo", "create")
    assert not _imported(jobq, "demo", *words) & (HEAVY | {"asyncio"})


def _imported(jobq: Jobq, *words: str) -> set[str]:
    completed = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "jobq", *words],
        capture_output=True,
        text=True,
        env=jobq.environment,
        check=True,
    )
    imported = {line.rpartition("|")[2].strip() for line in completed.stderr.splitlines() if "|" in line}
    assert "jobq.cli.main" in imported
    return imported


def test_help_in_every_place(jobq: Jobq) -> None:
    usage_of = {
        ("demo", "--help"): "Usage: jobq demo COMMAND",
        ("push", "--help"): "Usage: jobq [QUEUE] push",
        ("demo", "push", "--help"): "Usage: jobq demo push",
        ("acct/q", "worker", "-h"): "Usage: jobq acct/q worker",
        ("demo", "dead", "retry", "--help"): "Usage: jobq demo dead retry",
        ("--help",): "Usage: jobq [QUEUE] COMMAND",
    }
    for result, usage in zip(jobq.all(*usage_of, code=0), usage_of.values(), strict=True):
        assert result.out.startswith(usage)
        assert "Examples:" in result.out
        assert result.err == ""


def test_version(jobq: Jobq) -> None:
    assert jobq("--version").out == "jobq 0.1.0\n"


def test_console_script_is_the_same(jobq: Jobq) -> None:
    script = Path(sys.executable).with_name("jobq")
    completed = subprocess.run([script, "--version"], capture_output=True, env=jobq.environment, check=True)
    assert completed.stdout == b"jobq 0.1.0\n"


def test_unknown_command_suggests(jobq: Jobq) -> None:
    result = jobq("demo", "wroker", code=2)
    assert "no such command 'wroker'; did you mean 'worker'?" in result.err
    assert "did you mean 'list'?" in jobq("demo", "dead", "lst", code=2).err


@pytest.mark.parametrize("arguments", [[], ["demo"], ["wroker"]])
def test_without_a_command_the_help_is_shown(jobq: Jobq, arguments: list[str]) -> None:
    result = jobq(*arguments, code=2)
    assert ("Usage: jobq" in result.err) == (not arguments), "what is missing is said, not all that there is"
    assert ("did you mean 'worker'?" in result.err) == (arguments == ["wroker"])


def test_a_group_alone_and_a_missing_choice_are_told_in_plain_lines(jobq: Jobq) -> None:
    alone, helped = jobq("demo", "dead", code=2), jobq("demo", "dead", "--help")
    assert (alone.out, alone.err) == ("", helped.out)
    said = jobq("completion", code=2).err
    assert said.startswith("jobq: Missing argument '{bash|zsh|fish}'. Choose from: bash, zsh, fish\n")


def test_queue_from_the_environment(jobq: Jobq) -> None:
    jobq("push", "-c", "echo 1", env={"JOBQ_QUEUE": "demo"})
    assert jobq.commands() == ["echo 1"]
    jobq("other", "push", "-c", "echo 2", env={"JOBQ_QUEUE": "demo"})  # the command line wins
    assert jobq("size", "--json", env={"JOBQ_QUEUE": "other"}).objects[0]["visible"] == 1


def test_no_queue_at_all(jobq: Jobq) -> None:
    for result, command in zip(jobq.all(["worker"], ["dead", "list"], code=2), ["worker", "dead list"], strict=True):
        assert "JOBQ_QUEUE" in result.err
        assert f"jobq demo {command}" in result.err


def test_specs_that_cannot_work(jobq: Jobq) -> None:
    said_of = {
        "nope://x/demo": "no installed backend serves nope://",
        "bad name!": "is not a queue name",
        "sqlite:///demo": "names no file",
        "postgresql://me:hunter2@db/x/demo": "password",
    }
    results = jobq.all(*([spec, "size"] for spec in said_of), code=3)
    for result, said in zip(results, said_of.values(), strict=True):
        assert said in result.err
        assert result.err.startswith("jobq: ")
        message, more = result.err.splitlines()
        assert message.startswith("jobq: ")
        assert more.startswith("More: jobq help "), "a line for where to read on"
        assert "hunter2" not in result.err
    assert "does not exist" in jobq("demo", "size", code=4).err


def test_usage_errors_show_no_password(jobq: Jobq) -> None:
    spec = "postgresql://me:hunter2@db/x/demo"
    for result in jobq.all([spec], [spec, "size", "--oops"], [spec, "wroker"], code=2):
        assert "hunter2" not in result.out + result.err


def test_errors_as_json(jobq: Jobq) -> None:
    missing = jobq("demo", "size", "--json", code=4)
    assert missing.error["message"]
    assert missing.error | {"message": ""} == {
        "error": "QueueNotFound",
        "message": "",
        "exit_code": 4,
        "topic": "queue-not-found",
    }
    assert jobq("demo", "size", "--json", "--foo", code=2).error["error"] == "UsageError"


def test_bad_variable_names_it(jobq: Jobq) -> None:
    assert "JOBQ_NUM_WORKERS" in jobq("demo", "worker", env={"JOBQ_NUM_WORKERS": "0"}, code=3).err


def test_unexpected_exception_says_whose_bug(jobq: Jobq) -> None:
    program = "from jobq.cli import main\nfrom jobq.cli.commands import queue\nqueue.with_queue = 1\nmain.main()"
    completed = subprocess.run(
        [sys.executable, "-c", program, "demo", "size"],
        capture_output=True,
        text=True,
        env=jobq.environment,
        check=False,
    )
    assert completed.returncode == 1
    assert "Traceback" in completed.stderr
    assert "this is a bug in jobq" in completed.stderr


def test_windows_is_refused(jobq: Jobq) -> None:
    program = "import sys\nfrom jobq.cli import main\nsys.platform = 'win32'\nmain.main()"
    completed = subprocess.run(
        [sys.executable, "-c", program, "--help"], capture_output=True, text=True, env=jobq.environment, check=False
    )
    assert completed.returncode == 3
    assert "Windows is not supported" in completed.stderr


@pytest.mark.parametrize("locale", ["C", "POSIX", "en_US.ISO-8859-1"])
def test_any_locale(jobq: Jobq, locale: str) -> None:
    env = {"LC_ALL": locale, "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    jobq("demo", "push", "-", stdin="echo gr\u00fc\u00dfe \u2713\n", env=env)
    assert jobq.commands() == ["echo gr\u00fc\u00dfe \u2713"]
    jobq("demo", "peek", env=env)


def test_undecodable_argument(jobq: Jobq) -> None:
    for words in (
        (b"-c", b"echo \xff"),
        (b"--", b"echo", b"\xff"),
        (b"--env", b"\xff=1", b"-c", b"env"),
        (b"--env", b"A=\xff", b"-c", b"env"),
    ):
        error = jobq("demo", "push", *words, code=2).err
        assert error.endswith("holds bytes that are not UTF-8\nMore: jobq help malformed-task\n"), error
    result = jobq("demo", "push", "-c", b"echo \xff", code=2)
    assert "command" in result.err
    assert "Traceback" not in result.err
    assert jobq(b"\xff", "size", code=3).err.startswith("jobq: ")


def test_reader_that_leaves_is_no_error(jobq: Jobq) -> None:
    jobq("demo", "push", "-", stdin="".join(f"echo {n} {'x' * 90}\n" for n in range(3000)))
    command = f"{sys.executable} -m jobq demo peek -n 3000 | head -1; echo ${{PIPESTATUS[0]}}"
    completed = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, env=jobq.environment, check=True
    )
    assert completed.stderr == ""
    assert completed.stdout.splitlines()[-1] == "0"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_full_disk_behind_stdout_is_told(jobq: Jobq) -> None:
    jobq("demo", "create")
    full = os.open("/dev/full", os.O_WRONLY)
    try:
        assert "cannot write to standard output" in jobq("demo", "size", stdout=full, code=1).err
    finally:
        os.close(full)


def test_closed_standard_streams(jobq: Jobq) -> None:
    command = f"exec {sys.executable} -m jobq demo push -c 'echo hi' --ids <&- >&- 2>&-"
    subprocess.run(["bash", "-c", command], env=jobq.environment, check=True)
    assert jobq.commands() == ["echo hi"]


def test_interrupt(jobq: Jobq) -> None:
    process = jobq.start("demo", "push", "-")
    assert process.stdin is not None
    assert process.stderr is not None
    process.stdin.write(b"echo 1\n")
    process.stdin.flush()
    assert process.stderr.readline() == b"created queue demo\n"  # it has read, and soon waits for more
    process.send_signal(signal.SIGINT)
    assert process.wait(10) == 130
    assert b"Traceback" not in process.stderr.read()


def test_no_color_and_force_color(jobq: Jobq) -> None:
    assert "\x1b[31m" in jobq("demo", "size", env={"FORCE_COLOR": "1"}, code=4).err
    assert "\x1b" not in jobq("demo", "size", env={"FORCE_COLOR": "1", "NO_COLOR": "1"}, code=4).err
    assert "\x1b" not in jobq("demo", "size", code=4).err


def test_completion_knows_commands_behind_a_queue(jobq: Jobq) -> None:
    env = {"_JOBQ_COMPLETE": "bash_complete", "COMP_WORDS": "jobq demo wo", "COMP_CWORD": "2"}
    assert "plain,worker" in jobq(env=env, code=None).out


def test_memory_is_refused(jobq: Jobq) -> None:
    """What is pushed there would be gone with the command: a queued task that nobody can run (S1)."""
    result = jobq("memory://x/y", "push", "-c", "true", code=3)
    assert jobq("Memory://x/y", "push", "-c", "true", code=3) == result
    assert "one process" in result.err


def test_the_version_is_told_in_less_than_five_times_a_bare_python(jobq: Jobq) -> None:
    """The smallest of nine, by turns: a busy machine slows both."""
    script = str(Path(sys.executable).with_name("jobq"))
    took: dict[str, list[float]] = {"bare": [], "jobq": []}
    for _ in range(9):
        for side, argv in (("bare", [sys.executable, "-c", "pass"]), ("jobq", [script, "--version"])):
            began = time.perf_counter()
            subprocess.run(argv, env=jobq.environment, check=True, capture_output=True)
            took[side].append(time.perf_counter() - began)
    assert min(took["jobq"]) < 5 * min(took["bare"]), took
