"""What a worker says of itself: while it works or idles, when it has ended, and that nothing waits for it."""

import asyncio
import contextlib
import logging
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from jobq.clock import SystemClock
from jobq.journal.notes import NoteKind
from jobq.journal.observations import Observations
from jobq.journal.presence import WorkerPresence
from jobq.journal.records import this_holder
from jobq.run.stopping import Stopping
from jobq.run.worker import presence_reports
from jobq.run.worker.worker import Worker
from jobq.settings import Settings
from jobq.task import Task
from jobq_postgres import PostgresBackend
from jobq_sqlite import SqliteBackend, StoreFile
from jobq_sqlite.host import this_host
from tests.process.stage import QUICK

if TYPE_CHECKING:
    from tests.postgres.server import Database

Backend = SqliteBackend | PostgresBackend


@pytest.fixture(params=["sqlite", "postgres"])
def connect(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], Backend]]:
    if request.param == "sqlite":
        file = StoreFile(path=tmp_path / "jobs.db", clock=SystemClock(), host=this_host())
        yield lambda: SqliteBackend(file, "q")
        return
    database: Database = request.getfixturevalue("postgres").fresh()
    yield lambda: PostgresBackend(database.server(), "q")
    database.drop()


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(presence_reports, "_FIRST_SECONDS", 0.0)


def _worker(backend: Backend, stopping: Stopping, **settings: Any) -> Worker:
    return Worker(
        backend,
        Settings(**{**QUICK, "num_workers": 3, "idle_timeout": timedelta(hours=1), **settings}),
        stopping=stopping,
    )


async def _told(notes: Observations, state: str, busy: int | None = None) -> WorkerPresence:
    async with asyncio.timeout(20):
        while True:
            found = [WorkerPresence.decode(note.value) for note in await notes.page(NoteKind.WORKER, "", 10)]
            for each in found:
                if each is not None and each.state == state and busy in (None, each.busy):
                    assert len(found) == 1
                    return each
            await asyncio.sleep(0.02)


async def test_an_idle_worker_is_seen_and_so_is_its_end(connect: Callable[[], Backend]) -> None:
    async with connect() as backend, connect() as other:
        await backend.create()
        notes = other.observations()
        assert notes is not None
        stopping = Stopping()
        running = asyncio.create_task(_worker(backend, stopping).run())
        told = await _told(notes, "working")
        assert (told.holder, told.slots, told.busy) == (this_holder(), 3, 0)
        assert abs(told.started - time.time()) < 60
        async with asyncio.timeout(20):
            while not await notes.page(NoteKind.ENDED, "", 10):  # it has the turn, too
                await asyncio.sleep(0.02)
        assert len(await notes.page(NoteKind.DEPTH, "", 10)) >= 1
        stopping.drain("a test")
        await running
        told = await _told(notes, "stopped")
        assert told.busy == 0


async def test_what_cannot_be_noted_holds_up_nothing(
    connect: Callable[[], Backend], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither when it is refused, nor when it never answers: tasks are done, and the worker ends."""
    caplog.set_level(logging.DEBUG, logger="jobq.run.worker.presence_reports")
    for fault in (_refused, _silent):
        async with connect() as backend:
            await backend.create()
            notes = backend.observations()
            assert notes is not None
            monkeypatch.setattr(type(notes), "put", fault)
            await backend.push([Task.new(command="true") for _ in range(3)])
            began = time.monotonic()
            worker = _worker(backend, Stopping(), idle_timeout=timedelta(seconds=0.2))
            report = await worker.run()
            assert (report.succeeded, report.lost) == (3, 0)
            assert time.monotonic() - began < 15
            monkeypatch.undo()
    assert any("could not be noted" in record.message for record in caplog.records)


async def test_s11_what_is_gone_of_jobq_ends_no_worker(
    connect: Callable[[], Backend], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files may be replaced while it runs: what it only then imports is perhaps not there, and ended its tasks."""
    monkeypatch.delitem(sys.modules, "jobq.journal.observing", raising=False)
    monkeypatch.setitem(sys.modules, "jobq.journal.observing", None)
    async with connect() as backend:
        await backend.create()
        await backend.push([Task.new(command="sleep 0.5")])
        report = await _worker(backend, Stopping(), idle_timeout=timedelta(seconds=0.2)).run()
        assert (report.succeeded, report.lost) == (1, 0)


async def _refused(*_: object, **__: object) -> None:
    raise RuntimeError("refused")


async def _silent(*_: object, **__: object) -> None:
    await asyncio.Event().wait()


async def test_the_word_of_the_end_is_waited_for_half_a_second(
    connect: Callable[[], Backend], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with connect() as backend, connect() as other:
        await backend.create()
        notes = other.observations()
        assert notes is not None
        stopping = Stopping()
        running = asyncio.create_task(_worker(backend, stopping).run())
        await _told(notes, "working")
        async with asyncio.timeout(20):
            while len(await notes.page(NoteKind.ENDED, "", 10)) < 3:
                await asyncio.sleep(0.02)
        await asyncio.sleep(0.1)
        monkeypatch.setattr(type(notes), "put", _silent)
        began = time.monotonic()
        stopping.drain("a test")
        await running
        assert time.monotonic() - began < 10


async def test_a_worker_that_is_cancelled_says_so_too(connect: Callable[[], Backend]) -> None:
    async with connect() as backend, connect() as other:
        await backend.create()
        notes = other.observations()
        assert notes is not None
        running = asyncio.create_task(_worker(backend, Stopping()).run())
        await _told(notes, "working")
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
        found = await notes.page(NoteKind.WORKER, "", 10)
        assert [each and each.state for each in (WorkerPresence.decode(note.value) for note in found)] in (
            ["stopped"],
            ["working"],  # it was ended without grace: gone after a while
        )
