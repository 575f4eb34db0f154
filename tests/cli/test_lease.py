"""`jobq lease run|list|show|release` on a real file, with real processes and signals (S10, P1, P2, P3)."""

import contextlib
import json
import signal
import sqlite3
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.cli.conftest import Jobq, eventually
from tests.guardian.stage import state, worker_below

pytestmark = pytest.mark.check

TTL: Final = 3.0
SHORT: Final = {
    "JOBQ_ALLOW_SHORT_LEASE": "1",
    "JOBQ_LEASE_TTL": f"{TTL}s",
    "JOBQ_KILL_MARGIN": "0.4s",
    "JOBQ_SCHEDULE_MARGIN": "0.1s",
}
BEATS: Final = str(Path(__file__).parents[1] / "leases" / "beats.py")
SH: Final = ("sh", "-c")


@pytest.fixture(autouse=True)
def short(jobq: Jobq) -> None:
    jobq.environment |= SHORT


class Beats:
    """What the commands have written."""

    def __init__(self, jobq: Jobq) -> None:
        self.path = jobq.folder / "beats"

    def of(self, token: int) -> list[float]:
        """When the commands under this token lived."""
        if not self.path.exists():
            return []
        pairs = [line.split() for line in self.path.read_text().splitlines()]
        return [float(time) for number, time in pairs if int(number) == token]

    def begun(self, token: int) -> None:
        eventually(lambda: len(self.of(token)) > 20)

    def run(self, jobq: Jobq, *options: str) -> tuple[str, ...]:
        return "demo", "lease", "run", "one", *options, "--", sys.executable, BEATS, str(self.path)


@pytest.fixture
def beats(jobq: Jobq) -> Beats:
    return Beats(jobq)


@contextlib.contextmanager
def database(jobq: Jobq) -> Iterator[sqlite3.Connection]:
    with contextlib.closing(sqlite3.connect(jobq.file, isolation_level=None, timeout=30)) as found:
        yield found


def expiry(jobq: Jobq) -> float:
    with database(jobq) as found:
        (at,) = found.execute("SELECT expires_at FROM lease WHERE name = 'one'").fetchone()
    return float(at)


def boottime() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@pytest.mark.parametrize(
    ("script", "code"), [("exit 0", 0), ("exit 7", 7), ("exit 75", 75), ("kill -9 $$", 137), ("kill -TERM $$", 143)]
)
def test_the_commands_code_is_passed_through(jobq: Jobq, script: str, code: int) -> None:
    result = jobq("demo", "lease", "run", "one", "--", *SH, f"echo out; echo err >&2; {script}", code=code)
    assert (result.out, result.err) == ("out\n", "err\n"), "nothing of ours is mixed in"
    with database(jobq) as found:
        assert found.execute("SELECT state FROM lease").fetchone() == ("released",)


def test_the_command_is_told_its_name_and_token_and_keeps_its_environment(jobq: Jobq) -> None:
    script = "echo $JOBQ_LEASE_NAME $JOBQ_LEASE_TOKEN $MINE $JOBQ_LEASE_TTL ${JOBQ_GUARDIAN_FD-none}"
    for token in (1, 2):
        result = jobq("demo", "lease", "run", "one", "--", *SH, script, env={"MINE": "a b"})
        assert result.out == f"one {token} a b {TTL}s none\n"


def test_what_cannot_be_started_is_127_and_gives_the_lease_back(jobq: Jobq) -> None:
    result = jobq("demo", "lease", "run", "one", "--", "no-such-program", code=127)
    assert "not found on PATH" in result.err
    assert jobq("demo", "lease", "run", "one", "--no-wait", "--", "true").code == 0


def test_held_elsewhere_is_told_with_its_own_exit_code(jobq: Jobq, beats: Beats) -> None:
    jobq.start(*beats.run(jobq))
    beats.begun(1)
    held = ("demo", "lease", "run", "one")
    first, second = jobq.all(
        [*held, "--no-wait", "--", "true"], [*held, "--wait-at-most", "0.3s", "--", "true"], code=75
    )
    other = jobq(*held, "--no-wait", "--conflict-exit-code", "9", "--", "true", code=9)
    for result in (first, second, other):
        assert "lease one is held by" in result.err
        assert "token 1" in result.err


