"""S3, S4, S10 among 8 processes that want one name, some stopped and some killed: what the store itself has seen.

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
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

import jobq
from tests.postgres.server import Database

pytestmark = pytest.mark.check

CONTENDERS: Final = 8
TTL: Final = 1.0
ROUNDING: Final = 1e-4  # of times, and between two looks at the clock in one statement
NAME: Final = "one"
PROGRAM: Final = str(Path(__file__).parent / "contender.py")
_SEEN_BY_SQLITE: Final = """
CREATE TABLE seen (
    number INTEGER PRIMARY KEY,
    token INTEGER, state TEXT, expires_at REAL, renewals INTEGER, cursor TEXT, version INTEGER
);
CREATE TRIGGER saw_insert AFTER INSERT ON lease BEGIN
    INSERT INTO seen (token, state, expires_at, renewals, cursor, version)
    VALUES (new.token, new.state, new.expires_at, new.renewals, new.cursor, new.version);
END;
"""  # each write replaces the row, and so inserts it
_SEEN_BY_POSTGRES: Final = """
CREATE TABLE seen (
    number bigserial PRIMARY KEY,
    token bigint, state text, expires_at float8, renewals integer, cursor text, version bigint
);
CREATE FUNCTION see() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO public.seen (token, state, expires_at, renewals, cursor, version) VALUES (
        new.token, new.state, extract(epoch FROM new.expires_at), new.renewals,
        convert_from(new.cursor, 'UTF8'), new.version
    );
    RETURN new;
END $$;
CREATE TRIGGER saw AFTER INSERT OR UPDATE ON jobq.lease FOR EACH ROW EXECUTE FUNCTION see();
"""
_CHANGES: Final = "SELECT token, state, expires_at, renewals, cursor, version FROM seen ORDER BY number"
_GRANTS: Final = "SELECT count(DISTINCT token) FROM seen"
Run = Callable[[str], list[tuple[Any, ...]]]


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
    """The contenders, and what becomes of them.

    Args:
        spec: of the queue.
        run_sql: asks the store itself.
        folder: for what they say.
        seed: of the blows.
    """

    def __init__(self, spec: str, run_sql: Run, folder: Path, seed: int) -> None:
        self.spec = spec
        self.dice = random.Random(seed)
        self.said = folder / "said"
        self.stops = self.kills = 0
        self._run_sql = run_sql
        self._lease = "jobq.lease" if spec.startswith("postgresql") else "lease"
        self._seeds = iter(range(1, 1_000_000))
        self._running: list[subprocess.Popen[bytes]] = []

    def grants(self) -> int:
        return int(self._run_sql(_GRANTS)[0][0])

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
        found = self._run_sql(f"SELECT holder FROM {self._lease} WHERE state = 'held'")
        if not found:
            return None
        seed = found[0][0].removeprefix("contender ")
        return next((process for process in self._running if process.args[4] == seed), None)  # type: ignore[index] # a list

    def changes(self) -> list[Change]:
        return [Change(*row) for row in self._run_sql(_CHANGES)]


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


def fight(one: Fight, grants: int, seconds: float, pause: float) -> None:
    one.run(grants, seconds, pause)
    taken_over = judge(one.changes())
    told = one.said.read_text().splitlines()
    summary = f"{one.grants()} grants, {one.stops} stops, {one.kills} kills, {taken_over} taken over, {len(told)} told"
    print(summary)
    assert taken_over >= max(1, grants // 200), summary


def on_sqlite(folder: Path) -> Fight:
    spec = f"sqlite://{folder}/jobs.db/demo"
    asyncio.run(_made(spec))

    def run_sql(statement: str) -> list[tuple[Any, ...]]:
        with contextlib.closing(sqlite3.connect(folder / "jobs.db", isolation_level=None, timeout=30)) as database:
            return database.execute(statement).fetchall()

    with contextlib.closing(sqlite3.connect(folder / "jobs.db")) as database:
        database.executescript(_SEEN_BY_SQLITE)
    return Fight(spec, run_sql, folder, seed=1)


def on_postgres(database: Database, folder: Path) -> Fight:
    asyncio.run(_made(database.spec()))
    database.run(_SEEN_BY_POSTGRES)
    return Fight(database.spec(), database.run, folder, seed=2)


async def _made(spec: str) -> None:
    async with jobq.connect(spec) as queue:
        await queue.backend.create()


@pytest.fixture
def database(postgres: Database) -> Iterator[Database]:
    made = postgres.fresh()
    try:
        yield made
    finally:
        made.drop()


@pytest.mark.timeout(150)
def test_tokens_rise_and_nobody_writes_under_a_stale_one(tmp_path: Path) -> None:
    fight(on_sqlite(tmp_path), 60, 120, 0.3)


@pytest.mark.night("a contest of many processes: 8 s; SQLite's is in the check")
@pytest.mark.timeout(150)
def test_it_is_so_on_postgresql(database: Database, tmp_path: Path) -> None:
    fight(on_postgres(database, tmp_path), 40, 120, 0.3)


@pytest.mark.night
@pytest.mark.timeout(7200)
def test_ten_thousand_grants(tmp_path: Path) -> None:
    fight(on_sqlite(tmp_path), 10_000, 7000, 2.0)


@pytest.mark.night
@pytest.mark.timeout(7200)
def test_ten_thousand_grants_on_postgresql(database: Database, tmp_path: Path) -> None:
    fight(on_postgres(database, tmp_path), 10_000, 7000, 2.0)


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
