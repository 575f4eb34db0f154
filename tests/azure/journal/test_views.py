"""What people see of an Azure queue: by its journal, by few requests, and what is said where there is none."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from jobq.errors import ConfigurationError, QueueNotFound
from jobq.journal.notes import NoteKind
from jobq.journal.records import Attempt, TaskState
from jobq.journal.task_filter import TaskFilter
from jobq.journal.task_rows import TaskRow
from jobq.journal.views import BilledViews, ViewPage, Views, views_of
from jobq.lease.store import KeepsLeases, Request
from jobq.settlement import Complete, MoveToDeadLetters, Record
from jobq.task import OutcomeKind, Task, TaskResult, new_id
from jobq_azure.table_journal import entities as rows
from jobq_azure.table_journal.backend import JournaledQueue
from jobq_azure.table_journal.client import TableWire, Verb, Write
from jobq_azure.table_journal.views import TableViews
from tests.azure.journal.journal_stage import journaled, written
from tests.azure.stage import LEASE, NOW, Stage
from tests.dashboard.support import Dashboard
from tests.service.server import HttpServer

MOST_REQUESTS = 5
AMPLE = timedelta(seconds=10)
ENDED = TaskFilter(states=frozenset({TaskState.SUCCEEDED}))
DEAD = TaskFilter(states=frozenset({TaskState.DEAD}))
DONE = TaskResult(outcome=OutcomeKind.SUCCEEDED)


@pytest.fixture
async def queue(stage: Stage) -> JournaledQueue:
    return await journaled(stage)


@pytest.fixture
async def views(queue: JournaledQueue) -> AsyncIterator[Views]:
    async with views_of(queue) as found:
        yield found


def _task(number: int) -> Task:
    return Task.new(command=f"echo {number}")


def _requests(stage: Stage) -> int:
    """Return how many requests were made since the last call, to whatever service."""
    proxies = (stage.proxy, stage.tables, stage.blobs)
    count = sum(len(proxy.requests) for proxy in proxies)
    for proxy in proxies:
        proxy.requests.clear()
    return count


async def _dead(queue: JournaledQueue, count: int, words: str) -> list[str]:
    ids = []
    for delivery in await queue.receive(count, LEASE, NOW):
        attempt = Attempt(
            attempt=delivery.deliveries, outcome="failed", then="dead", ended=time.time(), exit_code=3, host="node-7"
        )
        await delivery.settle(
            MoveToDeadLetters("failures", f"failed: exit code 3\nlast output:\n{words}", record=Record(attempt))
        )
        ids.append(delivery.id)
    return ids


async def _history(queue: JournaledQueue, ends: list[float]) -> list[str]:
    """Write ends of tasks as workers would have; return their ids, the newest first."""
    writes = {}
    for number, ended in enumerate(ends):
        attempt = Attempt(attempt=1, outcome="succeeded", then="done", ended=ended, host="node-7", program="true")
        key = f"a!t-{number:05d}!{10**18 - 1:019d}!{1:010d}.{0:010d}.{1:010d}"
        index = {"Outcome": "succeeded", "Then": "done", "Printed": False, **rows.listed(attempt, None, "")}
        writes[rows.ended_key(ended, key)] = index
    async with TableWire(queue._wire.place, 20.0) as wire:
        keys = sorted(writes)
        for start in range(0, len(keys), 100):
            some = [Write(Verb.REPLACE, key, writes[key]) for key in keys[start : start + 100]]
            await wire.write(wire.place.queue, some)
    return [f"t-{number:05d}" for number in sorted(range(len(ends)), key=lambda each: -ends[each])]


async def _listed(
    views: Views, stage: Stage, wanted: TaskFilter, size: int
) -> tuple[list[str], list[ViewPage[TaskRow]]]:
    ids, pages, after = list[str](), list[ViewPage[TaskRow]](), ""
    while len(pages) < 100:
        page = await views.tasks(stage.queue, wanted, after, size, budget=AMPLE)
        assert _requests(stage) <= MOST_REQUESTS
        ids += [row.id for row in page.rows]
        pages.append(page)
        if page.after is None:
            return ids, pages
        after = page.after
    raise AssertionError("the list has no end")


async def test_no_view_takes_more_than_five_requests(stage: Stage, queue: JournaledQueue, views: Views) -> None:
    pushed = await queue.push([_task(number) for number in range(5)])
    buried = await _dead(queue, 1, "no such file")
    (done,) = await queue.receive(1, LEASE, NOW)
    await done.settle(Complete(DONE))
    (running,) = await queue.receive(1, LEASE, NOW)
    assert isinstance(queue, KeepsLeases)
    for number in range(6):
        await queue.leases.acquire(Request(name=f"l-{number}", key=new_id(), holder="h:1", ttl=timedelta(seconds=60)))
    await queue.journal.cancel([running.id])
    await written(queue)
    _requests(stage)
    looks: dict[str, Callable[[], Awaitable[Any]]] = {
        "queue": lambda: views.queue(stage.queue, budget=AMPLE),
        "queues": lambda: views.queues("", 10, budget=AMPLE),
        "tasks": lambda: views.tasks(stage.queue, TaskFilter(), "", 50, budget=AMPLE),
        "dead": lambda: views.tasks(stage.queue, DEAD, "", 50, budget=AMPLE),
        "count": lambda: views.count(stage.queue, TaskFilter(), budget=AMPLE),
        "waiting task": lambda: views.task(stage.queue, pushed[-1]),
        "running task": lambda: views.task(stage.queue, running.id),
        "dead task": lambda: views.task(stage.queue, buried[0]),
        "no task": lambda: views.task(stage.queue, "none"),
        "output": lambda: views.output(stage.queue, done.id),
        "leases": lambda: views.leases(stage.queue, "", "", 50),
        "groups": lambda: views.dead_groups(stage.queue, ["exit"], 5, budget=AMPLE),
    }
    seen: dict[str, Any] = {}
    for name, look in looks.items():
        seen[name] = await look()
        assert 1 <= (count := _requests(stage)) <= MOST_REQUESTS, f"{name}: {count}"
    line = seen["queue"]
    assert {state: count.number for state, count in line.counts.items()} == {
        TaskState.READY: 2, TaskState.SCHEDULED: 0, TaskState.RUNNING: 1, TaskState.EXPIRED: 0, TaskState.DEAD: 1,
    }  # fmt: skip
    assert line.total == 3
    assert {state: count.number for state, count in line.ended.items()} == {TaskState.SUCCEEDED: 1, TaskState.DEAD: 1}
    assert [each.name for each in seen["queues"].rows] == [stage.queue]
    assert {row.id: row.cancel_requested for row in seen["tasks"].rows if not row.state.is_final}[running.id]
    assert len(seen["tasks"].rows) == 5
    assert [each.facts["exit"] for each in seen["groups"].groups] == ["3"]
    assert [each.host for each in seen["dead"].rows] == ["node-7"]


async def test_what_was_put_back_is_dead_no_more(stage: Stage, queue: JournaledQueue, views: Views) -> None:
    await queue.push([_task(1), _task(2), _task(3)])
    buried = await _dead(queue, 3, "no such file")
    await written(queue)
    assert await queue.redrive(buried[:1]) == buried[:1]
    await written(queue)
    assert await queue.purge_dead(buried[1:2]) == buried[1:2]
    await written(queue)
    _requests(stage)
    ids, _ = await _listed(views, stage, TaskFilter(), 10)
    assert sorted(ids) == sorted([buried[0], buried[2]])
    assert [row.id for row in (await views.tasks(stage.queue, DEAD, "", 10, budget=AMPLE)).rows] == buried[2:]
    groups = await views.dead_groups(stage.queue, ["error"], 5, budget=AMPLE)
    assert [(each.count, each.facts["error"]) for each in groups.groups] == [(1, "no such file")]


async def test_ended_ones_are_listed_the_newest_first_however_many_there_are(
    stage: Stage, queue: JournaledQueue, views: Views
) -> None:
    """Three thousand: a burst in one minute, a quiet day before it, and a few of last week."""
    now = time.time()
    burst = [now - 60 + number * 0.025 for number in range(2400)]
    quiet = [now - 86400 + number * 120.0 for number in range(600)]
    wanted = await _history(queue, [*burst, *quiet, now - 6 * 86400, now - 5 * 86400])
    _requests(stage)
    ids, pages = await _listed(views, stage, ENDED, 400)
    assert ids == wanted
    assert all(page.rows or page.searched_to for page in pages), "a page is never empty without a sentence"
    count = await views.count(stage.queue, ENDED, budget=AMPLE)
    assert _requests(stage) <= MOST_REQUESTS
    assert (count.is_exact, count.number >= 900, count.searched_to is not None) == (False, True, True)
    old, _ = await _listed(views, stage, replace(ENDED, min_age_seconds=2 * 86400.0), 10)
    assert old == wanted[-2:]


async def test_a_thousand_and_more_wait_in_the_order_of_ids(stage: Stage, queue: JournaledQueue, views: Views) -> None:
    tasks = [_task(number) for number in range(1100)]
    queue._notebook.pushed(tasks)
    await written(queue)
    _requests(stage)
    ids, _ = await _listed(views, stage, TaskFilter(states=frozenset({TaskState.READY})), 500)
    assert ids == sorted(task.id for task in tasks)
    line = await views.queue(stage.queue, budget=AMPLE)
    assert line.counts[TaskState.READY].number == 1100


@pytest.mark.parametrize(
    "after", ["ready:[\"l!x' or RowKey ge '\"]", 'ended:["i!1"]', 'running:["l!x"]', 'dead:["l!x"]']
)
async def test_no_place_is_anything_but_a_key(stage: Stage, views: Views, after: str) -> None:
    with pytest.raises(ConfigurationError):
        await views.tasks(stage.queue, TaskFilter(), after, 10, budget=AMPLE)


async def test_another_queue_is_not_looked_at(views: Views) -> None:
    with pytest.raises(QueueNotFound):
        await views.tasks("another", TaskFilter(), "", 10)
    assert isinstance(views, TableViews)
    assert views.counts_alone == ""


async def test_without_a_journal_there_are_counts_and_a_sentence(stage: Stage) -> None:
    await stage.pushed(3)
    async with views_of(stage.backend) as views:
        assert isinstance(views, BilledViews)
        _requests(stage)
        line = await views.queue(stage.queue)
        assert _requests(stage) == 2
        assert (line.total, line.counts[TaskState.DEAD].number) == (3, 0)
        assert views.refresh_seconds == 30
        looks: tuple[Callable[[], Awaitable[Any]], ...] = (
            lambda: views.tasks(stage.queue, TaskFilter(), "", 10),
            lambda: views.count(stage.queue, TaskFilter()),
            lambda: views.task(stage.queue, "x"),
            lambda: views.output(stage.queue, "x"),
            lambda: views.dead_groups(stage.queue, ["exit"], 5),
            lambda: views.notes(stage.queue, NoteKind.WORKER, "", 5),
        )
        for look in looks:
            with pytest.raises(ConfigurationError, match="JOBQ_JOURNAL=tables"):
                await look()
        assert _requests(stage) == 0


@pytest.mark.parametrize("journal", ["tables", "auto"])
async def test_the_dashboard_of_an_azure_queue(stage: Stage, journal: str) -> None:
    """The real command: each page answers, and says what it cannot tell."""
    queue = await journaled(stage)
    ids = await queue.push([_task(1), _task(2), _task(3)])
    await _dead(queue, 1, "no such file")
    await written(queue)
    process = await stage.start(stage.spec, "--no-open", "--json", spec="ui", JOBQ_JOURNAL=journal)
    assert process.stdout is not None
    said = json.loads(await process.stdout.readline())
    server = HttpServer(stage.spec, stage.folder)
    server.port = int(said["url"].split(":")[2].partition("/")[0])
    dashboard = Dashboard(server, stage.spec, stage.folder)
    once = said["link"].rpartition("once=")[2]
    answer = await asyncio.to_thread(dashboard.ask, "POST", "/ui/enter", fields={"once": once})
    cookie = answer.headers["set-cookie"].partition(";")[0]

    async def page(path: str, status: int = 200) -> str:
        answer = await asyncio.to_thread(dashboard.ask, "GET", f"/ui/{path}", cookie=cookie)
        assert answer.status == status, f"{path}: {answer.status} {answer.text[-1500:]}"
        assert "every 5s" not in answer.text
        assert "every 2s" not in answer.text
        return answer.text

    assert stage.queue in await page("")
    own = await page(f"q/{stage.queue}")
    assert "every 30s" in own
    assert "billed" in own
    assert "about 2 tasks" in own
    await page(f"q/{stage.queue}/leases")
    if journal == "auto":
        assert "JOBQ_JOURNAL=tables" in own
        for name in ("tasks", "running", "dead", "batches", f"t/{ids[0]}", "hosts", "audit"):
            assert "JOBQ_JOURNAL=tables" in await page(f"q/{stage.queue}/{name}", 400), name
        return
    assert "no such file" in own
    listed = await page(f"q/{stage.queue}/tasks")
    assert all(id_ in listed for id_ in ids)
    for name in ("running", "dead", "batches", "hosts", "audit"):
        await page(f"q/{stage.queue}/{name}")
