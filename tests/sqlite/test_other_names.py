"""S1, S3: one file under two names has two logs. Neither name is served while there are two."""

import asyncio
import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path

import pytest

from jobq.errors import StoreUnusable
from jobq.examination import Verdict
from jobq.settlement import Complete
from tests.sqlite.support import DONE, LEASE, NOW, backend, intact, real_file, tasks

_LINKED = r"has another name, a hard link.* -samefile .*\.backup"
_MOUNTED = r"is mounted alone, without its folder.*docker run -v FOLDER"
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to mount")


async def _filled(path: Path) -> Path:
    async with backend(real_file(path)) as queue:
        await queue.create()
        await queue.push(tasks(3))
    return path


async def _is_refused(path: Path, why: str) -> None:
    beside = sorted(path.parent.iterdir())
    async with backend(real_file(path)) as queue:
        for verb in (queue.create(), queue.push(tasks(1, "late")), queue.receive(1, LEASE, NOW), queue.stats()):
            with pytest.raises(StoreUnusable, match=rf"{path} {why}"):
                await verb
        found = [each async for each in queue.findings() if each.verdict is Verdict.DIFFERS]
    assert [each.what for each in found] == ["the file has one name"]
    assert str(path) in found[0].advice
    assert sorted(path.parent.iterdir()) == beside, "no log was made"


async def test_a_hard_link_is_refused_under_both_names_until_it_is_removed(tmp_path: Path) -> None:
    path = await _filled(tmp_path / "jobs.db")
    (tmp_path / "beside").mkdir()
    other = tmp_path / "beside" / "jobs.db"
    other.hardlink_to(path)
    (tmp_path / "soft.db").symlink_to(other)
    for name in (path, other, tmp_path / "soft.db"):
        await _is_refused(name, _LINKED)
    other.unlink()
    async with backend(real_file(path)) as queue:
        await queue.push(tasks(1, "late"))
        assert (await queue.stats()).visible == 4


async def test_a_link_to_what_is_open_is_refused_and_costs_no_lease(tmp_path: Path) -> None:
    """`cp -al` of a folder that is in use: nothing is acknowledged meanwhile, and what is held stays so."""
    path = await _filled(tmp_path / "jobs.db")
    other = tmp_path / "snapshot.db"
    async with backend(real_file(path)) as queue:
        (held,) = await queue.receive(1, LEASE, NOW)
        assert len(await queue.receive(9, timedelta(minutes=1), NOW)) == 2
        waiting = asyncio.create_task(queue.receive(1, LEASE, timedelta(minutes=1)))
        await queue.stats()
        other.hardlink_to(path)
        for verb in (queue.push(tasks(1, "late")), held.renew(LEASE), held.settle(Complete(DONE)), queue.stats()):
            with pytest.raises(StoreUnusable, match=_LINKED):
                await verb
        with pytest.raises(StoreUnusable, match=_LINKED):
            await waiting
        other.unlink()
        await held.renew(LEASE)
        await held.settle(Complete(DONE))
        await queue.push(tasks(1, "late"))
    assert intact(path)


@pytest.fixture
def mounts() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def _mount(stack: ExitStack, what: Path, where: Path) -> None:
    done = subprocess.run(["mount", "--bind", what, where], check=False, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"cannot mount: {done.stderr.strip()}")
    stack.callback(lambda: subprocess.run(["umount", where], check=True))


@as_root
async def test_a_file_that_is_mounted_alone_is_refused_and_its_folder_is_not(tmp_path: Path, mounts: ExitStack) -> None:
    """Also where both are on one device, and the file has one link."""
    path = await _filled(tmp_path / "jobs.db")
    alone, beside = tmp_path / "alone", tmp_path / "beside"
    alone.mkdir()
    beside.mkdir()
    (alone / "jobs.db").touch()
    _mount(mounts, path, alone / "jobs.db")
    _mount(mounts, tmp_path, beside)
    await _is_refused(alone / "jobs.db", _MOUNTED)
    async with backend(real_file(path)) as queue, backend(real_file(beside / "jobs.db")) as other:
        await queue.push(tasks(1, "more"))
        assert (await other.stats()).visible == 4