def test_who_waits_begins_when_the_other_has_ended(jobq: Jobq, beats: Beats) -> None:
    script = f"{sys.executable} {BEATS} {beats.path} & while [ ! -e enough ]; do sleep 0.02; done"
    first = jobq.start("demo", "lease", "run", "one", "--", *SH, script)
    beats.begun(1)
    second = jobq.start(*beats.run(jobq), "0.2")
    assert second.stderr is not None
    assert second.stderr.readline().startswith(b"waiting: lease one is held by")
    (jobq.folder / "enough").touch()
    assert first.wait(20) == 0
    assert second.wait(20) == 0
    assert max(beats.of(1)) < min(beats.of(2))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signals_reach_the_command_and_its_answer_is_passed_on(jobq: Jobq, number: signal.Signals) -> None:
    script = f"trap 'echo got it; exit 5' {number.value}; echo ready; while :; do sleep 0.05; done"
    process = jobq.start("demo", "lease", "run", "one", "--", *SH, script)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    process.send_signal(number)
    assert process.wait(20) == 5
    assert process.stdout.read() == b"got it\n"


def test_usr1_is_passed_on_and_ends_nothing(jobq: Jobq) -> None:
    script = "trap 'echo usr1; exit 4' USR1; echo ready; while :; do sleep 0.05; done"
    process = jobq.start("demo", "lease", "run", "one", "--", *SH, script)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    process.send_signal(signal.SIGUSR1)
    assert process.wait(20) == 4


def test_a_command_that_ignores_the_end_is_killed_after_the_grace(jobq: Jobq) -> None:
    script = "trap '' TERM; echo ready; while :; do sleep 0.05; done"
    process = jobq.start("demo", "lease", "run", "one", "--stop-grace", "0.5s", "--", *SH, script)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 137


def test_a_second_interrupt_kills_at_once(jobq: Jobq) -> None:
    script = "trap 'echo int' INT; echo ready; while :; do sleep 0.05; done"
    process = jobq.start("demo", "lease", "run", "one", "--", *SH, script)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == b"int\n"
    process.send_signal(signal.SIGINT)
    assert process.wait(10) == 137


def test_a_signal_while_it_waits_ends_the_wait(jobq: Jobq, beats: Beats) -> None:
    jobq.start(*beats.run(jobq))
    beats.begun(1)
    waiting = jobq.start("demo", "lease", "run", "one", "--", "true")
    assert waiting.stderr is not None
    assert b"waiting" in waiting.stderr.readline()
    waiting.send_signal(signal.SIGTERM)
    assert waiting.wait(10) == 143
    assert jobq("demo", "lease", "show", "one", "--json").objects[0]["token"] == 1


def test_a_killed_worker_takes_the_tree_with_it_and_the_name_is_free_when_the_lease_has_run_out(
    jobq: Jobq, beats: Beats
) -> None:
    process = jobq.start(*beats.run(jobq))
    beats.begun(1)
    worker = worker_below(process.pid)
    Path(f"/proc/{worker}").stat()
    killed = boottime()
    signal.pidfd_send_signal(_pidfd(worker), signal.SIGKILL)
    assert process.wait(10) == 137
    again = jobq("demo", "lease", "run", "one", "--", sys.executable, BEATS, str(beats.path), "0.1")
    assert again.code == 0
    assert max(beats.of(1)) < killed + 0.5
    assert max(beats.of(1)) < min(beats.of(2))
    assert killed + TTL / 2 < min(beats.of(2)) < killed + TTL + 3


def test_a_stopped_worker_cannot_let_the_tree_outlive_the_lease(jobq: Jobq, beats: Beats) -> None:
    process = jobq.start(*beats.run(jobq))
    beats.begun(1)
    worker = worker_below(process.pid)
    pidfd = _pidfd(worker)
    signal.pidfd_send_signal(pidfd, signal.SIGSTOP)
    eventually(lambda: state(worker) == "T")
    expires = expiry(jobq)
    again = jobq("demo", "lease", "run", "one", "--", sys.executable, BEATS, str(beats.path), "0.1")
    assert again.code == 0
    assert max(beats.of(1)) < expires <= min(beats.of(2))
    signal.pidfd_send_signal(pidfd, signal.SIGCONT)
    assert process.wait(20) == 75
    assert process.stderr is not None
    assert b"the lease was lost" in process.stderr.read()


