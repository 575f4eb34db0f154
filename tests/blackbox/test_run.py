"""`jobq run`: commands here and now, without a queue of one's own."""

import signal
import subprocess

import pytest

from tests.blackbox.support import JOBQ, PATIENCE, Bench, until

pytestmark = pytest.mark.check


def test_bytes_reach_a_file_unchanged(bench: Bench) -> None:
    data = bytes(range(256)) * 100 + b"a,b\rc,d\r" + b"x" * 20_000 + b"\n\xff no end"
    (bench.work / "data").write_bytes(data)
    bench.ends(bench.start("run", "--", "cat", "{}", ":::", "data"), 0)
    assert (bench.work / "out").read_bytes() == data


def test_keep_order_prints_in_the_order_of_the_input(bench: Bench) -> None:
    ended = "until test -e 3 -o $ARG_1 = 3; do sleep 0.02; done; touch $ARG_1; echo $ARG_1"  # 3 is the first to end
    assert bench.jobq("run", "-n", "3", "-k", "-c", ended, ":::", "1", "2", "3") == "1\n2\n3\n"


def test_exit_codes(bench: Bench) -> None:
    bench.jobq("run", text="true\ntrue\n")
    bench.jobq("run", text="true\nexit 3\n", code=1)
    bench.jobq("run", "--nosuchoption", code=2)
    bench.jobq("run", text='{"no": "task"}\n', code=2)
    bench.jobq("run", "--queue-file", "none.db", "--resume", code=4)


def test_halt_ends_early(bench: Bench) -> None:
    bench.jobq("run", "--halt", "now,fail=1", text="exit 1\n" + "echo ran >> ran\n" * 3, code=1)
    assert bench.lines("ran") == []
    bench.jobq("run", "--halt", "soon,success=1", text="echo ran >> ran\n" * 3)
    assert bench.lines("ran") == ["ran"]


def test_joblog_has_a_line_for_each_command(bench: Bench) -> None:
    bench.jobq("run", "--joblog", "log.tsv", text="true\nexit 3\nkill -9 $$\n", code=1)
    head, *rows = [line.split("\t") for line in bench.lines("log.tsv")]
    found = sorted(tuple(row[head.index(name)] for name in ("Seq", "Exitval", "Signal", "Command")) for row in rows)
    assert found == [("1", "0", "0", "true"), ("2", "3", "0", "exit 3"), ("3", "137", "9", "kill -9 $$")]


def test_resume_after_a_sigkill_does_not_repeat_what_is_done(bench: Bench) -> None:
    wait = "test -e go || { echo began >> began; sleep 300; }; echo 2 >> ran"
    (bench.work / "list").write_text(f"echo 1 >> ran\n{wait}\necho 3 >> ran\n")
    process = bench.start("run", "--queue-file", "jobs.db", "list")
    bench.has("began")
    process.send_signal(signal.SIGKILL)
    process.wait(PATIENCE)
    until(lambda: not bench.others(), "no process is left", 15)
    (bench.work / "go").touch()
    bench.jobq("run", "--queue-file", "jobs.db", "--resume", "list")
    assert sorted(bench.lines("ran")) == ["1", "2", "3"]


def test_what_failed_runs_again_by_resume_failed(bench: Bench) -> None:
    (bench.work / "list").write_text("echo 1 >> ran\necho 2 >> ran; test -e mended\n")
    bench.jobq("run", "--queue-file", "jobs.db", "list", code=1)
    (bench.work / "mended").touch()
    bench.jobq("run", "--queue-file", "jobs.db", "--resume-failed")
    assert bench.lines("ran") == ["1", "2", "2"]


def test_sigterm_ends_the_commands_and_the_run(bench: Bench) -> None:
    process = bench.start("run", "-c", "echo began >> began; exec sleep 30$ARG_1", ":::", "0")
    bench.has("began")
    process.terminate()
    bench.ends(process, 143)


def test_a_reader_that_goes_away_ends_the_run(bench: Bench) -> None:
    line = f"{JOBQ} run -c 'yes $ARG_1' ::: line | head -n 2"
    done = subprocess.run(
        ["sh", "-c", line], cwd=bench.work, env=bench.environment, capture_output=True, timeout=PATIENCE, check=True
    )
    assert done.stdout == b"line\nline\n"
