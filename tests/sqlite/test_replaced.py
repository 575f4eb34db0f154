"""The file is taken away under a worker: deleted, emptied, replaced, its log removed. Nobody works on blindly."""

import asyncio
import shutil
import subprocess
import sys
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path

import pytest

from jobq.errors import LockLost, StoreUnusable
from jobq.lease.store import Grant
from jobq.settlement import Complete
from tests.sqlite import children
from tests.sqlite.support import DONE, LEASE, NOW, Child, ask, backend, real_file, tasks
from tests.sqlite.test_leases import request


def _beside(path: Path, ending: str) -> Path:
    return path.with_name(path.name + ending)


def _delete(path: Path) -> None:
    for ending in ("", "-wal", "-shm"):
        _beside(path, ending).unlink()


def _delete_alone(path: Path) -> None:
    path.unlink()


def _empty(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate()


def _lose_log(path: Path) -> None:
    _beside(path, "-wal").unlink()


def _lose_index(path: Path) -> None:
    _beside(path, "-shm").unlink()


def _move_backup_over(path: Path) -> None:
    shutil.copy(path.with_name("backup.db"), path.with_name("copy.db"))
    path.with_name("copy.db").rename(path)


def _move_folder_away(path: Path) -> None:
    path.parent.rename(path.parent.with_name("away"))


def _copy_other_over(path: Path) -> None:
    path.write_bytes(path.with_name("other.db").read_bytes())


BLOWS = [
    _delete, _delete_alone, _empty, _lose_log, _lose_index, _move_backup_over, _move_folder_away, _copy_other_over,
]  # fmt: skip


async def _prepared(folder: Path) -> Path:
    folder.mkdir()
    path = folder / "jobs.db"
    for name in ("other.db", "jobs.db"):
        async with backend(real_file(folder / name)) as queue:
            await queue.create()
            await queue.push(tasks(3))
    ask(path, f"VACUUM INTO '{path.with_name('backup.db')}'")
    return path


@pytest.mark.parametrize("looked", [False, True])
@pytest.mark.parametrize("blow", BLOWS)
async def test_every_verb_says_that_the_file_is_gone(
    tmp_path: Path, blow: Callable[[Path], None], looked: bool
) -> None:
    """S1: no push is acknowledged. S4: whoever holds a lease has lost it, since others may take the task."""
    path = await _prepared(tmp_path / "folder")
    async with backend(real_file(path)) as queue:
        (held,) = await queue.receive(1, LEASE, NOW)
        grant = await queue.leases.acquire(request())
        assert isinstance(grant, Grant)
        if looked:  # what looks has a connection of its own, which is opened for the first look
            await queue.stats()
        blow(path)
        refused: tuple[Awaitable[object], ...] = (
            queue.receive(1, LEASE, NOW),
            queue.push(tasks(1, "late")),
            queue.stats(),
            queue.peek(1),
        )
        for verb in refused:
            with pytest.raises(StoreUnusable, match=r"replaced while it was in use"):
                await verb
        lost = (held.renew(LEASE), held.checkpoint("x"), held.settle(Complete(DONE)))
        for verb in (*lost, queue.leases.renew(grant, LEASE), queue.leases.release("one", grant.token)):
            with pytest.raises(LockLost):
                await verb


@pytest.mark.parametrize("blow", BLOWS)
async def test_a_receive_that_waits_ends_with_the_file(tmp_path: Path, blow: Callable[[Path], None]) -> None:
    path = await _prepared(tmp_path / "folder")
    async with backend(real_file(path)) as queue:
        await queue.receive(3, timedelta(hours=1), NOW)
        waiting = asyncio.create_task(queue.receive(1, LEASE, timedelta(seconds=60)))
        await asyncio.sleep(0.1)
        assert not waiting.done()
        blow(path)
        async with asyncio.timeout(10):
            with pytest.raises(StoreUnusable):
                await waiting


async def test_who_leaves_a_replaced_file_does_no_harm_to_the_new_one(tmp_path: Path) -> None:
    """Closing would write the log of the old file into the one that stands there now, and delete its log."""
    path = await _prepared(tmp_path / "folder")
    async with backend(real_file(path)) as queue:
        await queue.push(tasks(200, "late"))
        _beside(path, "-wal").unlink()
        _beside(path, "-shm").unlink()
        assert Child(children.open_and_push, path, 0).lines() == ["pushed"]
        with pytest.raises(StoreUnusable):
            await queue.stats()
    # Looked at by another process, which knows nothing of what this one has left open.
    look = "import sqlite3, sys; print(*sqlite3.connect(sys.argv[1]).execute(sys.argv[2]).fetchall())"
    for question, answer in (
        ("PRAGMA integrity_check", "('ok',)"),
        ("SELECT id FROM task WHERE id = 't-0'", "('t-0',)"),
    ):
        found = subprocess.run([sys.executable, "-c", look, str(path), question], capture_output=True, text=True)  # noqa: PLW1510 - it is short, and what it prints tells
        assert found.stdout.strip() == answer, found.stderr


async def test_a_commit_to_a_file_that_has_gone_meanwhile_is_not_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S1: it is looked for after the commit too."""
    path = await _prepared(tmp_path / "folder")
    async with backend(real_file(path)) as queue:
        await queue.stats()

        def push_and_delete(*arguments: object) -> None:
            del arguments
            path.unlink()

        monkeypatch.setattr("jobq_sqlite.push_sql.push", push_and_delete)
        with pytest.raises(StoreUnusable, match="has lost"):
            await queue.push(tasks(1, "late"))


async def test_a_file_that_comes_back_is_the_same(tmp_path: Path) -> None:
    path = await _prepared(tmp_path / "folder")
    away = tmp_path / "away"
    async with backend(real_file(path)) as queue:
        (held,) = await queue.receive(1, LEASE, NOW)
        path.parent.rename(away)
        with pytest.raises(StoreUnusable):
            await queue.stats()
        away.rename(path.parent)
        await held.settle(Complete(DONE))


async def test_a_link_may_lead_to_the_file(tmp_path: Path) -> None:
    path = await _prepared(tmp_path / "folder")
    link = tmp_path / "link.db"
    link.symlink_to(path)
    async with backend(real_file(link)) as queue:
        await queue.push(tasks(1, "more"))
        link.unlink()
        link.symlink_to(path.with_name("other.db"))
        with pytest.raises(StoreUnusable):
            await queue.push(tasks(1, "late"))
