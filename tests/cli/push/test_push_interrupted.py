"""An interrupted `push` says what is queued, what may be and what is not, and never claims more than it knows (S8)."""

import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from jobq.submit import pusher
from tests.cli.conftest import Jobq, eventually

pytestmark = pytest.mark.check

_ENDS = [(signal.SIGINT, 130), (signal.SIGTERM, 143)]


@pytest.fixture
def _kernel_tells() -> None:
    """Skip where the kernel does not say what a thread waits for: nothing else tells that SQLite waits."""
    with subprocess.Popen(["sleep", "60"]) as sleeper:
        end = time.monotonic() + 5
        while not _waits_for_lock(sleeper.pid) and time.monotonic() < end:
            time.sleep(0.01)
        told = _waits_for_lock(sleeper.pid)
        sleeper.kill()
    if not told:
        pytest.skip("this kernel does not tell in /proc what a thread waits for")


@contextmanager
def _held(jobq: Jobq) -> Iterator[sqlite3.Connection]:
    """Keep every other writer out of the queue's file."""
    with closing(sqlite3.connect(jobq.file, isolation_level=None)) as holder:
        holder.execute("BEGIN IMMEDIATE")
        yield holder


def _waits_for_lock(pid: int) -> bool:
    """Return whether a thread of a process is where SQLite waits for another writer: in a short sleep."""
    return any(place.read_text() == "hrtimer_nanosleep" for place in Path(f"/proc/{pid}/task").glob("*/wchan"))


def _is_pending(pid: int, number: signal.Signals) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    masks = re.findall(r"^(?:SigPnd|ShdPnd):\t(\w+)$", status, re.MULTILINE)
    return any(int(mask, 16) >> (number - 1) & 1 for mask in masks)


def _err(process: "subprocess.Popen[bytes]") -> str:
    _, err = process.communicate(timeout=30)
    return err.decode()


@pytest.mark.parametrize(("number", "code"), _ENDS)
def test_while_it_waits_for_lines(jobq: Jobq, number: signal.Signals, code: int) -> None:
    process = jobq.start("demo", "push", "-", "--ids")
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(b"echo 1\necho 2\n")
    process.stdin.flush()
    ids = [process.stdout.readline().strip().decode() for _ in range(2)]
    process.send_signal(number)
    assert _err(process).endswith(
        "jobq: interrupted; queued 2 tasks on demo; the lines before 3 are queued;"
        " go on with: tail -n +3 FILE | jobq demo push [the same options] -\n"
    )
    assert process.returncode == code
    assert [task.id for task in jobq.waiting()] == ids


@pytest.mark.usefixtures("_kernel_tells")
@pytest.mark.parametrize(("number", "code"), _ENDS)
def test_a_batch_that_was_begun_is_seen_to_its_end(jobq: Jobq, number: signal.Signals, code: int) -> None:
    jobq("demo", "create")
    (jobq.folder / "lines").write_text("".join(f"echo {n}\n" for n in range(700)))
    with _held(jobq) as holder:
        process = jobq.start("demo", "push", "lines")
        eventually(lambda: _waits_for_lock(process.pid))
        process.send_signal(number)
        eventually(lambda: not _is_pending(process.pid, number))
        holder.execute("ROLLBACK")
        err = _err(process)
    assert process.returncode == code
    assert "queued 500 tasks on demo; the lines before 501 are queued; go on with: tail -n +501 lines" in err
    assert "doubt" not in err
    assert len(jobq.waiting()) == 500


@pytest.mark.usefixtures("_kernel_tells")
def test_a_batch_that_nobody_acknowledges_is_in_doubt(jobq: Jobq) -> None:
    jobq("demo", "create")
    (jobq.folder / "lines").write_text("".join(f"echo {n}\n" for n in range(700)))
    with _held(jobq):
        process = jobq.start("demo", "push", "lines")
        eventually(lambda: _waits_for_lock(process.pid))
        process.send_signal(signal.SIGINT)
        err = _err(process)
    assert process.returncode == 130
    assert "interrupted; queued 0 tasks on demo; in doubt: 500 tasks (" in err
    assert "the lines 1 to 500 may or may not be queued; after that go on with: tail -n +501 lines" in err
    assert "no line is queued" not in err


@pytest.mark.usefixtures("_kernel_tells")
def test_what_is_known_of_tasks_of_other_sources_is_told_too(jobq: Jobq) -> None:
    jobq("demo", "create")
    (jobq.folder / "listed.py").write_text("def tasks():\n    yield from ['echo 1', 'echo 2']\n")
    with _held(jobq):
        given = jobq.start("demo", "push", "-c", "true", "--id", "mine", "--json")
        listed = jobq.start("demo", "push", "--spec", "listed:tasks", stdin=subprocess.DEVNULL)
        for process in (given, listed):
            eventually(lambda: _waits_for_lock(process.pid))  # noqa: B023 - waited for
            process.send_signal(signal.SIGTERM)
        errors = [_err(given), _err(listed)]
    assert (given.returncode, listed.returncode) == (143, 143)
    assert re.search(r'"error": "Interrupted".*nothing was changed.*"exit_code": 143, "ids": \[\]', errors[0])
    assert "interrupted; considered 2, skipped 0, queued 0 on demo; in doubt: 2 tasks (" in errors[1]


def test_it_ends_within_what_others_wait() -> None:
    # `docker stop` kills after 10 s.
    assert pusher.FINISH_SECONDS + pusher.TAKE_BACK_SECONDS <= 9


def test_what_is_ignored_stays_ignored(jobq: Jobq) -> None:
    script = f"trap '' TERM INT; exec {sys.executable} -m jobq demo push - --ids"
    process = subprocess.Popen(
        ["bash", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=jobq.environment, cwd=jobq.folder
    )
    jobq.running.append(process)
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(b"echo 1\n")
    process.stdin.flush()
    process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGINT)
    process.stdin.write(b"echo 2\n")
    process.stdin.close()
    assert process.wait(20) == 0
    assert jobq.commands() == ["echo 1", "echo 2"]
