"""S5, S8: a commit that was not confirmed is neither reported as done nor as not done, whichever it was."""

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from jobq.errors import BackendUnavailable, LockLost, PushUnknown, SettlementUnknown
from jobq.settlement import Complete, MoveToDeadLetters, Release, Requeue
from jobq.task import Task
from jobq_sqlite import SqliteBackend
from tests.sqlite.support import DONE, LEASE, NOW, backend, states, tasks, virtual_file


class Failing(sqlite3.Connection):
    """Fails at a statement with a result code, before or after it took effect."""

    statement: ClassVar[str | None] = None
    then: ClassVar[str | None] = None
    code: ClassVar[int] = sqlite3.SQLITE_IOERR_FSYNC
    after: ClassVar[bool] = False

    def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
        cls = type(self)
        if cls.statement is None or not sql.startswith(cls.statement):
            return super().execute(sql, *values)
        cls.statement, cls.then = cls.then, None
        if cls.after:
            super().execute(sql, *values)
        error = sqlite3.OperationalError("disk I/O error")
        error.sqlite_errorcode = cls.code
        raise error

    @classmethod
    def fail(
        cls, statement: str, *, after: bool = False, code: int = sqlite3.SQLITE_IOERR_FSYNC, then: str | None = None
    ) -> None:
        cls.statement, cls.after, cls.code, cls.then = statement, after, code, then


@pytest.fixture(autouse=True)
def nothing_fails() -> Iterator[None]:
    Failing.statement = None
    yield
    assert Failing.statement is None, "what should have failed was never reached"


async def _queue(folder: Path, count: int = 0) -> SqliteBackend:
    queue = backend(virtual_file(folder, connection_class=Failing))
    await queue.create()
    await queue.push(tasks(count))
    return queue


@pytest.mark.parametrize("after", [False, True])
async def test_push(tmp_path: Path, after: bool) -> None:
    """S8: the ids are told, and repeating the push is safe either way."""
    async with await _queue(tmp_path) as queue:
        Failing.fail("COMMIT", after=after)
        with pytest.raises(PushUnknown, match=r"jobs\.db: the commit was not confirmed") as caught:
            await queue.push(tasks(3))
        assert caught.value.ids == tuple(task.id for task in tasks(3))
        assert len(states(tmp_path / "jobs.db")) == (3 if after else 0)
        await queue.push(tasks(3))
        assert (await queue.stats()).visible == 3


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("verb", ["complete", "requeue", "release", "dead_letter", "renew", "checkpoint"])
async def test_delivery(tmp_path: Path, verb: str, after: bool) -> None:
    """S5: repeating the same settle answers, and has one effect."""
    async with await _queue(tmp_path, 1) as queue:
        (delivery,) = await queue.receive(1, LEASE, NOW)
        verbs: dict[str, Callable[[], Awaitable[object]]] = {
            "complete": lambda: delivery.settle(Complete(DONE)),
            "requeue": lambda: delivery.settle(Requeue(delivery.task.requeued().counters, NOW)),
            "release": lambda: delivery.settle(Release()),
            "dead_letter": lambda: delivery.settle(MoveToDeadLetters("failed", "x")),
            "renew": lambda: delivery.renew(LEASE),
            "checkpoint": lambda: delivery.checkpoint("half"),
        }
        Failing.fail("COMMIT", after=after)
        with pytest.raises(SettlementUnknown, match=r"jobs\.db: the commit was not confirmed"):
            await verbs[verb]()
        await verbs[verb]()
        stats = await queue.stats()
        assert (stats.visible or 0) + (stats.leased or 0) + (stats.dead or 0) == (0 if verb == "complete" else 1)


async def test_full_disk_at_the_commit_is_no_doubt(tmp_path: Path) -> None:
    async with await _queue(tmp_path) as queue:
        Failing.fail("COMMIT", code=sqlite3.SQLITE_FULL)
        with pytest.raises(BackendUnavailable, match="nothing was changed"):
            await queue.push(tasks(1))
        assert await queue.push(tasks(1)) == ["t-00000"]


async def test_rollback_that_fails_is_made_up_for(tmp_path: Path) -> None:
    """The transaction that stayed open is ended before the next one begins, and leaves nothing behind."""
    async with await _queue(tmp_path, 1) as queue:
        (delivery,) = await queue.receive(1, LEASE, NOW)
        Failing.fail("UPDATE", then="ROLLBACK")
        with pytest.raises(BackendUnavailable):
            await delivery.settle(Complete(DONE))
        assert await queue.push(tasks(1, "next")) == ["next-00000"]
    assert states(tmp_path / "jobs.db") == {"t-00000": "leased", "next-00000": "ready"}


async def test_answers_that_rest_on_an_undone_transaction_are_not_given(tmp_path: Path) -> None:
    """S8: an id that was taken only by a push that failed beside it is not called a duplicate."""
    async with await _queue(tmp_path) as queue:
        Failing.fail("COMMIT", code=sqlite3.SQLITE_FULL)
        answers = await asyncio.gather(
            queue.push([Task.new(command="true", id="same")]),
            queue.push([Task.new(command="false", id="same")]),
            return_exceptions=True,
        )
        assert [type(answer) for answer in answers] == [BackendUnavailable, BackendUnavailable]
        await queue.push([Task.new(command="false", id="same")])


async def test_queue_whose_making_failed_is_not_remembered(tmp_path: Path) -> None:
    """A number that was never committed may belong to another queue later: no cross-talk (S11)."""
    async with await _queue(tmp_path) as queue, backend(virtual_file(tmp_path, connection_class=Failing), "b") as other:
        Failing.fail("COMMIT", code=sqlite3.SQLITE_FULL)
        with pytest.raises(BackendUnavailable):
            await other.create()
        async with backend(virtual_file(tmp_path), "c") as third:
            await third.create()
        await other.create()
        await other.push(tasks(2))
        assert (await queue.stats()).visible == 0
        assert (await other.stats()).visible == 2


async def test_late_settle_stays_refused_after_doubt(tmp_path: Path) -> None:
    """S4: doubt about one settle gives nobody else the right to another."""
    async with await _queue(tmp_path, 1) as queue:
        (delivery,) = await queue.receive(1, LEASE, NOW)
        Failing.fail("COMMIT", after=True)
        with pytest.raises(SettlementUnknown):
            await delivery.settle(Complete(DONE))
        with pytest.raises(LockLost):
            await delivery.settle(MoveToDeadLetters("failed", "x"))
        await delivery.settle(Complete(DONE))
    assert states(tmp_path / "jobs.db") == {"t-00000": "done"}
