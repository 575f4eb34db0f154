"""A queue that is deleted: who had it open neither pushes to nor takes from what stands in its place."""

from pathlib import Path
from unittest.mock import AsyncMock

import pytest

from jobq.errors import LockLost, QueueNotEmpty, QueueNotFound
from jobq.journal.notes import DEPTH_MARK, NoteKind, time_key
from jobq.journal.store import journal_of
from jobq.pausing import Pause
from jobq.settlement import Complete, MoveToDeadLetters
from jobq_sqlite.backend import SqliteBackend
from tests.sqlite.support import DONE, LEASE, NOW, ask, backend, tasks, virtual_file


async def test_all_of_it_is_gone_and_nothing_of_others(tmp_path: Path) -> None:
    file = virtual_file(tmp_path)
    async with backend(file) as queue, backend(file, "other") as other:
        await other.create()
        await other.push(tasks(3, "o"))
        await queue.create()
        await queue.push(tasks(600))  # more than one transaction deletes
        (delivery,) = await queue.receive(1, LEASE, NOW)
        await delivery.settle(Complete(DONE))
        for notes in (queue.observations(), other.observations()):
            assert notes is not None
            for number in range(600):
                await notes.put(NoteKind.DEPTH, time_key(number), DEPTH_MARK, replaces=False)
        await queue.delete()
        assert await queue.queues() == ["other"]
        assert (await other.stats()).visible == 3
    assert ask(file.path, "SELECT DISTINCT substr(id, 1, 1) FROM task") == [("o",)]
    assert ask(file.path, "SELECT count(*) FROM attempt") == [(0,)]
    assert ask(file.path, "SELECT count(*), count(DISTINCT queue_id) FROM observation") == [(600, 1)]


async def test_what_was_open_meanwhile_pushes_and_takes_nothing(tmp_path: Path) -> None:
    """S1: an acknowledged task would stand where nobody looks; S4: a delivery of what is gone changes nothing."""
    file = virtual_file(tmp_path)
    async with backend(file) as stale, backend(file) as another, backend(file, "next") as following:
        await stale.create()
        await stale.push(tasks(1))
        (delivery,) = await stale.receive(1, LEASE, NOW)
        await another.delete()
        await following.create()
        await following.push(tasks(1, "n"))
        for use in (lambda: stale.push(tasks(1, "late")), lambda: stale.receive(1, LEASE, NOW), stale.stats):
            with pytest.raises(QueueNotFound):
                await use()
        with pytest.raises(LockLost):
            await delivery.settle(Complete(DONE))
        assert (await following.stats()).visible == 1


async def test_one_that_waits_for_tasks_hears_of_it(tmp_path: Path) -> None:
    file = virtual_file(tmp_path)
    async with backend(file) as waiting, backend(file) as another:
        await waiting.create()
        assert await waiting.receive(1, LEASE, NOW) == []
        await another.delete()
        with pytest.raises(QueueNotFound, match="was deleted meanwhile"):
            await waiting.receive(1, LEASE, NOW)


async def test_it_is_found_again_when_it_is_made_anew(tmp_path: Path) -> None:
    file = virtual_file(tmp_path)
    async with backend(file) as stale, backend(file) as another:
        await stale.create()
        await stale.push(tasks(1))
        (first,) = await stale.receive(1, LEASE, NOW)
        await another.delete()
        await another.create()
        with pytest.raises(QueueNotFound):
            await stale.push(tasks(1))
        await stale.push(tasks(1))
        (second,) = await stale.receive(1, LEASE, NOW)
        assert second.fencing > first.fencing, "S3: the same id goes on with higher numbers"


async def test_what_a_delete_that_was_cut_off_has_left_goes_with_the_next(tmp_path: Path) -> None:
    file = virtual_file(tmp_path)
    async with backend(file) as queue, backend(file, "other") as other:
        await queue.create()
        await queue.push(tasks(2))
        ask(file.path, "UPDATE queue SET name = 'deleted ' || queue_id")
        await other.create()
        await other.delete()
    assert ask(file.path, "SELECT count(*) FROM task") == [(0,)]


async def test_s3_what_is_pushed_beside_a_delete_begins_above_all_that_ran(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its name is free before its rows are gone: a task that was redriven twice went on under the higher token."""
    monkeypatch.setattr(SqliteBackend, "_forget_deleted", AsyncMock())  # as where it was killed there, or goes on
    file = virtual_file(tmp_path)
    async with backend(file) as stale, backend(file) as another:
        await stale.create()
        await stale.push(tasks(1))
        for _ in range(2):
            (delivery,) = await stale.receive(1, LEASE, NOW)
            await delivery.settle(MoveToDeadLetters("failed", "by a test"))
            await stale.redrive([delivery.id])
        (first,) = await stale.receive(1, LEASE, NOW)
        assert first.fencing.epoch == 2
        await another.delete()
        await another.create()
        await another.push(tasks(1))
        (second,) = await another.receive(1, LEASE, NOW)
        assert second.fencing > first.fencing
        with pytest.raises(LockLost):
            await first.renew(LEASE)


async def test_s1_one_that_is_to_go_only_empty_stays_with_what_has_come(tmp_path: Path) -> None:
    file = virtual_file(tmp_path)
    async with backend(file) as queue:
        await queue.create()
        await queue.push(tasks(1))
        for settlement in (None, MoveToDeadLetters("failed", "by a test")):
            if settlement is not None:
                (delivery,) = await queue.receive(1, LEASE, NOW)
                with pytest.raises(QueueNotEmpty):
                    await queue.delete(only_empty=True)
                await delivery.settle(settlement)
            with pytest.raises(QueueNotEmpty):
                await queue.delete(only_empty=True)
        await queue.purge_dead([delivery.id])
        await queue.delete(only_empty=True)
        with pytest.raises(QueueNotFound):
            await queue.stats()


async def test_who_makes_a_queue_takes_away_what_a_delete_has_left(tmp_path: Path) -> None:
    file = virtual_file(tmp_path)
    async with backend(file) as queue:
        await queue.create()
        await queue.push(tasks(2))
        ask(file.path, "UPDATE queue SET name = 'deleted ' || queue_id")
    async with backend(file) as queue:
        await queue.create()
    assert ask(file.path, "SELECT count(*) FROM task") == [(0,)]


async def test_an_operator_who_had_it_open_is_told_too(tmp_path: Path) -> None:
    """The service answered that the queue was paused, and that ids are unknown: it looked at what was deleted."""
    file = virtual_file(tmp_path)
    async with backend(file) as stale, backend(file) as another:
        uses = (
            lambda: stale.pause(Pause(at=0.0, by="ada@host")),
            stale.resume,
            lambda: stale.redrive(["id"]),
            lambda: stale.purge_dead(["id"]),
            lambda: journal_of(stale).cancel(["id"]),
            stale.delete,
        )
        for use in uses:
            await stale.create()
            await stale.push(tasks(1))
            await another.delete()
            await another.create()
            with pytest.raises(QueueNotFound, match="was deleted meanwhile"):
                await use()
            await use()
            assert not await another.queues() if use == stale.delete else await another.queues() == ["q"]
