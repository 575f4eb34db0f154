"""`jobq worker --task-user`: tasks as other users, who neither read nor forge each other's (rules.md 3, A6, A11)."""

import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobq.errors import ConfigurationError
from jobq.files import remove_tree
from jobq.run.process import task_user
from jobq.run.process.task_folder import TaskFolder, read_result
from jobq.run.spawn.choose_spawner import is_possible
from jobq.settings import Settings
from jobq.task import Task
from tests.cli.conftest import Jobq

pytestmark = pytest.mark.skipif(
    not is_possible() or os.geteuid() != 0, reason="needs the guardian, and root, who may become another user"
)
FIRST = 1_000_000 + 16 * os.getpid()  # nobody's, and the next ones: what runs as them is killed, so not another test's
PYTHON = shutil.which("python3", path="/usr/bin:/bin")  # which any user can run
WAITING = (
    'umask 022; echo "$$ $JOBQ_TASK_SOCKET $JOBQ_RESULT_FILE" > {0}/part; mv {0}/part {0}/there\n'
    "until [ -e {0}/done ]; do sleep 0.05; done"
)


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder for everyone; pytest's own are root's alone."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        Path(name).chmod(0o777)
        yield Path(name)


@pytest.mark.skipif(PYTHON is None, reason="no Python that another user can run")
@pytest.mark.parametrize("options", [(), ("--max", "50")], ids=["plain", "limited"])
@pytest.mark.parametrize("is_range", [True, False], ids=["range", "one user"])
def test_a6_tasks_of_two_users_are_closed_to_each_other(
    jobq: Jobq, shared: Path, is_range: bool, options: tuple[str, ...]
) -> None:
    (shared / "neighbour.py").write_bytes(Path(__file__).with_name("neighbour.py").read_bytes())
    (shared / "neighbour.py").chmod(0o644)
    assert PYTHON is not None
    jobq.fill(Task.new(command=WAITING.format(shared)), Task.new(argv=[PYTHON, f"{shared}/neighbour.py", str(shared)]))
    users = f"{FIRST}-{FIRST + 1}" if is_range else f"{FIRST}"
    limit = {"JOBQ_TASK_MAX_PROCESSES": "50"} if options else {}
    said = jobq("demo", "worker", "-n", "2", "--task-user", users, env={"USER": "root", **limit})
    seen = json.loads((shared / "seen").read_text())
    who = seen["ids"][0]
    assert who in {FIRST, FIRST + is_range}, said
    processes = seen.pop("processes")
    assert processes == 50 if options else processes != 50
    assert [line.split()[1].strip("0") for line in seen.pop("capabilities")] == ["", "", ""]
    assert seen == {
        "environment": not is_range,
        "files": not is_range,
        "socket": not is_range,
        "signal": not is_range,
        "own socket": {},
        "own folder": "0o700",
        "ids": [who] * 6,
        "umask": "0o77",
        "core": 0,
        "new privileges": False,
        "called": ["/", None, None],
        "output": True,
    }


def test_a_named_user_has_its_own_home_and_writes_a_result(jobq: Jobq) -> None:
    command = 'printf \'"%s %s %s"\' "$HOME" "$USER" "$(id -un)" > $JOBQ_RESULT_FILE'
    (id_,) = jobq.fill(Task.new(command=command, cwd="/"))
    jobq("demo", "worker", "--task-user", "nobody", env={"USER": "root"})
    (found,) = jobq("demo", "status", id_, "--json").objects
    assert found["last"]["value"] == "/nonexistent nobody nobody"


def test_p3_of_a_range_nothing_outlives_an_attempt_wherever_it_went(jobq: Jobq) -> None:
    def stranger(uid: int) -> "subprocess.Popen[bytes]":  # not below any worker: as one that a service has adopted
        return subprocess.Popen(["sleep", "1000"], user=uid, group=uid, extra_groups=[], cwd="/")

    own, other = stranger(FIRST), stranger(FIRST + 1)
    try:
        jobq.fill(Task.new(command="sleep 1000 & setsid sleep 1000 & exit 0", cwd="/"))
        jobq("demo", "worker", "--task-user", f"{FIRST}-{FIRST}")
        assert own.wait(10) == -9
        assert other.poll() is None, "another user's"
    finally:
        own.kill()
        other.kill()
        own.wait()
        other.wait()


def test_p5_what_another_user_runs_is_killed_like_any_task(jobq: Jobq) -> None:
    (id_,) = jobq.fill(
        Task.new(
            command="trap '' TERM; sleep 1000 & sleep 1000",
            timeout=0.5,
            cwd="/",
            budgets={"retries": 0},
        )
    )
    jobq("demo", "worker", "--task-user", "nobody")
    (found,) = jobq("demo", "status", id_, "--json").objects
    assert (found["state"], found["last"]["outcome"]) == ("dead", "timed_out"), found


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--task-user", "nobody", "--guardian", "off"), "JOBQ_TASK_USER needs the guardian"),
        (("--task-user", "no-such-user"), "there is no user 'no-such-user'"),
        (("--task-user", "root"), "is root"),
        (("--task-user", "0"), "is root"),
        (("--task-user", "1-2"), "user 1 is 'daemon'"),
        (("--task-user", f"{FIRST}-{FIRST + 1}", "-n", "3"), "has 2 users for 3 slots"),
        (("--task-user", f"{FIRST + 1}-{FIRST}"), "is no range of users"),
    ],
    ids=["no guardian", "unknown", "root", "root's number", "somebody's", "too few", "backwards"],
)
def test_what_cannot_be_kept_ends_the_worker_at_its_start(jobq: Jobq, arguments: tuple[str, ...], says: str) -> None:
    jobq.fill(Task.new(command="true"))
    result = jobq("demo", "worker", *arguments, code=3)
    assert says in result.err
    assert len(jobq.waiting()) == 1


