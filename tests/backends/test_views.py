"""Looking at a whole store: for a bounded time, beside who claims, and whatever the clock has done since."""

import asyncio
from datetime import timedelta

import pytest

from jobq.errors import BackendUnavailable, ConfigurationError
from jobq.journal.records import TaskState
from jobq.journal.task_filter import TaskFilter
from jobq.journal.views import MOST_COUNTED
from jobq.settlement import Complete, MoveToDeadLetters
from tests.backends.places import DONE, LEASE, NOW, FilePlace, Place, Table, take, tasks

pytestmark = pytest.mark.check

_AMPLE = timedelta(seconds=20)
# Rows that take minutes to push: numbered, each with its number in its command.
_FILL = {
    "sqlite": """
        WITH RECURSIVE n (n) AS (VALUES (1) UNION ALL SELECT n + 1 FROM n WHERE n < 52000)
        INSERT INTO task (queue_id, id, state, available_at, body)
        SELECT 1, printf('t-%08d', n), 'ready', n,
            CAST(printf('{"version":2,"id":"t-%08d","command":"train %d"}', n, n) AS BLOB) FROM n
    """,
    "postgres": """
        INSERT INTO jobq.submission (queue_id, id)
        SELECT 1, 't-' || lpad(n::text, 8, '0') FROM generate_series(1, 52000) AS n;
        INSERT INTO jobq.task (queue_id, id, body)
        SELECT 1, 't-' || lpad(n::text, 8, '0'), convert_to('{"version":2,"id":"t-' || lpad(n::text, 8, '0')
            || '","command":"train ' || n || '"}', 'UTF8') FROM generate_series(1, 52000) AS n ORDER BY n;
        ANALYZE jobq.task
    """,
}
_LATER = {
    "sqlite": "UPDATE task SET finished_at = finished_at + 3600",
    "postgres": """
        UPDATE jobq.submission SET ended_at = ended_at + interval '1 h';
        UPDATE jobq.dead SET died_at = died_at + interval '1 h'
    """,
}


def _kind(place: Place) -> str:
    return "sqlite" if isinstance(place, FilePlace) else "postgres"


@pytest.mark.slow("it looks at 50,000 tasks, which is as far as a look goes")
async def test_a_look_over_many_tasks_ends_and_says_how_far_it_came(place: Place, queue: Table) -> None:
    """At first its time is over before it begins; each next look goes on where the last one was."""
    await asyncio.to_thread(place.run, _FILL[_kind(place)])
    async with queue.views() as views:
        wanted = TaskFilter(text="train 51999")
        page = await views.tasks("q", wanted, "", 10, budget=NOW)
        assert (page.rows, page.searched_to is not None) == ([], True)
        assert page.after is not None
        page = await views.tasks("q", wanted, page.after, 10, budget=_AMPLE)
        assert page.rows == []
        assert page.searched_to is not None
        assert 50_000 <= page.searched_to.looked_at < 51_000
        assert page.after is not None
        page = await views.tasks("q", wanted, page.after, 10, budget=_AMPLE)
        assert ([row.id for row in page.rows], page.after) == (["t-00051999"], None)
        count = await views.count("q", TaskFilter(text="train *"), budget=_AMPLE)
        assert (count.number, count.is_exact) == (MOST_COUNTED, False)


async def test_looks_at_once_are_no_bother_and_end_with_the_views(queue: Table) -> None:
    """Claims and settles go on beside them, and what is left says so."""
    await queue.push(tasks(3))
    async with queue.views() as views:
        looks = [asyncio.create_task(views.tasks("q", TaskFilter(text="*"), "", 10)) for _ in range(20)]
        await (await take(queue)).settle(Complete(DONE))
        assert all(page.rows for page in await asyncio.gather(*looks))
    with pytest.raises(BackendUnavailable, match="left"):
        await views.queues("", 10)


_NO_PLACES = (
    "x", "ready:", "ready:[1]", 'ready:["a"]', 'ready:["a","b"]', 'done:["1"]', 'dead:["nan", "1"]',
    'ready:["9", "9", "9", "9"]', 'ready:["99999999999999999999","1"]', 'dead:["0x1p+1", "99999999999999999999"]',
    'dead:["2020-01-01","x"]', 'dead:["x","y"]', 'dead:["9999-12-31T23:59:59-12:00","x"]', "ready:" + "[" * 5000,
    'dead:["2020-01-01T00:00:00+00:00","\\ud800"]',
)  # fmt: skip


async def test_what_is_no_place_is_refused(queue: Table) -> None:
    async with queue.views() as views:
        for after in _NO_PLACES:
            with pytest.raises(ConfigurationError, match="no place"):
                await views.tasks("q", TaskFilter(), after, 10)


async def test_an_end_that_is_to_come_is_listed(place: Place, queue: Table) -> None:
    """The clock was put back since."""
    await queue.push(tasks(2))
    done, dead = await queue.receive(2, LEASE, NOW)
    await done.settle(Complete(DONE))
    await dead.settle(MoveToDeadLetters("failures", ""))
    place.run(_LATER[_kind(place)])
    async with queue.views() as views:
        rows = (await views.tasks("q", TaskFilter(), "", 10)).rows
        assert {row.id for row in rows} == {done.id, dead.id}
        (line,) = (await views.queues("", 10)).rows
        assert (line.counts[TaskState.DEAD].number, line.counts[TaskState.SUCCEEDED].number) == (1, 1)
