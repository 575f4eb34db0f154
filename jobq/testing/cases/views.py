"""Looking at a whole location: what each task is listed as, page by page, and what of it is never shown."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

from jobq.backend import Delivery
from jobq.batch_plan import Plan
from jobq.batches import batches_of
from jobq.errors import ConfigurationError, QueueNotFound
from jobq.journal.records import Attempt, TaskRecord, TaskState
from jobq.journal.store import KeepsJournal
from jobq.journal.task_filter import TaskFilter
from jobq.journal.task_rows import MOST_BODY_BYTES, MOST_LISTED, MOST_SHOWN, TaskRow
from jobq.journal.views import KeepsViews, QueueLine, ViewPage, Views
from jobq.lease.store import KeepsLeases, Request
from jobq.pausing import Pausable, Pause
from jobq.settlement import Complete, MoveToDeadLetters, Record, Requeue
from jobq.task import OutcomeKind, new_id
from jobq.testing.cases import case
from jobq.testing.harness import DONE, NOW, Bench, raises

_ALL = TaskFilter()
_AMPLE = timedelta(seconds=10)  # for a machine that is busy with other cases
_SECRET = "a-value-that-nobody-may-see"  # noqa: S105 - that is the point


@case("whole_views")
async def each_task_is_listed_once_in_the_state_it_is_in(bench: Bench) -> None:
    """What runs comes first, then what is ready in the order of delivery, what is scheduled, and what has ended."""
    views = await _of(bench)
    wanted = await _one_of_each(bench)
    rows = await _listed(views, bench.queue, _ALL, 100)
    assert {row.id: row.state for row in rows} == wanted, "each is there, once, as it is"
    assert len(rows) == len(wanted)
    order = [*dict.fromkeys(row.state for row in rows if row.state is not TaskState.SUCCEEDED)]
    assert order[:4] == [TaskState.RUNNING, TaskState.READY, TaskState.SCHEDULED, TaskState.DEAD], order
    for state in TaskState:
        found = await _listed(views, bench.queue, TaskFilter(states=frozenset({state})), 100)
        assert {row.id for row in found} == {id_ for id_, each in wanted.items() if each is state}, state
        count = await views.count(bench.queue, TaskFilter(states=frozenset({state})), budget=_AMPLE)
        assert (count.number, count.is_exact) == (len(found), True), state


@case("views")
async def pages_of_any_size_are_the_whole_list(bench: Bench) -> None:
    """Whatever the size of a page, nothing is shown twice and nothing is left out."""
    views = await _of(bench)
    for priority in (0, 5, -2) if bench.capabilities.priorities else (0,):
        await bench.pushed(7, priority=priority)
    await bench.pushed(5, not_before=bench.clock.wall() + 3600)
    for delivery in await bench.backend.receive(6, bench.lease, bench.harness.patience):
        await delivery.settle(Complete(DONE) if delivery.id < "f" else MoveToDeadLetters("failures", "no"))
    await bench.backend.receive(3, bench.lease, bench.harness.patience)
    await bench.recorded()
    whole = [row.id for row in await _listed(views, bench.queue, _ALL, 500)]
    assert len(set(whole)) == len(whole)
    for size in (1, 2, 3, 7, len(whole) - 1, len(whole), len(whole) + 1):
        assert [row.id for row in await _listed(views, bench.queue, _ALL, size)] == whole, f"in pages of {size}"
    for size in (1, 4):
        found = await _listed(views, bench.queue, TaskFilter(text="t*e"), size)
        ended = {
            row.id for row in await _listed(views, bench.queue, TaskFilter(states=frozenset({TaskState.SUCCEEDED})), 9)
        }
        assert [row.id for row in found] == [id_ for id_ in whole if id_ not in ended], f"found in pages of {size}"


@case("whole_views")
async def ready_tasks_are_listed_as_they_would_be_delivered(bench: Bench) -> None:
    """The first page of what is ready is what the next workers get, in their order."""
    views = await _of(bench)
    for priority in (0, 7, -7, 7) if bench.capabilities.priorities else (0, 0):
        await bench.pushed(3, priority=priority)
    listed = [row.id for row in await _listed(views, bench.queue, TaskFilter(states=frozenset({TaskState.READY})), 4)]
    assert listed == [each.id for each in await bench.take_all(len(listed))]


@case("views")
async def what_comes_or_goes_meanwhile_moves_no_page(bench: Bench) -> None:
    """A page goes on behind the last row that was shown, though tasks before and behind it are gone."""
    views = await _of(bench)
    pushed = [each.id for each in await bench.pushed(12)]
    if not bench.capabilities.whole_views:
        pushed.sort()  # then they are listed so, and not in the order of delivery
    ready = TaskFilter(states=frozenset({TaskState.READY}))
    await bench.recorded()
    first = await views.tasks(bench.queue, ready, "", 4, budget=_AMPLE)
    assert [row.id for row in first.rows] == pushed[:4]
    taken = [each.id for each in await bench.backend.receive(6, bench.lease, bench.harness.patience)]
    await bench.pushed(2)
    await bench.recorded()
    assert first.after is not None
    second = await views.tasks(bench.queue, ready, first.after, 3, budget=_AMPLE)
    assert [row.id for row in second.rows] == [id_ for id_ in pushed[4:] if id_ not in taken][:3]


@case("whole_views")
async def conditions_are_the_words_of_where(bench: Bench) -> None:
    """By what runs, id, host, how it ended, why it died; of several, all hold."""
    views = await _of(bench)
    (train,) = await bench.pushed(command="python train.py --seed 7")
    (words,) = await bench.pushed(argv=["python", "eval.py", "a b"])
    (dead,) = await bench.pushed(command="python train.py --seed 8")
    delivery = await bench.take_id(dead.id)
    ended = _attempt(bench, delivery, "dead", exit_code=137, host="node-7")
    await delivery.settle(
        MoveToDeadLetters(
            "failures", "failed: exit code 137\nlast output:\nout of memory at 4711", record=Record(ended, "x")
        )
    )
    (done,) = await bench.pushed(command="grep x")
    delivery = await bench.take_id(done.id)
    await delivery.settle(
        Complete(DONE, record=Record(_attempt(bench, delivery, "done", exit_code=0, host="node-8", program="grep"), ""))
    )
    (running,) = await bench.pushed(command="sleep 5")
    await bench.take_id(running.id)  # and with it what is ready before it
    (row,) = [row for row in await _rows(views, bench, _ALL) if row.id == running.id]
    assert row.host
    assert row.host == str(row.holder).rpartition(":")[0]
    found = await _rows(views, bench, TaskFilter(host=row.host, text="sleep*"))
    assert [(row.id, row.state) for row in found] == [(running.id, TaskState.RUNNING)]
    for wanted, ids in (
        (TaskFilter(text="*train.py*"), {train.id, dead.id}),
        (TaskFilter(text="python train.py --seed [78]"), {train.id, dead.id}),
        (TaskFilter(text="python train.py --seed ?7"), set[str]()),
        (TaskFilter(text="python eval.py 'a b'"), {words.id}),
        (TaskFilter(text="grep"), {done.id}),
        (TaskFilter(exit="137"), {dead.id}),
        (TaskFilter(exit="13?"), {dead.id}),
        (TaskFilter(exit="13"), set()),
        (TaskFilter(exit="0"), {done.id}),
        (TaskFilter(host="node-*"), {dead.id, done.id}),
        (TaskFilter(host="node-8", exit="0"), {done.id}),
        (TaskFilter(host="node-8", exit="137"), set()),
        (TaskFilter(reason="fail*"), {dead.id}),
        (TaskFilter(error="out of memory at <n>"), {dead.id}),
        (TaskFilter(id_part=words.id[3:]), {words.id}),
        (TaskFilter(id_part="no such part"), set()),
        (TaskFilter(id_part="\0"), set()),
        (TaskFilter(text="*\ud800*"), set()),
        (TaskFilter(states=frozenset({TaskState.DEAD, TaskState.SUCCEEDED}), text="*"), {dead.id, done.id}),
    ):
        found = await _rows(views, bench, wanted)
        assert {row.id for row in found} - {running.id} == ids, wanted
        count = await views.count(bench.queue, replace(wanted), budget=_AMPLE)
        assert (count.number, count.is_exact, count.searched_to) == (len(found), True, None), wanted


@case("views")
async def ages_are_since_when_it_is_so(bench: Bench) -> None:
    """What has run, waited or been dead for long; what waits for its time has no age."""
    views = await _of(bench)
    old = await bench.bury()
    (waits,) = await bench.pushed()
    await bench.pushed(not_before=bench.clock.wall() + 3600)
    await bench.clock.advance(3.0)
    young = await bench.bury()
    await bench.recorded()
    old_ones = await _rows(views, bench, TaskFilter(min_age_seconds=2.0))
    assert {row.id for row in old_ones} - {waits.id} == {old.id}
    young_ones = await _rows(views, bench, TaskFilter(max_age_seconds=2.0, states=frozenset({TaskState.DEAD})))
    assert [row.id for row in young_ones] == [young.id]
    assert await _rows(views, bench, TaskFilter(min_age_seconds=2.0, max_age_seconds=1.0)) == []


@case("whole_views")
async def no_body_and_no_value_of_a_variable_is_shown(bench: Bench) -> None:
    """A6 of the dashboard: names alone, wherever a task is."""
    views = await _of(bench)
    env = {"KEY": _SECRET, "ANOTHER": _SECRET}
    states = [await bench.pushed(env=env) for _ in range(3)]
    await bench.take()
    await (await bench.take()).settle(MoveToDeadLetters("failures", "no"))
    for (pushed,) in states:
        detail = await views.task(bench.queue, pushed.id)
        assert detail is not None
        assert list(detail.variables) == ["ANOTHER", "KEY"]
        assert _SECRET not in repr(detail)
        assert TaskRecord.__name__ not in repr(detail)
    assert _SECRET not in repr(await _rows(views, bench, _ALL))


@case("views")
async def a_task_is_shown_with_its_attempts_and_output(bench: Bench) -> None:
    """Found by its id wherever it is, as it is; one that is not there is nothing."""
    views = await _of(bench)
    (pushed,) = await bench.pushed(command="python train.py", cwd="/work", timeout=5.0)
    delivery = await bench.take()
    ended = _attempt(bench, delivery, "retry", exit_code=3, host="node-7")
    await delivery.settle(Requeue(delivery.task.counters.raised(failures=1), NOW, record=Record(ended, "the end")))
    await bench.recorded()
    detail = await views.task(bench.queue, pushed.id)
    assert detail is not None
    assert (detail.row.state, detail.row.runs, detail.row.attempt) == (TaskState.READY, "python train.py", 1)
    assert (detail.cwd, detail.timeout, detail.row.exit, detail.row.host) == ("/work", 5.0, "3", "node-7")
    assert [(each.exit_code, each.host) for each in detail.attempts] == [(3, "node-7")]
    assert await views.output(bench.queue, pushed.id) == (1, "the end")
    assert await views.output(bench.queue, pushed.id, 2) is None
    await (await bench.take()).settle(Complete(DONE))
    await bench.recorded()
    detail = await views.task(bench.queue, pushed.id)
    assert detail is not None
    assert (detail.row.state, detail.row.runs, detail.variables) == (TaskState.SUCCEEDED, "", ())
    for id_ in ("no-such-task", "\0", "\ud800"):
        assert await views.task(bench.queue, id_) is None
        assert await views.output(bench.queue, id_) is None


@case("whole_views", injects=True)
async def what_is_no_task_says_so_and_holds_nothing_up(bench: Bench) -> None:
    """Any bytes: they are counted, and not shown."""
    views = await _of(bench)
    body = b"\xff\0 no task <script>"
    injected = await bench.inject(body)
    (pushed,) = await bench.pushed()
    rows = {row.id: row for row in await _rows(views, bench, _ALL)}
    assert rows.keys() == {injected, pushed.id}
    row = rows[injected]
    assert row.malformed
    assert (row.runs, row.body_bytes) == ("", len(body))
    detail = await views.task(bench.queue, injected)
    assert detail is not None
    assert (detail.row.malformed, detail.budgets) == (row.malformed, None)


@case("whole_views")
async def a_large_task_is_read_for_its_own_page_alone(bench: Bench) -> None:
    """A list says how large it is: some of them must not hold it up."""
    views = await _of(bench)
    size = min(100_000, (bench.capabilities.max_message_bytes or 200_000) // 2)
    command = "x" * size
    (large,) = await bench.pushed(command=command)
    (row,) = await _rows(views, bench, _ALL)
    assert (row.id, row.runs) == (large.id, command[:MOST_LISTED] if size <= MOST_BODY_BYTES else "")
    assert (row.malformed, row.body_bytes > size) == ("", True)
    detail = await views.task(bench.queue, large.id)
    assert detail is not None
    assert detail.row.runs == command[:MOST_SHOWN]


@case("views")
async def text_of_others_stays_as_it_is(bench: Bench) -> None:
    """Whoever shows it escapes it, and no one else."""
    views = await _of(bench)
    hostile = "echo '<script>alert(1)</script>' \u202e \x1b[31m {{7*7}} \x7f"
    (pushed,) = await bench.pushed(command=hostile)
    await bench.recorded()
    (row,) = await _rows(views, bench, _ALL)
    assert (row.id, row.runs) == (pushed.id, hostile)
    detail = await views.task(bench.queue, pushed.id)
    assert detail is not None
    assert detail.row.runs == hostile
    (found,) = await _rows(views, bench, TaskFilter(text="*<script>*"))
    assert found.id == pushed.id


@case("whole_views")
async def all_queues_of_the_place_are_there(bench: Bench) -> None:
    """In order, with their counts, what ended lately, since when the oldest waits, and whether they are paused."""
    views = await _of(bench)
    others = sorted(bench.harness.queue_name() for _ in range(3))
    for name in others:
        await (await bench.handle(name)).create()
    wanted = await _one_of_each(bench)
    if bench.capabilities.pauses:
        assert isinstance(bench.backend, Pausable)
        await bench.backend.pause(Pause(at=1.7e9, by="ada@host", reason="<b>"))
    lines: dict[str, QueueLine] = {}
    for size in (1, 100):
        after: str | None = ""
        names = []
        while after is not None:
            page = await views.queues(after, size, budget=_AMPLE)
            names += [line.name for line in page.rows]
            lines |= {line.name: line for line in page.rows}
            after = page.after
        assert {bench.queue, *others} <= set(names)
        assert len(set(names)) == len(names)
    line = lines[bench.queue]
    alone = await views.queue(bench.queue, budget=_AMPLE)
    assert (alone.name, alone.counts, alone.paused) == (line.name, line.counts, line.paused)
    for state in TaskState:
        assert line.counts[state].number == sum(each is state for each in wanted.values()), state
        assert line.counts[state].is_exact
    assert line.oldest_ready_seconds is not None
    assert 0.0 <= line.oldest_ready_seconds < 600
    ended = {state: count.number for state, count in line.ended.items()}
    assert ended == dict.fromkeys((TaskState.SUCCEEDED, TaskState.DEAD, TaskState.CANCELED), 1)
    assert (line.paused is not None) == bench.capabilities.pauses
    empty = lines[others[0]]
    assert (sum(count.number for count in empty.counts.values()), empty.oldest_ready_seconds, empty.ended) == (
        0,
        None,
        {},
    )


@case("views", "named_leases")
async def named_leases_are_listed_page_by_page(bench: Bench) -> None:
    """By the beginning of their names, with their cursors; of this queue alone, also where there is none."""
    views = await _of(bench)
    assert isinstance(bench.backend, KeepsLeases)
    names = [f"jobq.action.{number}" for number in range(5)] + ["nightly", "jobq.actio"]
    ttl = max(bench.lease, bench.backend.leases.limits.min_ttl)
    for name in names:
        grant = await bench.backend.leases.acquire(Request(name=name, key=new_id(), holder="h:1", ttl=ttl))
        await bench.backend.leases.save(grant, f"at {name}", 1)  # type: ignore[arg-type] # nobody else has it
    for prefix, wanted in (
        ("", set(names)),
        ("jobq.action.", set(names[:5])),
        ("nightly", {"nightly"}),
        ("x\0", set()),
    ):
        for size in (1, 2, 100):
            found: list[Any] = []
            after: str | None = ""
            while after is not None:
                page: ViewPage[Any] = await views.leases(bench.queue, prefix, after, size, budget=_AMPLE)
                found += page.rows
                after = page.after
            assert {each.name: each.cursor for each in found} == {name: f"at {name}" for name in wanted}, prefix
            assert len(found) == len(wanted)
    assert (await views.leases(bench.harness.queue_name(), "", "", 10)).rows == []


@case("views")
async def dead_letters_are_counted_by_what_they_have_in_common(bench: Bench) -> None:
    """The largest group first, with its first and last death, and its newest as an example."""
    views = await _of(bench)
    said = ("exit code 137\nlast output:\nout of memory: 17 MB", "exit code 1\nlast output:\nno such file /a/b")
    buried: list[str] = []
    for number in (0, 1, 0):
        (pushed,) = await bench.pushed()
        delivery = await bench.take_id(pushed.id)
        record = Record(_attempt(bench, delivery, "dead", exit_code=1, host=f"node-{len(buried)}"), "")
        await delivery.settle(MoveToDeadLetters("failures", f"{said[number]} {len(buried)}", record=record))
        buried.append(pushed.id)
    await bench.recorded()
    found = await views.dead_groups(bench.queue, ["exit", "error"], 10, budget=_AMPLE)
    assert [(group.count, group.facts["exit"], group.example) for group in found.groups] == [
        (2, "137", buried[2]),
        (1, "1", buried[1]),
    ]
    assert found.groups[0].first <= found.groups[0].last
    assert found.searched_to is None
    assert [group.hosts for group in found.groups] == [2, 1]
    recent = await views.dead_groups(bench.queue, ["exit", "error"], 10, max_age_seconds=3600.0, budget=_AMPLE)
    assert recent == found
    await bench.clock.advance(2.0)
    past = await views.dead_groups(bench.queue, ["exit"], 10, max_age_seconds=1.0, budget=_AMPLE)
    assert (past.groups, past.searched_to) == ([], None)
    few = await views.dead_groups(bench.queue, ["exit"], 1, budget=_AMPLE)
    assert (len(few.groups), few.others) == (1, 1)
    error = found.groups[0].facts["error"]
    rows = await _rows(views, bench, TaskFilter(exit="1*", error=error.replace("[", "[[]")))
    assert {row.id for row in rows} == {buried[0], buried[2]}


@case("views")
async def a_look_without_time_says_so_and_goes_on(bench: Bench) -> None:
    """It raises nothing, and what it could not look at is behind the place that it gives."""
    views = await _of(bench)
    pushed = {each.id for each in await bench.pushed(5)}
    await bench.recorded()
    page = await views.tasks(bench.queue, _ALL, "", 3, budget=NOW)
    assert page.searched_to is not None
    assert page.after is not None
    rest = await _listed(views, bench.queue, _ALL, 3, page.after)
    assert {row.id for row in (*page.rows, *rest)} == pushed
    count = await views.count(bench.queue, TaskFilter(text="*"), budget=NOW)
    assert (count.is_exact, count.number <= 5) == (False, True)
    assert (await views.dead_groups(bench.queue, ["exit"], 3, budget=NOW)).groups == []
    assert (await views.queues("", 1, budget=NOW)).rows, "one line in any case, so that the next page is another"


@case("views")
async def what_cannot_be_asked_for_is_refused(bench: Bench) -> None:
    """A queue that is not there, a place that no page gave, a page without rows."""
    views = await _of(bench)
    for name in (bench.harness.queue_name(), "\0", "\ud800"):
        with raises(QueueNotFound, f"a list of {name!a}"):
            await views.tasks(name, _ALL, "", 10)
    for after in ("x", "ready", "ready:", 'ready:["x"]', "ready:[7]"):
        with raises(ConfigurationError, f"a page behind {after!a}"):
            await views.tasks(bench.queue, _ALL, after, 10)
    for limit in (0, 501):
        with raises(ConfigurationError, f"a page of {limit}"):
            await views.tasks(bench.queue, _ALL, "", limit)
    with raises(ConfigurationError, "a grouping by nothing known"):
        await views.dead_groups(bench.queue, ["color"], 10)


@case("views", "batches")
async def a_batch_has_pages_of_its_own(bench: Bench) -> None:
    """Whatever of it waits, runs or has ended; others are none of it. Some services keep no order."""
    views = await _of(bench)
    await batches_of(bench.backend).begin("s7", Plan())
    mine = [each.id for each in await bench.pushed(5, batch="s7")]
    await bench.pushed(3)
    done = await bench.take_id(mine[0], gives_back=True)
    await done.settle(Complete(DONE))
    dead = await bench.take_id(mine[1], gives_back=True)
    await dead.settle(MoveToDeadLetters("failures", "no"))
    await bench.take_id(mine[2], lease=bench.long_lease, gives_back=True)  # it runs for as long as is looked
    await bench.recorded()
    for size in (1, 2, 100):
        found = await _listed(views, bench.queue, TaskFilter(batch="s7"), size)
        assert {row.id: row.batch for row in found} == dict.fromkeys(mine, "s7")
        assert len(found) == len(mine)
    for state, ids in (
        (TaskState.DEAD, {mine[1]}),
        (TaskState.SUCCEEDED, {mine[0]}),
        (TaskState.READY, set(mine[3:])),
    ):
        found = await _rows(views, bench, TaskFilter(batch="s7", states=frozenset({state})))
        assert {row.id for row in found} == ids, state
    for name in ("s8", "\0", "no batch"):
        assert await _rows(views, bench, TaskFilter(batch=name)) == []


async def _of(bench: Bench) -> Views:
    assert isinstance(bench.backend, KeepsViews)
    return await bench.entered(bench.backend.views())


async def _listed(views: Views, queue: str, wanted: TaskFilter, size: int, after: str | None = "") -> list[TaskRow]:
    """Return all pages of a list, from a place on."""
    rows: list[TaskRow] = []
    while after is not None:
        page = await views.tasks(queue, wanted, after, size, budget=_AMPLE)
        assert len(page.rows) == size or page.after is None, "a page is full, or the last one"
        assert page.searched_to is None
        rows += page.rows
        after = page.after
    return rows


async def _rows(views: Views, bench: Bench, wanted: TaskFilter) -> list[TaskRow]:
    return await _listed(views, bench.queue, wanted, 100)


async def _one_of_each(bench: Bench) -> dict[str, TaskState]:
    """Bring tasks into each state that this service can tell; return them."""
    done = (await bench.pushed())[0]
    await (await bench.take_id(done.id)).settle(Complete(DONE))
    dead = await bench.bury()
    found = {done.id: TaskState.SUCCEEDED, dead.id: TaskState.DEAD}
    assert isinstance(bench.backend, KeepsJournal)
    assert bench.backend.journal is not None
    (canceled,) = await bench.pushed()
    await bench.backend.journal.cancel([canceled.id])
    found[canceled.id] = TaskState.CANCELED
    (running,) = await bench.pushed()
    await bench.take_id(running.id, lease=bench.long_lease)
    found[running.id] = TaskState.RUNNING
    found |= {each.id: TaskState.SCHEDULED for each in await bench.pushed(2, not_before=bench.clock.wall() + 3600)}
    found |= {each.id: TaskState.READY for each in await bench.pushed(3)}
    return found


def _attempt(
    bench: Bench, delivery: Delivery, then: str, *, exit_code: int, host: str, program: str = "python"
) -> Attempt:
    return Attempt(
        attempt=delivery.deliveries,
        outcome=OutcomeKind.SUCCEEDED if then == "done" else OutcomeKind.FAILED,
        then=then,
        ended=bench.clock.wall(),
        exit_code=exit_code,
        host=host,
        program=program,
    )
