"""T11: whatever a crash leaves of the write-ahead log, the file opens and holds a prefix of what was acknowledged.

Copying the files ends their POSIX locks in this process (https://www.sqlite.org/howtocorrupt.html section 2.2), which
is harmless here: nobody else uses the live file.
"""

import random
import shutil
import sqlite3
import struct
from contextlib import closing
from pathlib import Path
from typing import Any

from tests.sqlite.support import NOW, backend, tasks, virtual_file

PUSHES = 60
CUTS = 6
CHECKPOINT_PAGES = 40


class OftenCheckpointed(sqlite3.Connection):
    """A small log that starts anew many times in a test, as a large one does in a day."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")


async def test_torn_tail_leaves_a_prefix(tmp_path: Path) -> None:
    """S1, S5: at least 300 torn logs, across the log's restarts after a checkpoint."""
    choose = random.Random(3)
    live = virtual_file(tmp_path, connection_class=OftenCheckpointed)
    acknowledged: list[str] = []
    points, restarts, salts = 0, 0, b""
    async with backend(live) as queue:
        await queue.create()
        for number in range(PUSHES):
            padding = {"PADDING": "x" * choose.choice((10, 3_000, 20_000))}
            acknowledged += await queue.push(tasks(choose.randrange(1, 5), f"n{number}", env=padding))
            log = Path(f"{live.path}-wal").read_bytes()
            restarts += log[16:24] != salts  # the header's salts change when the log starts anew
            salts = log[16:24]
            synced = _synced_bytes(live.path)
            for cut in [len(log), *(choose.randint(synced, len(log)) for _ in range(CUTS - 1))]:
                found = await _reopened(tmp_path / "copy", live.path, log[:cut], take=points % 10 == 0)
                assert found == acknowledged[: len(found)], f"not a prefix after push {number}, log cut at {cut}"
                assert cut < len(log) or len(found) == len(acknowledged), "an acknowledged task is gone (S1)"
                points += 1
    assert points >= 300
    assert restarts >= 5, "the log hardly started anew"


async def test_damaged_tail_leaves_a_prefix(tmp_path: Path) -> None:
    """S1: a page of the log that was half written, or never, is told by its checksum."""
    choose = random.Random(4)
    live = virtual_file(tmp_path)
    async with backend(live) as queue:
        await queue.create()
        acknowledged = [(await queue.push(tasks(1, f"n{number}")))[0] for number in range(40)]
        log = Path(f"{live.path}-wal").read_bytes()
        for number in range(60):
            damaged = bytearray(log)
            start = choose.randrange(len(log))
            damaged[start : start + 512] = bytes(len(log[start : start + 512]))
            found = await _reopened(tmp_path / "copy", live.path, bytes(damaged), take=number % 10 == 0)
            assert found == acknowledged[: len(found)], f"not a prefix, log damaged at {start}"


def _synced_bytes(database: Path) -> int:
    """Return how much of the log has been copied into the database: that part was synced first, no crash can tear it.

    https://www.sqlite.org/walformat.html: nBackfill is at byte 96 of the shared-memory file.
    """
    (frames,) = struct.unpack_from("=I", Path(f"{database}-shm").read_bytes(), 96)
    return 32 + int(frames) * (24 + 4096)


async def _reopened(folder: Path, database: Path, log: bytes, *, take: bool) -> list[str]:
    """Return the ids in a copy, as a process finds them that opens it after the crash, and sometimes takes them."""
    folder.mkdir()
    copy = virtual_file(folder)
    shutil.copyfile(database, copy.path)
    Path(f"{copy.path}-wal").write_bytes(log)
    try:
        with closing(sqlite3.connect(copy.path, isolation_level=None)) as reader:
            reader.execute("PRAGMA synchronous = OFF")  # closing copies the log; the copy is thrown away
            assert reader.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            if reader.execute("PRAGMA user_version").fetchone() == (0,):
                return []
            found = [id_ for (id_,) in reader.execute("SELECT id FROM task ORDER BY seq")]
        if found and take:
            async with backend(copy) as queue:
                assert [delivery.id for delivery in await queue.receive(1000, None, NOW)] == found
        return found
    finally:
        shutil.rmtree(folder)
