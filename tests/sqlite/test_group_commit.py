"""Group commit: one commit for all that wait, no harm among them, and what cancelling and closing do to them."""

import asyncio
import sqlite3
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar

import pytest

from jobq.errors import BackendUnavailable, DuplicateTask, LockLost
from jobq.settlement import Complete, Release
from jobq.task import Task
from jobq.testing.clock import VirtualClock
from jobq.testing.harness import crashes
from jobq_sqlite import SqliteBackend, push_sql
from tests.sqlite.support import DONE, LEASE, NOW, ask, backend, states, tasks, virtual_file


class Gated(sqlite3.Connection):
    """Counts commits, and can stop at a statement until it is let go."""

    commits: ClassVar[int] = 0
    stop_at: ClassVar[str | None] = None
    stopped: ClassVar[threading.Event] = threading.Event()
    go_on: ClassVar[threading.Event] = threading.Event()

    def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
        cls = type(self)
        if cls.stop_at is not None and sql.startswith(cls.stop_at):
            cls.stop_at = None
            cls.stopped.set()
            assert cls.go_on.wait(20)
        cls.commits += sql == "COMMIT"
        return super().execute(sql, *values)

    @classmethod
    async def at(cls, statement: str) -> None:
        """Return once the thread has come to this statement, armed by `arm`."""
        assert await asyncio.to_thread(cls.stopped.wait, 20), f"never came to {statement}"

    @classmethod
    def arm(cls, statement: str) -> None:
        cls.stopped.clear()
        cls.go_on.clear()
        cls.stop_at = statement


@pytest.fixture(autouse=True)
def gate() -> Iterator[None]:
    Gated.commits, Gated.stop_at = 0, None
    yield
    Gated.go_on.set()


async def _queue(folder: Path, count: int = 0) -> SqliteBackend:
    queue = backend(virtual_file(folder, connection_class=Gated))
    await queue.create()
    await queue.push(tasks(count))
    Gated.commits = 0
    return queue


async def test_concurrent_verbs_share_commits(tmp_path: Path) -> None:
    async with await _queue(tmp_path) as queue:
        await asyncio.gather(*(queue.push([task]) for task in tasks(200)))
        assert Gated.commits <= 2
        found = await queue.receive(200, LEASE, NOW)
        Gated.commits = 0
        await asyncio.gather(*(delivery.settle(Complete(DONE)) for delivery in found))
        assert Gated.commits <= 2
    assert list(states(tmp_path / "jobs.db").values()) == ["done"] * 200


async def test_refusals_harm_no_other_in_the_same_transaction(tmp_path: Path) -> None:
    """S5, S8: a duplicate, also after some of its tasks were inserted, and a lost lock stand alone."""
    async with await _queue(tmp_path, 2) as queue:
        stale, held = await queue.receive(2, LEASE, NOW)
        await stale.settle(Release())
        Gated.commits = 0
        other_work = Task.new(command="false", id=held.id)
        answers = await asyncio.gather(
            queue.push(tasks(2, "before")),
            queue.push([*tasks(3, "undone"), other_work]),
            stale.settle(Complete(DONE)),
            held.settle(Complete(DONE)),
            queue.push(tasks(2, "after")),
            return_exceptions=True,
        )
        assert Gated.commits == 1
        assert [type(answer) for answer in answers] == [list, DuplicateTask, LockLost, type(None), list]
    found = states(tmp_path / "jobs.db")
    assert sorted(found) == ["after-00000", "after-00001", "before-00000", "before-00001", stale.id, held.id]


async def test_a_lease_that_runs_out_while_the_lock_is_waited_for_is_lost(tmp_path: Path) -> None:
    """S4: it is judged by the time at which the lock was had, not by that of the request."""
    clock = VirtualClock()
    queue = backend(virtual_file(tmp_path, clock, connection_class=Gated))
    async with queue:
        await queue.create()
        await queue.push(tasks(1))
        (held,) = await queue.receive(1, LEASE, NOW)
        Gated.arm("BEGIN")
        renewing = asyncio.create_task(held.renew(LEASE))
        await Gated.at("BEGIN")
        await clock.advance(LEASE.total_seconds() + 1)
        Gated.go_on.set()
        with pytest.raises(LockLost):
            await renewing


async def test_cancelled_operation_that_has_not_begun_never_runs(tmp_path: Path) -> None:
    async with await _queue(tmp_path) as queue:
        Gated.arm("BEGIN")
        first = asyncio.create_task(queue.push(tasks(1, "first")))
        await Gated.at("BEGIN")
        second = asyncio.create_task(queue.push(tasks(1, "second")))
        await _turns()
        second.cancel()
        await asyncio.wait({second})
        Gated.go_on.set()
        await first
        await queue.stats()
    assert list(states(tmp_path / "jobs.db")) == ["first-00000"]


@pytest.mark.parametrize("stage", ["BEGIN", "SELECT seq", "COMMIT"])
@pytest.mark.parametrize("close_at_once", [False, True])
async def test_receive_cancelled_in_the_thread_gives_back(tmp_path: Path, stage: str, close_at_once: bool) -> None:
    """S1, S7: what was claimed for a call that is gone is ready again at once and counts as no crash."""
    async with await _queue(tmp_path, 3) as queue:
        Gated.arm(stage)
        receiving = asyncio.create_task(queue.receive(2, timedelta(days=1), NOW))
        await Gated.at(stage)
        receiving.cancel()
        await asyncio.wait({receiving})
        assert receiving.cancelled()
        Gated.go_on.set()
        if not close_at_once:
            await _given_back(queue)
    assert set(states(tmp_path / "jobs.db").values()) == {"ready"}
    async with backend(virtual_file(tmp_path)) as queue:
        found = await queue.receive(3, LEASE, NOW)
        assert len(found) == 3
        assert [crashes(delivery) for delivery in found] == [0, 0, 0]


