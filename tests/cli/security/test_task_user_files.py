"""`--task-user` with `--checkpoint-store`: the files are the task's user's own, and read with its rights (A11, S9)."""

import json
import os
import stat
import subprocess
import sys
import tarfile
import threading
from pathlib import Path

import pytest

from jobq.files.archive import pack
from jobq.files.rights_of import is_possible, rights_of
from jobq.run.spawn import choose_spawner
from jobq.task import Task
from tests.cli.conftest import Jobq

from .test_task_user import PYTHON, shared

__all__ = ["shared"]
pytestmark = pytest.mark.skipif(
    not choose_spawner.is_possible() or not is_possible() or os.geteuid() != 0,
    reason="needs Linux with the guardian, and root, who may become another user",
)
FIRST = 1_700_000 + 16 * os.getpid()  # nobody's
LIMIT = 1024 * 1024


@pytest.mark.skipif(PYTHON is None, reason="no Python that another user can run")
def test_s9_the_files_are_the_users_own_in_each_attempt(jobq: Jobq, shared: Path) -> None:
    (shared / "saver.py").write_bytes(Path(__file__).with_name("saver.py").read_bytes())
    (shared / "saver.py").chmod(0o644)
    assert PYTHON is not None
    jobq.fill(Task.new(argv=[PYTHON, f"{shared}/saver.py", str(shared)], cwd="/"))
    options = ("--checkpoint-store", str(jobq.folder / "store"), "--backoff", "10ms", "-n", "1")
    jobq("demo", "worker", "--task-user", f"{FIRST}-{FIRST}", *options)
    saw = [json.loads(line) for line in (shared / "saw").read_text().splitlines()]
    assert saw == [
        {"files": {}, "owners": [FIRST], "mode": "0o700", "user": FIRST, "answer": {}},
        {"files": {"below/file 0": "saved"}, "owners": [FIRST], "mode": "0o700", "user": FIRST, "answer": {}},
    ]
    store = jobq.folder / "store"
    assert {path.stat().st_uid for path in (store, *store.rglob("*"))} == {0}, "the store is the worker's"
    assert [path for path in (store, *store.rglob("*")) if stat.S_IMODE(path.stat().st_mode) & 0o077] == []


def test_a11_what_that_user_may_not_read_is_not_saved(shared: Path) -> None:
    """A link to root's folder, made while the worker looks, or a second name of a file: its text would come back."""
    theirs, secrets = shared / "theirs", shared / "root's"
    for folder in (theirs, secrets):
        folder.mkdir(mode=0o700)
    (secrets / "secret").write_text("canary")
    (secrets / "secret").chmod(0o600)
    os.chown(theirs, FIRST, FIRST)
    os.link(secrets / "secret", theirs / "name")
    with pytest.raises(PermissionError):
        pack(theirs, shared / "1.tar", LIMIT, rights_of(FIRST, FIRST))
    pack(theirs, shared / "2.tar", LIMIT)
    assert b"canary" in (shared / "2.tar").read_bytes(), "else this test shows nothing"
    (theirs / "name").unlink()
    with rights_of(FIRST, FIRST):  # where a folder was that it has looked at already
        (theirs / "link").symlink_to(secrets)
        with pytest.raises(PermissionError):
            (theirs / "link" / "secret").read_text()
        (theirs / "link").unlink()
        (theirs / "own").write_text("fine")
    assert (theirs / "own").stat().st_uid == FIRST
    pack(theirs, shared / "3.tar", LIMIT, rights_of(FIRST, FIRST))
    with tarfile.open(shared / "3.tar") as archive:
        assert archive.getnames() == ["own"]
    assert (shared / "3.tar").stat().st_uid == 0


def test_a_python_that_the_user_cannot_read_is_read_before(shared: Path) -> None:
    """Its first archive: what Python imports when it is needed first is not there any more with that user's rights."""
    theirs = shared / "theirs"
    theirs.mkdir(mode=0o700)
    (theirs / "é").write_text("fine")
    os.chown(theirs, FIRST, FIRST)
    os.chown(theirs / "é", FIRST, FIRST)
    code = (
        "from pathlib import Path; from jobq.files.archive import pack; from jobq.files.rights_of import rights_of;"
        f"pack(Path({str(theirs)!r}), Path({str(shared / 'made.tar')!r}), {LIMIT}, rights_of({FIRST}, {FIRST}))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    with tarfile.open(shared / "made.tar") as archive:
        assert archive.getnames() == ["é"]


def test_a11_the_groups_of_the_worker_are_not_the_users(shared: Path) -> None:
    (shared / "for the group").write_text("canary")
    (shared / "for the group").chmod(0o640)  # root's group, which the worker has
    groups, others = os.getgroups(), list[str]()

    def look() -> None:
        entered.wait(20)
        others.append((shared / "for the group").read_text())

    entered = threading.Event()
    thread = threading.Thread(target=look)
    thread.start()
    with rights_of(FIRST, FIRST):
        with pytest.raises(PermissionError):
            (shared / "for the group").read_text()
        entered.set()
        thread.join()
        assert others == ["canary"], "a thread beside it"
    assert (os.getgroups(), (shared / "for the group").read_text()) == (groups, "canary")