def test_a_worker_that_lacks_the_right_says_which(jobq: Jobq) -> None:
    drop = "import ctypes, os, sys; ctypes.CDLL(None).prctl(24, 7, 0, 0, 0); os.execv(sys.argv[1], sys.argv[1:])"
    argv = [sys.executable, "-c", drop, sys.executable, "-m", "jobq", "demo", "worker", "--task-user", "nobody"]
    done = subprocess.run(argv, env=jobq.environment, cwd=jobq.folder, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (3, "")
    assert "may not run tasks as another user, for it lacks CAP_SETUID: start the worker as root" in done.stderr


def test_two_workers_share_no_user_of_a_range(jobq: Jobq) -> None:
    with task_user._TAKEN.open("w") as taken:
        fcntl.lockf(taken, fcntl.LOCK_EX, 1, FIRST + 1)
        jobq.fill(Task.new(command="true"))
        refused = jobq("demo", "worker", "--task-user", f"{FIRST + 1}-{FIRST + 2}", code=3)
        assert "another worker of this machine" in refused.err
        jobq("demo", "worker", "--task-user", f"{FIRST + 2}-{FIRST + 3}")


def test_s11_one_program_shares_a_range(jobq: Jobq) -> None:
    """Two workers and what it pulls itself: each took the first user, and killed the others' tasks."""
    code = """
import asyncio
from jobq.queue import connect
from jobq.task import Task

async def main():
    async with connect("demo") as queue, connect("other") as other:
        for each in (queue, other):
            await each.push([Task.new(command="sleep 0.5") for _ in range(4)])
        pulls = (queue.pull_and_execute() for _ in range(4))
        found = await asyncio.gather(*pulls, other.worker(num_workers=2), other.worker(num_workers=2))
        print(*(each.outcome.kind for each in found[:4]), found[4].succeeded + found[5].succeeded)

asyncio.run(main())
"""
    environment = {**jobq.environment, "JOBQ_TASK_USER": f"{FIRST}-{FIRST + 7}"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd=jobq.folder, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "succeeded succeeded succeeded succeeded 4\n"), done.stderr


def test_s11_a_start_that_fails_beside_others_of_the_range_harms_none(jobq: Jobq) -> None:
    """Its user is another worker's only when nothing of it is left to be killed; who finds none free goes back."""
    code = """
import asyncio
from jobq.queue import connect
from jobq.task import Task

async def main():
    async with connect("bad") as bad, connect("good") as good:
        await bad.push([Task.new(argv=["/nonexistent/program"], budgets={"crashes": 0}) for _ in range(300)])
        await good.push([Task.new(command="sleep 0.02", budgets={"crashes": 0}) for _ in range(100)])
        worker = asyncio.create_task(bad.worker(num_workers=8))
        print(await good.worker(num_workers=4))
        worker.cancel()

asyncio.run(main())
"""
    environment = {**jobq.environment, "JOBQ_TASK_USER": f"{FIRST}-{FIRST + 8}", "JOBQ_MAX_CONSECUTIVE_FAILURES": "0"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd=jobq.folder, capture_output=True, text=True, check=False
    )
    assert "succeeded=100, failed=0, dead_lettered=0, given_back=" in done.stdout, done.stderr
    assert "lost=0" in done.stdout


def test_s11_a_child_that_was_forked_does_not_share_a_range(monkeypatch: pytest.MonkeyPatch) -> None:
    """It inherits what the program knows of its range, and none of its locks."""
    monkeypatch.setattr(task_user, "_ranges", {})
    settings = Settings(task_user=f"{FIRST}-{FIRST + 3}", num_workers=1)
    kept = task_user.users_of(settings)
    assert task_user.users_of(settings) is kept
    if not (child := os.fork()):
        try:
            task_user.users_of(settings)
        except ConfigurationError:
            os._exit(7)
        finally:
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_ranges_of_one_program_do_not_overlap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_user, "_ranges", {})
    task_user.users_of(Settings(task_user=f"{FIRST}-{FIRST + 3}", num_workers=1))
    with pytest.raises(ConfigurationError, match="another worker of this machine has some of these users"):
        task_user.users_of(Settings(task_user=f"{FIRST + 3}-{FIRST + 5}", num_workers=1))


def test_a11_a_result_is_the_tasks_own_file(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("1")
    folder = TaskFolder()
    try:
        own = folder.of((FIRST, FIRST))
        assert own.path.stat().st_uid == FIRST
        linked, result = own.new_file(), own.new_file()
        shutil.copy(secret, result)
        os.chown(result, FIRST, FIRST)
        shutil.copy(secret, linked)  # root's, as a hard link to any file of root's would be
        assert (read_result(linked, 10), read_result(result, 10)) == (None, b"1")
    finally:
        folder.close()
    assert not own.path.parent.exists()


def test_a11_what_a_task_made_a_link_while_it_is_removed_is_not_followed(tmp_path: Path) -> None:
    """Between the look whether it is a folder and its opening."""
    (tmp_path / "other").mkdir(mode=0o750)
    (tmp_path / "name").symlink_to(tmp_path / "other")
    top = os.open(tmp_path, os.O_RDONLY)
    with pytest.raises(OSError, match="Not a directory"):
        remove_tree._entered(top, "name")
    os.close(top)
    assert (tmp_path / "other").stat().st_mode & 0o777 == 0o750
