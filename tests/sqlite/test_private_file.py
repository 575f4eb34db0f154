"""A9: the file is its owner's alone; one that others may read or change is said, with the command that mends it."""

import logging
import os
import shlex
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobq_sqlite import private_file
from tests.sqlite.support import backend, tasks, virtual_file

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give a file away")


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture(autouse=True)
def open_umask() -> Iterator[None]:
    """Everybody may do everything with what does not say otherwise."""
    former = os.umask(0)
    private_file._warned.clear()
    yield
    os.umask(former)


async def test_a_new_file_its_log_and_its_folder_are_for_this_user_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with backend(virtual_file(tmp_path / "new")) as queue:
        await queue.create()
        await queue.push(tasks(1))
        modes = {path.name: mode_of(path) for path in (tmp_path / "new").iterdir()}
    assert modes == {"jobs.db": 0o600, "jobs.db-wal": 0o600, "jobs.db-shm": 0o600}
    assert mode_of(tmp_path / "new") == 0o700
    assert caplog.messages == []


async def test_a_file_that_is_made_through_a_link_is_for_this_user_alone(tmp_path: Path) -> None:
    file = virtual_file(tmp_path)
    target = tmp_path / "elsewhere.db"
    file.path.symlink_to(target)
    async with backend(file) as queue:
        await queue.create()
        assert mode_of(target) == mode_of(tmp_path / "elsewhere.db-wal") == 0o600


@pytest.mark.parametrize(("mode", "what"), [(0o644, "read"), (0o640, "read"), (0o660, "change"), (0o666, "change")])
async def test_what_others_may_do_is_said_once_and_the_command_mends_it(
    tmp_path: Path, mode: int, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    file = virtual_file(tmp_path / "it's here")
    async with backend(file) as queue:
        await queue.create()
    file.path.chmod(mode)
    for _ in range(2):
        async with backend(file) as queue:
            await queue.stats()
    (message,) = caplog.messages
    text, _, command = message.partition(": ")
    assert text == f"other users may {what} {file.path} and what its tasks hold"
    assert caplog.records[0].levelno == logging.WARNING
    subprocess.run(["sh", "-c", command], check=True)
    assert mode_of(file.path) == 0o600


async def test_a_folder_in_which_any_user_may_replace_the_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = virtual_file(tmp_path)
    tmp_path.chmod(0o777 | stat.S_ISVTX)
    async with backend(file) as queue:
        await queue.create()
    assert caplog.messages == []
    tmp_path.chmod(0o777)
    async with backend(file) as queue:
        await queue.stats()
    assert caplog.messages == [f"any user may replace {file.path}: chmod o-w {shlex.quote(str(tmp_path))}"]
    tmp_path.chmod(0o700)


@as_root
async def test_a_file_of_another_user(caplog: pytest.LogCaptureFixture) -> None:
    with tempfile.TemporaryDirectory() as name:
        file = virtual_file(Path(name))
        async with backend(file) as queue:
            await queue.create()
        os.chown(file.path, 65534, 65534)
        async with backend(file) as queue:
            await queue.stats()
    (message,) = caplog.messages
    assert message == f"{file.path} belongs to another user, who decides what runs by it: sudo -u '#65534' jobq ..."
