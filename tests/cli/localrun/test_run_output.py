"""What `jobq run` does with what jobs print, and when it ends early or starts nothing."""

import os
import pty
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from jobq.cli.display.passthrough_log import PassthroughLog
from jobq.cli.localrun.halting import Halt
from jobq.cli.localrun.job_output import JobOutput
from jobq.run.worker.start_gate import StartGate
from jobq.settings import Settings
from tests.cli.conftest import Jobq, eventually
from tests.cli.terminals import read_to_end
from tests.guardian.stage import worker_below

pytestmark = [pytest.mark.check, pytest.mark.usefixtures("leaves_nothing")]


def ordered(count: int) -> JobOutput:
    output = JobOutput(PassthroughLog(echo="nowhere"), int, in_order=True)
    output.expect(range(1, count + 1))
    return output


def test_output_comes_in_the_order_of_the_input(jobq: Jobq) -> None:
    """The first job waits until all others have ended."""
    command = (
        "test $ARG_1 = 1 && while [ $(ls ended | wc -l) -lt 5 ]; do sleep 0.05; done; echo $ARG_1; touch ended/$ARG_1"
    )
    (jobq.folder / "ended").mkdir()
    result = jobq("run", "-k", "-n", "3", "-c", command, ":::", *"123456")
    assert result.lines == list("123456")


def test_the_first_job_of_an_ordered_run_is_shown_as_it_prints(jobq: Jobq) -> None:
    process = jobq.start("run", "-k", "-c", "echo $ARG_1; while [ ! -e go ]; do sleep 0.05; done", ":::", "1", "2")
    assert process.stdout is not None
    assert process.stdout.readline() == b"1\n"
    (jobq.folder / "go").touch()
    assert process.stdout.read() == b"2\n"
    assert process.wait(20) == 0


def test_output_is_kept_together(jobq: Jobq) -> None:
    command = "for i in 1 2 3 4; do echo $ARG_1; sleep 0.02; done"
    lines = jobq("run", "--group", "-n", "4", "-c", command, ":::", *"abcdefgh").lines
    assert len(lines) == 32
    assert all(len(set(lines[start : start + 4])) == 1 for start in range(0, 32, 4))


def test_lines_before_a_blank_or_own_id_are_in_order_too(jobq: Jobq) -> None:
    lines = ["sleep 0.3; echo 1", "", "# no", '{"command": "echo 4", "id": "own"}', "echo 5"]
    assert jobq("run", "-k", "-n", "3", stdin="\n".join(lines)).lines == ["1", "4", "5"]


def test_a_job_that_comes_twice_holds_up_no_output(jobq: Jobq) -> None:
    """Its second place waited for ever, and all output behind it for the end."""
    twice = '{"command": "echo once", "id": "own"}'
    process = jobq.start("run", "-k")
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"{twice}\n{twice}\necho next; while [ ! -e go ]; do sleep 0.05; done\n".encode())
    process.stdin.close()
    assert process.stdout.readline() == b"once\n"
    assert process.stdout.readline() == b"next\n"
    (jobq.folder / "go").touch()
    assert process.wait(20) == 0


def test_what_a_retried_job_prints_stays_in_its_place(jobq: Jobq) -> None:
    first = "echo try; test -e again || { touch again; exit 1; }"
    result = jobq("run", "-k", "-n", "2", "--num-retries", "1", "--backoff", "0s", stdin=f"{first}\necho last\n")
    assert result.lines == ["try", "try", "last"]


def test_an_interrupted_ordered_run_prints_what_there_is(jobq: Jobq) -> None:
    command = "echo $ARG_1; touch at-$ARG_1; test $ARG_1 = 2 || exec sleep 60"
    process = jobq.start("run", "-k", "-n", "3", "-c", command, ":::", "1", "2", "3")
    eventually(lambda: all((jobq.folder / f"at-{job}").exists() for job in "123"))
    process.send_signal(signal.SIGINT)
    assert process.stdout is not None
    assert process.stdout.read() == b"1\n2\n3\n"
    assert process.wait(30) == 130


def test_much_output_behind_a_slow_job_needs_little_memory(jobq: Jobq) -> None:
    big = "head -c 40000000 /dev/zero | tr '\\0' x | fold -w 100"
    process = jobq.start("run", "-k", "-n", "2", stdout=subprocess.DEVNULL)
    assert process.stdin is not None
    process.stdin.write(f"while [ ! -e go ]; do sleep 0.05; done\n{big}\n{big}; touch printed\n{big}\n".encode())
    process.stdin.close()
    eventually((jobq.folder / "printed").exists)
    status = Path(f"/proc/{worker_below(process.pid)}/status").read_text()
    peak = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
    assert peak < 150_000, "kB; 80 MB wait in files"
    (jobq.folder / "go").touch()
    assert process.wait(60) == 0


