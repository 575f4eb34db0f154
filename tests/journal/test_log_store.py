"""Whole outputs in a container: followed while they come, whole after the end, and no task waits for the store."""

import asyncio
import os
import signal
import threading
from pathlib import Path

import pytest

from jobq.errors import BackendUnavailable
from jobq.files.folder_store import FolderStore
from jobq.journal.records import TaskState
from jobq.run.process.log_files import _MOST_ENDED, LogFile, LogFolder
from jobq.run.process.log_upload import BLOCK_BYTES, LogUpload, Spool
from jobq.task import new_id
from tests.azure.emulator import ACCOUNT, KEY, Azurite

from .conftest import SHORT, Place

pytestmark = pytest.mark.check

LINES = 3000
PRINTS = f"sleep 0.2; i=0; while [ $i -lt {LINES} ]; do echo line $i of some words; i=$((i+1)); done"


@pytest.mark.parametrize("place", ["sqlite"], indirect=True)  # which store keeps the queue is no matter here
def test_output_goes_to_a_container(place: Place, azurite: Azurite) -> None:
    """All of it, more than the journal keeps; `logs -f` says that the task waits, follows it and ends with it."""
    store = f"az://{ACCOUNT}/logs{new_id()[-12:]}/here"
    env = {"JOBQ_LOG_DIR": store, "JOBQ_CONNECTION_STRING": azurite.connection_string}
    (id_,) = place.push(PRINTS)
    follower = place.jobq.start(place.spec, "logs", id_, "-f", env=env)
    assert follower.stderr is not None
    assert b"has not run yet" in follower.stderr.readline()
    place.work(env=env)
    out, _ = follower.communicate(timeout=20)
    whole = [f"line {number} of some words" for number in range(LINES)]
    assert out.decode().splitlines() == whole
    assert place("logs", id_, env=env).lines == whole


class Flaky(FolderStore):
    """A store that loses every second answer, and answers nothing until it is let."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.open = asyncio.Event()
        self.calls = 0

    async def append(self, name: str, offset: int, chunk: bytes) -> None:
        await self.open.wait()
        await super().append(name, offset, chunk)
        self.calls += 1
        if self.calls % 2:
            raise BackendUnavailable("the answer was lost")


async def test_a_slow_store_costs_no_task_anything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is over the cap is dropped and told of; what was kept comes once and in order."""
    monkeypatch.setattr("jobq.run.process.log_upload._PAUSE_SECONDS", 0.01)
    async with Flaky(tmp_path) as place:
        upload = LogUpload(place, "q/x.1.log", most_bytes=3 * BLOCK_BYTES)
        sending = asyncio.create_task(upload.run())
        kept = b""
        for number in range(5):
            chunk = bytes([48 + number]) * (BLOCK_BYTES - 100)
            upload.write(chunk)
            kept += chunk if number < 3 else b""
            await asyncio.sleep(0)
        place.open.set()
        upload.close()
        await sending
    found = (tmp_path / "q/x.1.log").read_bytes()
    lost = 2 * (BLOCK_BYTES - 100)
    assert found.startswith(kept)
    assert f"[jobq: {lost} bytes are missing here" in found[len(kept) :].decode()


@pytest.mark.parametrize("place", ["sqlite"], indirect=True)
def test_s11_a_disk_that_hangs_holds_up_no_lease(place: Place) -> None:
    """A pipe that nobody reads stands for it: the worker wrote there itself, and renewed nothing any more."""
    (loud,) = place.push("head -c 1000000 /dev/zero; sleep 4")
    (quiet,) = place.push("sleep 5")
    hung = place.jobq.folder / f"logs/{place.spec.rpartition('/')[2]}/{loud}.1.log"
    hung.parent.mkdir(parents=True)
    os.mkfifo(hung)
    reader = os.open(hung, os.O_RDONLY | os.O_NONBLOCK)
    try:
        worker = place.start_worker("-n", "2", "--log-dir", "logs")
        for id_ in (loud, quiet):
            place.until(id_, lambda record: record.state is TaskState.SUCCEEDED)
            assert len(place("status", id_, "--json").objects[0]["attempts"]) == 1
        worker.terminate()
        worker.wait(20)
    finally:
        os.close(reader)


