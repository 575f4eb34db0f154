"""S3, S4, S10 among 8 processes that want one name, some stopped and some killed: what the file itself has seen.

Triggers write down every change of the lease in the order and in the transaction in which it was made.
"""

import asyncio
import contextlib
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

import jobq

CONTENDERS: Final = 8
TTL: Final = 1.0
ROUNDING: Final = 1e-6  # of the sums of floats
NAME: Final = "one"
PROGRAM: Final = str(Path(__file__).parent / "contender.py")
_SEEN: Final = """
CREATE TABLE seen (
    number INTEGER PRIMARY KEY,
    token INTEGER, state TEXT, expires_at REAL, renewals INTEGER, cursor TEXT, version INTEGER
);
CREATE TRIGGER saw_insert AFTER INSERT ON lease BEGIN
    INSERT INTO seen (token, state, expires_at, renewals, cursor, version)
    VALUES (new.token, new.state, new.expires_at, new.renewals, new.cursor, new.version);
END;
"""  # each write replaces the row, and so inserts it


@dataclass
class Change:
    """The lease after one write."""

    token: int
    state: str
    expires_at: float
    renewals: int
    cursor: str | None
    version: int


class Fight:
    """The contenders, and what becomes of them."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.file = folder / "jobs.db"
        self.spec = f"sqlite://{self.file}/demo"
        self.dice = random.Random(seed)
        self.said = folder / "said"
        self.stops = self.kills = 0
        self._seeds = iter(range(1, 1_000_000))
        self._running: list[subprocess.Popen[bytes]] = []

    async def prepare(self) -> None:
        async with jobq.connect(self.spec) as queue:
            await queue.backend.create()
        with self.database() as database:
            database.executescript(_SEEN)

    @contextlib.contextmanager
    def database(self) -> Iterator[sqlite3.Connection]:
        with contextlib.closing(sqlite3.connect(self.file, isolation_level=None, timeout=30)) as database:
            yield database

    def grants(self) -> int:
        with self.database() as database:
            (count,) = database.execute("SELECT count(DISTINCT token) FROM seen").fetchone()
        return int(count)

    def run(self, grants: int, seconds: float, pause: float) -> None:
        end = time.monotonic() + seconds
        with self.said.open("wb") as said:
            try:
                for _ in range(CONTENDERS):
                    self._running.append(self._start(said))
                # A run in which nobody wrote too late proves nothing, so it goes on until somebody has tried.
                while self.grants() < grants or b"refused" not in self.said.read_bytes():
                    assert time.monotonic() < end, f"{self.grants()} grants only"
                    time.sleep(self.dice.uniform(0, pause))
                    self._strike(said)
            finally:
                for process in self._running:
                    process.kill()
                    process.wait()

    def _start(self, said: object) -> subprocess.Popen[bytes]:
        argv = [sys.executable, PROGRAM, self.spec, NAME, str(next(self._seeds)), str(TTL)]
        return subprocess.Popen(argv, stdout=said, stderr=subprocess.DEVNULL)  # type: ignore[call-overload,no-any-return] # an open file

    def _strike(self, said: object) -> None:
        """Stop or kill one of them, the holder more often than chance would."""
        victim = self._holder() if self.dice.random() < 0.7 else None
        victim = victim or self.dice.choice(self._running)
        if self.dice.random() < 0.25:
            victim.kill()
            victim.wait()
            self._running[self._running.index(victim)] = self._start(said)
            self.kills += 1
        else:
            victim.send_signal(signal.SIGSTOP)
            self.stops += 1
            time.sleep(TTL * self.dice.choice((0.3, 1.3, 1.6)))
            victim.send_signal(signal.SIGCONT)

    def _holder(self) -> subprocess.Popen[bytes] | None:
        with self.database() as database:
            found = database.execute("SELECT holder FROM lease WHERE state = 'held'").fetchone()
        if found is None:
            return None
        seed = found[0].removeprefix("contender ")
        return next((process for process in self._running if process.args[4] == seed), None)  # type: ignore[index] # a list

    def changes(self) -> list[Change]:
        with self.database() as database:
            rows = database.execute(
                "SELECT token, state, expires_at, renewals, cursor, version FROM seen ORDER BY number"
            )
            return [Change(*row) for row in rows]


def judge(changes: list[Change]) -> int:
    """Hold what was seen against the rules; return how many were taken over from a holder that had vanished."""
    taken_over = 0
    before = changes[0]
    assert before.token == 1
    for change in changes[1:]:
        if change.token != before.token:
            assert change.token == before.token + 1, "S3: tokens rise, one by one, and are never used again"
            granted = change.expires_at - TTL  # by the server's clock
            if before.state == "held":
                assert granted >= before.expires_at - ROUNDING, "S10: two unexpired holders"
                taken_over += 1
            assert (change.cursor, change.version) == (before.cursor, before.version), "S9: the cursor stays"
        elif change.cursor != before.cursor:
            assert before.state == "held", "S4: a write after the release"
            assert change.cursor is not None
            assert int(change.cursor.split()[0]) == change.token, "S4: a stale holder's write was accepted"
            assert change.version > before.version, "S9"
        if change.renewals > before.renewals and change.token == before.token:
            # A renewal that was accepted came before the expiry that it moved.
            assert change.expires_at - TTL < before.expires_at + ROUNDING, "S10: renewed after it had expired"
        before = change
    return taken_over


async def fight(folder: Path, grants: int, seconds: float, pause: float) -> Fight:
    one = Fight(folder, seed=grants)
    await one.prepare()
    await asyncio.to_thread(one.run, grants, seconds, pause)
    taken_over = judge(one.changes())
    told = one.said.read_text().splitlines()
    summary = f"{one.grants()} grants, {one.stops} stops, {one.kills} kills, {taken_over} taken over, {len(told)} told"
    print(summary)
    assert taken_over >= max(1, grants // 200), summary
    assert any(line.startswith("refused") for line in told), f"no stale write was tried: {summary}"
    return one


@pytest.mark.timeout(120)
async def test_tokens_rise_and_nobody_writes_under_a_stale_one(tmp_path: Path) -> None:
    await fight(tmp_path, 150, 90, 0.4)


@pytest.mark.soak
@pytest.mark.timeout(7200)
async def test_ten_thousand_grants(tmp_path: Path) -> None:
    await fight(tmp_path, 10_000, 7000, 2.0)


def test_the_judge_sees_what_is_wrong() -> None:
    """A check that cannot fail shows nothing."""
    held = Change(1, "held", 101.0, 0, None, 0)
    wrong: list[list[Change]] = [
        [held, Change(2, "held", 101.5, 0, None, 0)],  # granted at 100.5, while the first lasts to 101
        [held, Change(3, "held", 103.0, 0, None, 0)],  # a token left out
        [held, Change(1, "held", 101.0, 0, "2 1", 1)],  # written under another token
        [held, Change(1, "released", 100.5, 0, None, 0), Change(1, "released", 100.5, 0, "1 1", 1)],
        [held, Change(1, "held", 103.0, 1, None, 0)],  # renewed at 102
        [held, Change(2, "held", 103.0, 0, "1 1", 1)],  # a cursor from nowhere
    ]
    for changes in wrong:
        with pytest.raises(AssertionError):
            judge(changes)
    assert judge([held, Change(2, "held", 102.0, 0, None, 0)]) == 1
