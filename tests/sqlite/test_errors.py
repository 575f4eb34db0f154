"""What goes wrong with a file: the right error, which names it; acknowledged tasks stay; the backend works again."""

import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from jobq.errors import AccessDenied, BackendUnavailable, JobqError, QueueNotFound, StoreUnusable
from jobq.task import Task
from jobq_sqlite.open_file import SCHEMA_VERSION
from tests.sqlite import children
from tests.sqlite.support import LEASE, NOW, Child, ask, backend, intact, real_file, states, tasks, virtual_file

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to drop rights or to mount")


async def _filled(folder: Path, count: int = 3) -> Path:
    file = virtual_file(folder)
    async with backend(file) as queue:
        await queue.create()
        await queue.push(tasks(count))
    return file.path


@pytest.mark.parametrize("statement", ["BEGIN EXCLUSIVE", "BEGIN IMMEDIATE"])
async def test_lock_of_another_process(tmp_path: Path, statement: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """S1: the wait ends, nothing was changed, and afterwards the same backend works."""
    path = await _filled(tmp_path)
    async with backend(virtual_file(tmp_path, busy_timeout=0.1)) as queue:
        (held,) = await queue.receive(1, LEASE, NOW)
        holder = Child(children.hold_write_lock, path, statement)
        assert holder.line() == "held"
        if sys.platform == "linux":
            with pytest.raises(BackendUnavailable, match=rf"{path} stayed locked by process {holder.process.pid} \("):
                await queue.push(tasks(1, "late"))
        monkeypatch.setattr("jobq_sqlite.lock_holder._LOCKS", tmp_path / "no such list")
        with pytest.raises(BackendUnavailable, match=rf"{path} stayed locked.*fuser"):
            await queue.push(tasks(1, "late"))
        with pytest.raises(BackendUnavailable, match=r"nothing was changed"):
            await held.renew(LEASE)
        assert (await queue.stats()).leased == 1, "reading needs no lock"
        holder.kill()
        await held.renew(LEASE)
        await queue.push(tasks(1, "late"))
    assert len(states(path)) == 4


@pytest.mark.parametrize(
    ("damage", "error"),
    [
        (lambda data: b"\xff" * len(data), StoreUnusable),
        (lambda data: data[:100] + b"\xff" * (len(data) - 100), StoreUnusable),
        (lambda data: data[:5000], StoreUnusable),
        (lambda data: data[:50], StoreUnusable),
        (lambda _: b"Dear diary,\n" * 1000, StoreUnusable),
        (lambda _: b"", QueueNotFound),
    ],
    ids=["overwritten", "pages overwritten", "truncated", "truncated in its header", "text", "empty"],
)
async def test_damaged_file(tmp_path: Path, damage: Callable[[bytes], bytes], error: type[JobqError]) -> None:
    path = await _filled(tmp_path)
    path.write_bytes(damage(path.read_bytes()))
    async with backend(virtual_file(tmp_path)) as queue:
        for verb in (queue.push(tasks(1, "late")), queue.receive(1, LEASE, NOW), queue.peek(1), queue.stats()):
            with pytest.raises(error) as caught:
                await verb
            assert str(path) in str(caught.value)


async def test_file_damaged_while_open(tmp_path: Path) -> None:
    """A damaged page is told, not answered for; the process does not end, and no push is acknowledged on it."""
    path = await _filled(tmp_path, 500)
    async with backend(virtual_file(tmp_path)) as queue:
        await queue.create()
        with path.open("r+b") as file:
            file.seek(4096)
            file.write(b"\xff" * (path.stat().st_size - 4096))
        with pytest.raises(StoreUnusable, match=rf"{path} is damaged.*\.recover"):
            await queue.receive(400, LEASE, NOW)
        with pytest.raises(StoreUnusable):
            await queue.push(tasks(1, "late"))


async def test_database_of_another_program(tmp_path: Path) -> None:
    """It is named and left exactly as it was."""
    path = tmp_path / "jobs.db"
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE photos (name)")
    before = path.read_bytes()
    async with backend(virtual_file(tmp_path)) as queue:
        for verb in (queue.create(), queue.push(tasks(1)), queue.stats()):
            with pytest.raises(StoreUnusable, match=rf"{path} is an SQLite database of another program"):
                await verb
    assert path.read_bytes() == before


@pytest.mark.parametrize("version", [SCHEMA_VERSION - 1, SCHEMA_VERSION + 1])
async def test_another_version_is_refused(tmp_path: Path, version: int) -> None:
    path = await _filled(tmp_path)
    ask(path, f"PRAGMA user_version = {version}")
    async with backend(virtual_file(tmp_path)) as queue:
        with pytest.raises(StoreUnusable, match=rf"{path} has schema version {version}"):
            await queue.stats()


async def test_tables_changed_by_hand(tmp_path: Path) -> None:
    path = await _filled(tmp_path)
    ask(path, "DROP TABLE task")
    async with backend(virtual_file(tmp_path)) as queue:
        with pytest.raises(StoreUnusable, match=rf"{path} has not the tables.*by hand"):
            await queue.stats()


async def test_places_that_are_no_file(tmp_path: Path) -> None:
    (tmp_path / "jobs.db").mkdir()
    (tmp_path / "text").write_text("x")
    places = [virtual_file(tmp_path), virtual_file(tmp_path / "text"), virtual_file(tmp_path / ("x" * 300))]
    for file in places:
        async with backend(file) as queue:
            for verb in (queue.create(), queue.stats()):
                with pytest.raises(StoreUnusable, match=str(tmp_path)):
                    await verb


async def test_missing_folder(tmp_path: Path) -> None:
    """A worker is told that nothing is there; creating makes the folder, for this user alone."""
    file = virtual_file(tmp_path / "a" / "b")
    async with backend(file) as queue:
        with pytest.raises(QueueNotFound, match=rf"queue 'q' does not exist; .*\(looked in {file.path}\)$"):
            await queue.receive(1, LEASE, NOW)
        assert not file.path.parent.exists()
        await queue.create()
        await queue.push(tasks(1))
    assert file.path.parent.stat().st_mode & 0o777 == 0o700


async def test_unknown_queue_in_a_file(tmp_path: Path) -> None:
    path = await _filled(tmp_path)
    async with backend(virtual_file(tmp_path), "other") as queue:
        with pytest.raises(QueueNotFound, match=f"'other' does not exist.*looked in {path}"):
            await queue.push(tasks(1))
        await queue.create()
        await queue.push(tasks(1))


@as_root
@pytest.mark.parametrize("case", ["read-only file", "read-only folder", "closed folder"])
async def test_missing_rights(case: str) -> None:
    """The user nobody is told AccessDenied and where; nothing changes."""
    with tempfile.TemporaryDirectory() as name:  # pytest's own folders are closed to others
        folder = Path(name)
        folder.chmod(0o755)
        path = folder / "jobs.db"
        if case != "read-only folder":
            async with backend(real_file(path)) as queue:
                await queue.create()
            path.chmod(0o644)
        folder.chmod({"read-only file": 0o777, "read-only folder": 0o755, "closed folder": 0o700}[case])
        (said,) = Child(children.push_as_nobody, path).lines()
        assert said.startswith(f"{AccessDenied.__name__}: {path} can"), said
        folder.chmod(0o755)
        assert not path.exists() or states(path) == {}


@as_root
@pytest.mark.parametrize("folder_mode", [0o777, 0o755])
@pytest.mark.parametrize("is_in_use", [False, True])
async def test_who_may_only_read_is_told_what_to_do(folder_mode: int, is_in_use: bool) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder, path = Path(name), Path(name, "jobs.db")
        async with backend(real_file(path)) as queue:
            await queue.create()
            folder.chmod(folder_mode)
            path.chmod(0o644)
            if is_in_use:
                for beside in folder.glob("jobs.db-*"):
                    beside.chmod(0o644)
                (said,) = Child(children.look_as_nobody, path).lines()
        if not is_in_use:
            (said,) = Child(children.look_as_nobody, path).lines()
        assert said.startswith(f"{AccessDenied.__name__}: {path} cannot be written by this user"), said
        assert "give this user the right to write to the file and its folder" in said


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 1 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "jobq-test", folder], check=False, capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"cannot mount a tmpfs: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", folder], check=True)