async def test_receive_cancelled_with_its_answer_in_hand_gives_back(tmp_path: Path) -> None:
    """The answer is delivered and the caller cancelled in the same turn of the loop, whichever comes first."""
    for turns in range(6):
        folder = tmp_path / str(turns)
        folder.mkdir()
        async with await _queue(folder, 1) as queue:
            Gated.arm("COMMIT")
            receiving = asyncio.create_task(queue.receive(1, timedelta(days=1), NOW))
            await Gated.at("COMMIT")
            Gated.go_on.set()
            while list(states(folder / "jobs.db").values()) != ["leased"]:  # without a turn of the loop
                time.sleep(0.005)
            time.sleep(0.02)  # now the answer is handed to the loop
            for _ in range(turns):
                await asyncio.sleep(0)
            receiving.cancel()
            await asyncio.wait({receiving})
            if not receiving.cancelled():
                await receiving.result()[0].settle(Release())
        assert list(states(folder / "jobs.db").values()) == ["ready"]


async def test_receive_cancelled_while_it_waits_costs_nothing(tmp_path: Path) -> None:
    async with await _queue(tmp_path) as queue:
        receiving = asyncio.create_task(queue.receive(1, LEASE, timedelta(hours=1)))
        await _turns()
        receiving.cancel()
        await asyncio.wait({receiving})
        await queue.push(tasks(1))
        (delivery,) = await queue.receive(1, LEASE, NOW)
        assert delivery.deliveries == 1


async def test_every_waiting_receive_is_woken(tmp_path: Path) -> None:
    """A wake-up that one receive takes is not lost to another that was just about to wait."""
    clock = VirtualClock()
    for _ in range(20):
        async with backend(virtual_file(tmp_path, clock)) as queue:
            await queue.create()
            receives = [asyncio.create_task(queue.receive(1, LEASE, timedelta(hours=1))) for _ in range(3)]
            async with asyncio.timeout(20):
                await queue.push(tasks(1, "a"))
                await queue.push(tasks(2, "b"))
                found = [delivery for receive in receives for delivery in await receive]
            await asyncio.gather(*(delivery.settle(Complete(DONE)) for delivery in found))
            await queue.push(tasks(3, "c"))
            await queue.clear()
        ask(tmp_path / "jobs.db", "DELETE FROM task")


async def test_closing_finishes_what_waits(tmp_path: Path) -> None:
    """S1: what was handed in before the end is answered, and durable."""
    async with await _queue(tmp_path) as queue:
        Gated.arm("BEGIN")
        pushes = [asyncio.create_task(queue.push(tasks(1, "first")))]
        await Gated.at("BEGIN")
        pushes += [asyncio.create_task(queue.push([task])) for task in tasks(50)]
        await _turns()
        closing = asyncio.create_task(queue.__aexit__(None, None, None))
        await _turns()
        Gated.go_on.set()
        await closing
        assert [len(await push) for push in pushes] == [1] * 51
    assert len(states(tmp_path / "jobs.db")) == 51


async def test_use_after_close_says_so(tmp_path: Path) -> None:
    async with await _queue(tmp_path, 1) as queue:
        (delivery,) = await queue.receive(1, LEASE, NOW)
    for verb in (
        queue.push(tasks(1, "late")),
        queue.receive(1, LEASE, NOW),
        queue.stats(),
        delivery.settle(Complete(DONE)),
    ):
        with pytest.raises(BackendUnavailable, match=r"jobs\.db is closed"):
            await verb
    async with queue:
        assert (await queue.stats()).leased == 1, "entering again opens it again"


async def test_cancelled_opening_leaves_no_thread(tmp_path: Path) -> None:
    async with await _queue(tmp_path):
        pass
    queue = backend(virtual_file(tmp_path, connection_class=Gated))
    Gated.arm("PRAGMA application_id")
    opening = asyncio.create_task(queue.stats())
    await Gated.at("PRAGMA application_id")
    (thread,) = [thread for thread in threading.enumerate() if thread.name == "jobq-sqlite jobs.db"]
    opening.cancel()
    await asyncio.wait({opening})
    Gated.go_on.set()
    await asyncio.to_thread(thread.join, 20)
    assert not thread.is_alive()
    assert (await queue.stats()).visible == 0
    await queue.__aexit__(None, None, None)


async def _turns() -> None:
    """Let what was started come to rest on this loop."""
    for _ in range(20):
        await asyncio.sleep(0)


async def _given_back(queue: SqliteBackend) -> None:
    async with asyncio.timeout(20):
        while (await queue.stats()).visible != 3:  # each look is an answer of the thread: no time is guessed
            pass


async def test_what_is_old_is_forgotten_faster_than_it_comes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A push forgets more than it adds, so the file does not grow without end."""
    monkeypatch.setattr(push_sql, "_FORGETTING", 1e6)  # in as much time as a busy machine takes for it
    async with SqliteBackend(virtual_file(tmp_path), "q", keep=timedelta(0)) as queue:
        await queue.create()
        await queue.push(tasks(1))
        ask(
            tmp_path / "jobs.db",
            "WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 2500)"
            " INSERT INTO attempt SELECT 1, -n, 1, 'succeeded', -1e9, '{}', '' FROM n",
        )
        await queue.push(tasks(1250, "n"))
        assert ask(tmp_path / "jobs.db", "SELECT count(*) FROM attempt") == [(0,)]