def test_a_store_that_takes_no_renewals_ends_the_command_before_the_lease(jobq: Jobq, beats: Beats) -> None:
    process = jobq.start(*beats.run(jobq))
    beats.begun(1)
    with database(jobq) as other:
        other.execute("BEGIN IMMEDIATE")  # nobody can write
        assert process.wait(20) == 75
        ended = boottime()
        other.execute("ROLLBACK")
    assert max(beats.of(1)) < expiry(jobq)
    assert ended - max(beats.of(1)) < 5
    assert process.stderr is not None
    assert b"the lease was lost, the command was killed: no renewal succeeded in time" in process.stderr.read()


def test_in_sigterm_mode_the_command_may_end_by_itself_before_the_lease_does(jobq: Jobq, beats: Beats) -> None:
    """P6: SIGTERM at the deadline less the grace, and what ends in it is not killed."""
    script = f"trap 'echo asked; exit 0' TERM; {sys.executable} {BEATS} {beats.path} & wait"
    env = {"JOBQ_LOCK_LOST_BEHAVIOR": "sigterm", "JOBQ_LOCK_LOST_GRACE": "0.5s"}
    process = jobq.start("demo", "lease", "run", "one", "--", *SH, script, env=env)
    beats.begun(1)
    with database(jobq) as other:
        other.execute("BEGIN IMMEDIATE")
        assert process.wait(20) == 75
        other.execute("ROLLBACK")
    assert process.stdout is not None
    assert process.stdout.read() == b"asked\n"
    assert max(beats.of(1)) < expiry(jobq)


def test_a_revoked_lease_ends_its_command_and_nothing_overlaps(jobq: Jobq, beats: Beats) -> None:
    process = jobq.start(*beats.run(jobq, "--conflict-exit-code", "9"))
    beats.begun(1)
    (told,) = jobq("demo", "lease", "release", "one", "--json").objects
    assert (told["state"], told["revoked"]) == ("active", True)
    assert process.wait(20) == 9
    jobq("demo", "lease", "run", "one", "--", sys.executable, BEATS, str(beats.path), "0.1")
    assert max(beats.of(1)) < min(beats.of(2))


def test_list_show_and_release(jobq: Jobq, beats: Beats) -> None:
    jobq("demo", "lease", "run", "ended", "--", "true")
    jobq.start(*beats.run(jobq))
    beats.begun(1)
    eventually(lambda: jobq("demo", "lease", "list", "--state", "renewed").out.startswith("one  active"))
    both = jobq("demo", "lease", "list", "--json").objects
    assert [(one["name"], one["state"], one["token"]) for one in both] == [
        ("ended", "released", 1),
        ("one", "active", 1),
    ]
    assert both[1]["remaining_s"] > 0
    only = jobq("demo", "lease", "list", "--state", "released").lines
    assert len(only) == 1
    assert only[0].startswith("ended  released  token 1")
    assert "token:        1" in jobq("demo", "lease", "show", "ended").lines
    missing = jobq("demo", "lease", "show", "nobody", "--json", code=4)
    assert missing.error["error"] == "NotFound"
    jobq("demo", "lease", "release", "nobody", code=4)
    stale = jobq("demo", "lease", "release", "one", "--token", "7", code=1)
    assert "no longer held under token 7" in stale.err
    jobq("demo", "lease", "release", "one", "--token", "1")
    assert jobq("demo", "lease", "run", "one", "--no-wait", "--", "true").code == 0


def test_what_cannot_work_is_told_plainly(jobq: Jobq) -> None:
    run = ("demo", "lease", "run")
    for arguments, text in (
        ((*run, "one"), "which program?"),
        ((*run, "one", "--no-wait", "--wait-at-most", "1s", "--", "true"), "contradict"),
        ((*run, "--", "true"), "Missing argument 'NAME'"),
    ):
        assert text in jobq(*arguments, code=2).err
    assert "is no name for a lease" in jobq(*run, "a/b", "--", "true", code=3).err
    assert "raise the ttl" in jobq(*run, "x", "--ttl", "1s", "--", "true", code=3).err
    assert "which queue?" in jobq("lease", "run", "x", "--", "true", code=2).err


def test_a_new_queue_file_is_made_by_the_first_lease_and_looking_makes_none(jobq: Jobq) -> None:
    looked = jobq("demo", "lease", "list", "--json", code=4)
    assert json.loads(looked.err)["error"] == "QueueNotFound"
    assert not jobq.file.exists()
    jobq("demo", "lease", "run", "one", "--", "true")
    assert jobq.file.exists()


def _pidfd(pid: int) -> int:
    import os  # noqa: PLC0415 - Linux alone has it

    return os.pidfd_open(pid)