@as_root
async def test_full_disk(small_disk: Path) -> None:
    """S1: what was acknowledged stays, what was not is absent, and the same backend goes on when there is space."""
    file = virtual_file(small_disk)
    ballast = small_disk / "ballast"
    acknowledged: list[str] = []
    async with backend(file) as queue:
        await queue.create()
        acknowledged += await queue.push(tasks(4, "first"))
        (held,) = await queue.receive(1, LEASE, NOW)
        ballast.write_bytes(bytes(shutil.disk_usage(small_disk).free - 96 * 1024))
        padding = {"PADDING": "x" * 10_000}

        async def fill() -> None:
            for number in range(100):
                acknowledged.extend(await queue.push([Task.new(command="true", id=f"n{number}", env=padding)]))

        with pytest.raises(BackendUnavailable, match=f"no space left for {file.path}.*nothing was changed"):
            await fill()
        assert sorted(states(file.path)) == sorted(acknowledged)
        assert (await queue.stats()).leased == 1
        ballast.unlink()
        await held.renew(LEASE)
        acknowledged += await queue.push([Task.new(command="true", id="again", env=padding)])
    assert sorted(states(file.path)) == sorted(acknowledged)
    assert intact(file.path)


@as_root
async def test_disk_that_is_full_from_the_start(small_disk: Path) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(shutil.disk_usage(small_disk).free))
    file = virtual_file(small_disk / "folder")
    async with backend(file) as queue:
        with pytest.raises(BackendUnavailable, match=str(file.path.parent)):
            await queue.create()
        ballast.unlink()
        await queue.create()
        await queue.push(tasks(1))