async def test_nothing_new_starts_while_too_much_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobq.cli.localrun.job_output.MOST_WAITING_BYTES", 100)
    output = ordered(3)
    gate = StartGate((lambda: output.too_full(is_busy=True),))
    output.on_bytes["stdout"]("2", b"x" * 95)
    assert gate.closed_by() == ""
    output.on_bytes["stderr"]("2", b"")
    assert "105 bytes of output wait to be printed" in gate.closed_by()


async def test_what_is_to_be_printed_first_may_always_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """It had failed, and was to run again: nothing ever started, and nothing was ever printed."""
    monkeypatch.setattr("jobq.cli.localrun.job_output.MOST_WAITING_BYTES", 100)
    output = ordered(3)
    output.ended("1", is_last=False)
    output.on_bytes["stdout"]("2", b"x" * 200)
    output.ended("2", is_last=True)
    assert output.too_full(is_busy=True)
    assert not output.too_full(is_busy=False)
    output.on_bytes["stdout"]("1", b"y")
    assert output.too_full(is_busy=False), "who reads this is slow"


def test_a_retry_is_no_end_of_an_ordered_run(jobq: Jobq) -> None:
    jobq.folder.joinpath("small.py").write_text(
        "import sys, jobq.cli.localrun.job_output as o; o.MOST_WAITING_BYTES = 1000\n"
        "from jobq.cli.main import main; sys.argv[0] = 'jobq'; main()\n"
    )
    first = "test -e again || { touch again; exit 1; }; echo first"
    process = subprocess.run(
        [sys.executable, "small.py", "run", "-k", "-n", "1", "--num-retries", "1", "--backoff", "1s"],
        input=f"{first}\nseq 1000\necho last\n".encode(), cwd=jobq.folder, env=jobq.environment,
        capture_output=True, timeout=60, check=True,
    )  # fmt: skip
    lines = process.stdout.split()
    assert (lines[0], lines[1], lines[-1], len(lines)) == (b"first", b"1", b"last", 1002)


