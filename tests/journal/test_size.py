"""How much a journal holds: the newest is kept, the output of what ended first goes (JOBQ_JOURNAL_MAX)."""

import time
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from jobq.backend import Backend
from jobq.journal.records import Attempt
from jobq.journal.retention import PASS_SECONDS, JournalCap
from jobq.journal.store import journal_of
from jobq.settings import Settings
from jobq.settlement import Complete, Record
from jobq.spec import resolve
from jobq.task import Task, TaskResult
from jobq_memory import queue_state as memory_store

if TYPE_CHECKING:
    from tests.postgres.server import Database

KEPT = 40
OUTPUT = "x" * 10_000
CAP = KEPT * 10_500


async def _end(backend: Backend, count: int) -> list[str]:
    """Let tasks end one after the other."""
    ids = await backend.push([Task.new(command="true") for _ in range(count)])
    for _ in range(count):
        (delivery,) = await backend.receive(1, timedelta(seconds=60), timedelta(0))
        attempt = Attempt(attempt=1, outcome="succeeded", then="done", ended=time.time(), detail="d" * 500)
        await delivery.settle(Complete(TaskResult(), record=Record(attempt, OUTPUT)))
    return ids


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_a_journal_stays_within_its_size(
    tmp_path: Path, kind: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """States stay; of the oldest the records go too, once they are many themselves."""
    database: Database | None = request.getfixturevalue("postgres").fresh() if kind == "postgres" else None
    spec = "demo" if database is None else database.spec()
    settings = Settings(home=tmp_path, journal_max=CAP)
    monkeypatch.setattr("jobq_sqlite.receiver._FORGET_SECONDS", 0.0)
    monkeypatch.setattr("jobq_postgres.forgetting._PAUSE_SECONDS", 1e9)  # the new worker's first sweep alone
    try:
        async with resolve(spec, settings) as backend:
            await backend.create()
            ids = await _end(backend, 5 * KEPT)
        for _ in range(4):  # workers that look anew
            async with resolve(spec, settings) as backend:
                await backend.receive(1, timedelta(seconds=60), timedelta(seconds=0.01))
        async with resolve(spec, settings) as backend:
            journal = journal_of(backend)
            outputs = [await journal.output(id_) for id_ in ids]
            whole = [found is not None and found[1] == OUTPUT for found in outputs]
            assert KEPT * 0.8 < sum(whole) < KEPT
            assert whole == sorted(whole), "the newest are whole"
            gone = [found is None for found in outputs]
            records = CAP * 0.25 / 800
            assert gone == sorted(gone, reverse=True), "the oldest are gone"
            assert 0.5 * records < 5 * KEPT - sum(whole) - sum(gone) < 1.5 * records
            found = await journal.find(ids)
            assert {str(record.state) for record in found} == {"succeeded"}
            assert len(found) == len(ids)
    finally:
        if database is not None:
            database.drop()


async def test_the_router_does_so_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_store, "_MOST_OUTPUT_CHARACTERS", 3 * 4096)
    async with resolve("memory://size/q", Settings()) as backend:
        await backend.create()
        ids = await _end(backend, 5)
        outputs = [await journal_of(backend).output(id_) for id_ in ids]
        assert [bool(found and found[1]) for found in outputs] == [False, False, True, True, True]


def test_a_walk_takes_steps() -> None:
    """What was seen in an earlier step counts; after the end the next walk begins anew, and later."""
    trimming = JournalCap(3000)
    assert trimming.is_due(0.0)
    assert trimming.step([(900, 900)], 0.0, last="one") == ([], [])
    assert trimming.step([(500, 1000), (500, 0), (100, 5)], 0.0, last=None) == ([0], [1, 2])
    assert not trimming.is_due(1.0)
    assert trimming.is_due(PASS_SECONDS)
    assert trimming.step([(900, 900)], PASS_SECONDS, last=None) == ([], [])
