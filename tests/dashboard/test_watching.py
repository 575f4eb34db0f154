"""A service with a dashboard notes how its queues are where no worker does; one that only looks changes nothing."""

import asyncio
from pathlib import Path

import pytest

from jobq.dashboard.watching import NotesWatch, watched
from jobq.journal.minutes import EndedAttempts, QueueDepth
from jobq.journal.notes import MOST_NOTES, NoteKind
from jobq.journal.observations import observations_of
from jobq.server.backend_pool import BackendPool
from jobq.settings import Settings
from jobq.spec import resolve
from jobq.task import Task
from jobq_sqlite import SqliteBackend

pytestmark = pytest.mark.check


async def _place(tmp_path: Path) -> tuple[str, Settings]:
    settings = Settings(home=tmp_path)
    spec = f"sqlite://{tmp_path}/jobs.db/a"
    for name in ("a", "b"):
        async with resolve(spec[:-1] + name, settings) as backend:
            await backend.create()
            await backend.push([Task.new(command="true") for _ in range(3)])
    return spec, settings


@pytest.mark.slow("a browser beside a service and workers")
async def test_each_queue_of_the_place_is_noted(tmp_path: Path) -> None:
    """Also where the notes of one cannot be kept; and what is deleted is left alone."""
    spec, settings = await _place(tmp_path)
    places = BackendPool(spec, settings)
    await places.open()
    try:
        watch = NotesWatch(places)
        async with asyncio.timeout(60):
            await watch.round()
        for name in ("a", "b"):
            notes = observations_of(places.root, name)
            assert notes is not None
            known = [QueueDepth.decode(note.value) for note in await notes.page(NoteKind.DEPTH, "", 10)]
            assert [depth.counts["ready"] for depth in known if depth] == [3]
            ended = await notes.page(NoteKind.ENDED, "", MOST_NOTES)
            assert len(ended) > 3, "it looks back"
            assert EndedAttempts.decode(ended[-1].value) == EndedAttempts(outcomes={})
        b = await places.take("b")
        assert isinstance(b, SqliteBackend)
        await b.delete()
        places.give("b")
        await watch.round()
    finally:
        await places.close()


async def test_who_may_change_nothing_notes_nothing(tmp_path: Path) -> None:
    spec, settings = await _place(tmp_path)
    places = BackendPool(spec, settings)
    await places.open()
    try:
        notes = observations_of(places.root, "a")
        assert notes is not None
        async with watched(places, is_read_only=True):
            await asyncio.sleep(0.3)
        assert await notes.page(NoteKind.DEPTH, "", 10) == []
        async with watched(places), asyncio.timeout(20):
            while not await notes.page(NoteKind.DEPTH, "", 10):
                await asyncio.sleep(0.05)
    finally:
        await places.close()