async def test_output_that_cannot_be_kept_is_no_success(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was lost with a traceback, what had been kept with it, and nothing was printed any more."""
    monkeypatch.setattr("jobq.cli.localrun.job_output.MEMORY_BYTES", 100)
    said: list[str] = []
    monkeypatch.setattr(PassthroughLog, "say", lambda _self, text, _level=0: said.append(text))
    printed: list[bytes] = []
    monkeypatch.setattr(PassthroughLog, "on_bytes", {"stdout": lambda _id, piece: printed.append(piece)})
    output = ordered(2)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        for number in range(30):
            output.on_bytes["stdout"]("2", b"%095d" % number)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert output.lost == 20 * 95
    assert output.too_full(is_busy=True)
    assert len(said) == 1
    output.on_bytes["stdout"]("2", b"behind")
    assert not output.too_full(is_busy=True)
    output.ended("1", is_last=True)
    output.ended("2", is_last=True)
    await output.finish()
    assert printed == [*(b"%095d" % number for number in range(10)), b"behind"]


def test_what_is_printed_fills_no_disk(jobq: Jobq) -> None:
    """The first job of an ordered run is printed as it comes: its file grew for as long as it ran."""
    process = jobq.start("run", "-k", "-c", "seq $ARG_1; touch all; sleep 60", ":::", "3000000")
    assert process.stdout is not None
    read = 0
    while read < 22_888_896:
        got = process.stdout.read1(1 << 20)  # type: ignore[attr-defined]
        assert got
        read += len(got)
    eventually((jobq.folder / "all").exists)
    held = [
        each.stat().st_size
        for each in Path(f"/proc/{worker_below(process.pid)}/fd").iterdir()
        if each.is_file() and "deleted" in str(each.readlink()) and "jobq-run" not in str(each.readlink())
    ]
    assert sum(held) < 1_000_000
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 130


def test_halt_when_enough_have_failed(jobq: Jobq) -> None:
    command = ("--", "sh", "-c", 'exit "$1"', "sh")
    result = jobq("run", "--halt", "soon,fail=2", *command, ":::", "1", "0", "1", "1", "1", code=1)
    assert "1 done, 2 failed, 2 left in " in result.err
    assert "ended by --halt soon,fail=2" in result.err
    result = jobq("run", "--halt", "soon,success=1", *command, ":::", "1", "0", "1", code=0)
    assert "1 done, 1 failed, 1 left in " in result.err
    result = jobq("run", "--halt", "soon,done=2", *command, ":::", "0", "0", "0", code=1)
    assert "2 done, 0 failed, 1 left in " in result.err


def test_halt_now_ends_what_runs_and_what_ignores_it(jobq: Jobq) -> None:
    command = (
        'if [ $ARG_1 = 1 ]; then while [ ! -e up ]; do sleep 0.05; done; exit 3; fi; trap "" TERM; touch up;'
        " sleep 60 & wait; sleep 60"
    )
    began = time.monotonic()
    result = jobq(
        "run", "-n", "2", "--stop-grace", "0.3s", "--halt", "now,fail=1", "-c", command, ":::", "1", "2", code=1
    )
    assert time.monotonic() - began < 20
    assert "0 done, 1 failed, 1 left in " in result.err


@pytest.mark.parametrize(
    ("text", "done", "failed", "is_reached"),
    [
        ("soon,fail=2", 5, 1, False),
        ("soon,fail=2", 0, 2, True),
        ("now,success=3", 3, 0, True),
        ("now,done=3", 1, 1, False),
        ("now,done=3", 1, 2, True),
    ],
)
def test_conditions(text: str, done: int, failed: int, is_reached: bool) -> None:
    halt = Halt.of(text)
    assert halt is not None
    assert str(halt) == f"--halt {text}"
    assert halt.is_reached(done, failed) is is_reached


@pytest.mark.parametrize("text", ["", "soon", "now,fail", "soon,fail=0", "later,fail=1", "now,fail=10%", "now,lost=1"])
def test_what_is_no_condition(text: str) -> None:
    with pytest.raises(ValueError, match="is none of"):
        Halt.of(text)


def test_nothing_starts_while_the_machine_is_busy(jobq: Jobq) -> None:
    process = jobq.start("run", "--load", "0.0001", "--", "echo", ":::", "1")
    assert process.stderr is not None
    assert b"starts nothing new for now: the load is " in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    assert process.wait(20) == 130
    assert process.stdout is not None
    assert process.stdout.read() == b""
    result = jobq("run", "--load", "10000", "--memfree", "1M", "--", "echo", ":::", "1")
    assert result.lines == ["1"]
    process = jobq.start("run", "--memfree", "900T", "--", "echo", ":::", "1")
    assert process.stderr is not None
    assert b"of memory are free, and --memfree says 900 TiB" in process.stderr.readline()
    process.send_signal(signal.SIGUSR1)
    assert process.wait(20) == 1


def test_a_share_of_the_processors() -> None:
    processors = len(os.sched_getaffinity(0))
    assert Settings.from_environment({"JOBQ_LOAD": "150%"}).load == 1.5 * processors
    gate = StartGate.of(Settings.from_environment({"JOBQ_LOAD": "1e9"}))
    assert (gate.closed_by(), gate.most_at_once) == ("", 1)
    assert StartGate.of(Settings()).most_at_once is None


def test_a_terminal_shows_how_many_are_done(jobq: Jobq) -> None:
    ours, theirs = pty.openpty()
    try:
        process = jobq.start(
            "run", "--view", "live", "--", "sleep", ":::", "0", "1.5", stderr=theirs, env={"TERM": "xterm"}
        )
        os.close(theirs)
        seen = read_to_end(ours)
        assert process.wait(20) == 0
    finally:
        os.close(ours)
    assert b"1 of 2" in seen


ODD = b"\xff\0" + b"long " * 5_000 + b"\nname\rada\rgrace\r\nno end"


@pytest.mark.parametrize("options", [(), ("-k",), ("--group",)])
def test_bytes_of_a_job_go_into_a_file_unchanged(jobq: Jobq, options: tuple[str, ...]) -> None:
    (jobq.folder / "data").write_bytes(ODD)
    with (jobq.folder / "out").open("wb") as out:
        process = jobq.start("run", *options, "--", "cat", ":::", "data", stdout=out.fileno())
        assert process.wait(30) == 0
    assert (jobq.folder / "out").read_bytes() == ODD


def test_bytes_of_a_task_go_into_a_file_unchanged(jobq: Jobq) -> None:
    (jobq.folder / "data").write_bytes(ODD)
    for command in (("worker",), ("worker", "-q")):
        jobq("q", "push", "-c", "cat data")
        with (jobq.folder / "out").open("wb") as out:
            assert jobq.start("q", *command, stdout=out.fileno()).wait(30) == 0
        assert (jobq.folder / "out").read_bytes() == ODD, command


def test_lines_of_jobs_beside_each_other_stay_whole(jobq: Jobq) -> None:
    """A line that is longer than a pipe holds comes in many pieces."""
    command = 'for i in 1 2 3; do head -c 300000 /dev/zero | tr "\\0" $ARG_1; echo; done'
    result = jobq("run", "-n", "4", "-c", command, ":::", *"abcd")
    assert sorted(result.lines) == sorted(letter * 300_000 for letter in "abcd" for _ in range(3))


def test_a_run_that_nobody_reads_ends(jobq: Jobq) -> None:
    """As under xargs: `jobq run ... | head` ran all of its jobs."""
    process = jobq.start("run", "-n", "1", "-c", "echo $ARG_1; touch ran-$ARG_1", ":::", *map(str, range(2_000)))
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(30) == 141
    assert process.stderr is not None
    assert b"nobody reads its output any more" in process.stderr.read()
    assert len(list(jobq.folder.glob("ran-*"))) < 2_000
    process = jobq.start("run", "--json", "--", "true", ":::", "1")
    assert process.stdout is not None
    process.stdout.close()
    assert process.wait(30) == 0, "what was asked for is done"
