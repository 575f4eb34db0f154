"""A forked child keeps away from the files of its parent: SQLite's locks do not outlast a fork (S1)."""

import os
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

import jobq.sync
from jobq.errors import StoreUnusable

_REFUSED = "was open in the process that this one was forked from"


def _in_a_child(work: Callable[[], None]) -> None:
    """Fork, do it there, and fail where it fails."""
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException:  # noqa: BLE001 - a child must not go on as a second pytest
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def _pushes(spec: str) -> None:
    with jobq.sync.connect(spec) as queue:
        queue.push("true")


def _is_refused(spec: str) -> None:
    for _ in range(2):  # each time
        with pytest.raises(StoreUnusable, match=_REFUSED):
            _pushes(spec)


def test_s1_what_the_parent_has_open_is_refused_under_each_of_its_names(tmp_path: Path) -> None:
    """Its parent's end, or another process that closes the file, took the log away with what was acknowledged there."""
    spec = f"sqlite://{tmp_path}/jobs.db/demo"
    with jobq.sync.connect(spec) as queue:
        queue.push("true")
        (tmp_path / "link.db").symlink_to(tmp_path / "jobs.db")
        (tmp_path / "hard.db").hardlink_to(tmp_path / "jobs.db")
        for name in ("jobs.db", "link.db", "hard.db"):
            _in_a_child(lambda name=name: _is_refused(f"sqlite://{tmp_path}/{name}/demo"))  # type: ignore[misc] # a default
        (tmp_path / "hard.db").unlink()
        _in_a_child(lambda: _in_a_child(lambda: _is_refused(spec)))  # nor a grandchild
        _in_a_child(lambda: _pushes(f"sqlite://{tmp_path}/other.db/demo"))
        assert queue.stats().visible == 1


def test_what_the_parent_has_left_is_opened(tmp_path: Path) -> None:
    spec = f"sqlite://{tmp_path}/jobs.db/demo"
    _pushes(spec)
    _in_a_child(lambda: _pushes(spec))
    with jobq.sync.connect(spec) as queue:
        assert queue.stats().visible == 2


def test_a_file_that_could_not_be_opened_is_not_held(tmp_path: Path) -> None:
    spec = f"sqlite://{tmp_path}/jobs.db/demo"
    (tmp_path / "jobs.db").write_bytes(b"no database" * 100)
    with pytest.raises(StoreUnusable), jobq.sync.connect(spec) as queue:
        queue.stats()
    (tmp_path / "jobs.db").unlink()
    _in_a_child(lambda: _pushes(spec))