def test_a_file_that_the_disk_takes_late_is_whole_but_for_what_it_says(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "q/x.1.log"
    path.parent.mkdir()
    os.mkfifo(path)
    file = LogFile(path, most_bytes=200_000)
    for _ in range(4):
        file.write(b"x" * 100_000)
    file.close()
    assert path.read_bytes() == b"x" * 200_000 + b"\n[jobq: 200000 bytes are missing here: the disk was too slow]\n"
    file.join(10)
    assert file.is_written
    file.write(b"late")
    file.close()
    full = LogFile(Path("/dev/full"))
    full.write(b"x")
    full.join(10)
    full.write(b"more")
    full.close()
    assert [record.getMessage() for record in caplog.records] == [
        "the output is not written to /dev/full: No space left on device"
    ]


async def test_a_disk_that_hangs_costs_so_many_threads_at_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "q").mkdir()
    for number in range(_MOST_ENDED):
        os.mkfifo(tmp_path / f"q/{number}.1.log")  # which nobody reads: to open it hangs
    folder = LogFolder(str(tmp_path), "q")
    for number in range(_MOST_ENDED + 2):
        sink = folder.sink(str(number), 1)
        sink.write("stdout", b"x")
        sink.close()
    await folder.end(lambda: 0.0)
    said = [record.getMessage() for record in caplog.records]
    assert [each.endswith("so many logs wait for that disk already") for each in said] == [True, True, False]
    assert said[-1].startswith(f"the logs of {_MOST_ENDED} tasks are not whole")
    for number in range(_MOST_ENDED):
        assert (tmp_path / f"q/{number}.1.log").read_bytes() == b"x"  # and its thread ends
    monkeypatch.setattr(threading.Thread, "start", _no_thread)
    LogFolder(str(tmp_path), "other").sink("x", 1).write("stdout", b"x")
    assert caplog.records[-1].getMessage().endswith("can't start new thread")


def _no_thread(_: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


async def test_a_store_that_is_away_takes_no_descriptors_from_tasks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What ended first is given up, and told of; what runs is kept (S11)."""
    monkeypatch.setattr("jobq.run.process.log_upload._PAUSE_SECONDS", 0.01)
    async with Flaky(tmp_path) as place:
        before = len(os.listdir("/dev/fd"))  # noqa: PTH208 - it changes while it is read
        spool = Spool(most_files=10)
        running = spool.begin(place, "q/running.1.log")
        running.write(b"kept")
        for number in range(100):
            upload = spool.begin(place, f"q/{number}.1.log")
            upload.write(b"x")
            upload.close()
            await asyncio.sleep(0)
        assert len(os.listdir("/dev/fd")) - before <= 10  # noqa: PTH208 - as above
        running.write(b" whole")
        running.close()
        place.open.set()
        await spool.end(lambda: 60.0)
    assert (tmp_path / "q/running.1.log").read_bytes() == b"kept whole"
    assert (tmp_path / "q/99.1.log").exists()
    assert not (tmp_path / "q/0.1.log").exists()
    assert "the logs of 91 tasks are not whole" in caplog.text


@pytest.mark.parametrize("place", ["sqlite"], indirect=True)
def test_a_worker_that_sends_its_last_logs_can_be_stopped(place: Place) -> None:
    """It says what is not whole, and ends with 0: nothing was given back (architecture 12)."""
    dead = f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={KEY};BlobEndpoint=http://127.0.0.1:9/x;"
    place.push("echo something")
    worker = place.jobq.start(
        place.spec, "worker", "--log-dir", f"az://{ACCOUNT}/logs", env=SHORT | {"JOBQ_CONNECTION_STRING": dead}
    )
    assert worker.stderr is not None
    told = b""
    while b"worker stopped" not in told:
        told = worker.stderr.readline()
        assert told, "it ends by itself only after a minute"
    worker.send_signal(signal.SIGTERM)
    _, rest = worker.communicate(timeout=20)
    assert (worker.returncode, b"the logs of 1 tasks are not whole" in rest) == (0, True)
