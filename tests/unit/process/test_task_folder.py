"""The folder of a worker: found by nobody else, left by nobody (P5, A11), and what a task may put there."""

import os
import shutil
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobq.files import remove_tree
from jobq.run.process.task_folder import PREFIX, TaskFolder, read_result, sweep


@pytest.fixture(autouse=True)
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A place whose path is short enough for a socket in it, as `tmp_path` is not with each name of a test."""
    with tempfile.TemporaryDirectory() as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)


def test_it_lives_as_long_as_its_worker(place: Path) -> None:
    folder = TaskFolder()
    assert list(place.iterdir()) == [], "made on first use"
    assert folder.path.stat().st_mode & 0o777 == 0o700
    sweep()
    assert folder.path.is_dir()
    left = place / f"{PREFIX}left"
    left.mkdir(mode=0o700)
    (left / "file").touch()
    others = place / f"{PREFIX}open"
    others.mkdir(mode=0o755)
    sweep()
    assert not left.exists()
    assert others.exists(), "not as we make them"
    folder.close()
    folder.close()
    assert list(place.iterdir()) == [others]


def test_a_killed_worker_leaves_it_to_the_next(place: Path) -> None:
    child = os.fork()
    if child == 0:
        TaskFolder().path.joinpath("result").touch()
        os._exit(0)  # as a kill: nothing is closed in order
    os.waitpid(child, 0)
    assert len(list(place.iterdir())) == 1
    folder = TaskFolder()
    path = folder.path
    assert list(place.iterdir()) == [path]
    folder.close()


def test_one_that_was_removed_is_made_again_where_it_was(place: Path) -> None:
    """A task's `rm -rf $TMPDIR/*`, or a cleaner: each later task of the worker failed (S11)."""
    folder = TaskFolder()
    path = folder.path
    for left in place.iterdir():
        shutil.rmtree(left)
    assert folder.new_folder().parent == path, "running tasks know its path"
    assert path.stat().st_mode & 0o777 == 0o700
    sweep()
    assert path.is_dir(), "it is locked again"
    shutil.rmtree(path)
    path.write_text("somebody else's")
    assert folder.path != path
    assert folder.path.is_dir()
    folder.close()
    assert list(place.iterdir()) == [path]


def test_what_is_read_is_a_file() -> None:
    folder = TaskFolder()
    good, link, pipe, missing = (folder.new_file() for _ in range(4))
    good.write_bytes(b"12345")
    link.symlink_to("/etc/passwd")
    os.mkfifo(pipe)
    assert [read_result(path, 3) for path in (good, link, pipe, missing)] == [b"1234", None, None, None]
    assert list(folder.path.iterdir()) == []
    folder.close()


@pytest.mark.parametrize("own", ["missing", "a-path-that-leaves-no-room-for-a-socket-in-it-" * 3])
def test_it_is_elsewhere_where_it_cannot_be_here(place: Path, monkeypatch: pytest.MonkeyPatch, own: str) -> None:
    """As in a container whose root is read-only: the tasks run all the same."""
    monkeypatch.setattr(tempfile, "tempdir", str(place / own))
    folder = TaskFolder()
    assert folder.path.is_dir()
    assert folder.path.parent != place / own
    folder.close()


def test_what_a_task_has_nested_too_deeply_ends_no_worker(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """L4: Python removes folders by recursion; the folder of a dead worker is met by each that starts."""
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=place))
    monkeypatch.chdir(folder)
    for _ in range(1200):
        Path("x").mkdir()
        os.chdir("x")
    os.chdir(place)
    (folder / "closed").mkdir()
    (folder / "closed" / "in").mkdir(mode=0)
    (folder / "closed" / "in" / "deeper").mkdir() if os.geteuid() == 0 else None
    (folder / "closed").chmod(0)
    outside = place / "outside"
    outside.mkdir()
    (outside / "kept").touch()
    (folder / "link").symlink_to(outside)
    sweep()
    assert [path.name for path in place.iterdir()] == ["outside"], "all of it goes, and nothing behind a link"
    assert (outside / "kept").exists()


def test_s11_what_a_task_has_left_in_a_folder_of_its_own_holds_up_nobody(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A million files took so long on the event loop that the leases of its neighbours ran out."""
    begun, go_on, removed = threading.Event(), threading.Event(), threading.Event()

    def slow(folder: Path) -> None:
        begun.set()
        go_on.wait(20)
        remove_tree.remove_tree(folder)
        removed.set()

    worker = TaskFolder()
    path = worker.new_folder()
    (path / "file").touch()
    remove = remove_tree.remove_tree
    monkeypatch.setattr(remove_tree, "remove_tree", slow)
    remove_tree.remove_beside(path)
    assert begun.wait(20)
    assert path.exists()
    monkeypatch.setattr(remove_tree, "remove_tree", remove)
    go_on.set()
    assert removed.wait(20)
    assert not path.exists()
    worker.close()
    assert list(place.iterdir()) == []


def test_s11_a_machine_without_a_thread_left_costs_no_attempt_its_outcome(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A neighbour that forks without end: the folder stays until its worker's goes. The limit does not bind root."""

    def refused(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    worker = TaskFolder()
    path = worker.new_folder()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refused)
        remove_tree.remove_beside(path)
    assert path.exists()
    worker.close()
    assert list(place.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="root alone leaves the mode of what it enters as it is")
def test_a11_what_a_task_made_a_link_while_it_is_removed_is_not_followed(place: Path) -> None:
    """Between the look whether it is a folder and its opening."""
    (place / "other").mkdir(mode=0o750)
    (place / "name").symlink_to(place / "other")
    top = os.open(place, os.O_RDONLY)
    with pytest.raises(OSError, match="Not a directory"):
        remove_tree._entered(top, "name")
    os.close(top)
    assert (place / "other").stat().st_mode & 0o777 == 0o750
