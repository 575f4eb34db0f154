"""The endpoints of what people look at: one for each verb of `jobq.journal.views.Views`, for dashboards elsewhere.

All but the list of queues are in one table: which scope a verb wants, what is asked, and how it is answered. A look is
a POST, since what it asks for is no part of an address, and changes nothing.
"""

import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any, Final, NamedTuple

from pydantic import BaseModel

from jobq.errors import QueueNotFound
from jobq.journal.changes import QueueChange
from jobq.journal.notes import NoteKind, QueueNote
from jobq.journal.view_wire import fields_of, filter_of
from jobq.journal.views import QueueLine, ViewPage, Views
from jobq.lease.store import LeaseRecord
from jobq.servable import PAGE_BYTES
from jobq.server import answers, view_answers, view_schemas
from jobq.server.endpoint import Endpoint, Endpoints, Reply
from jobq.server.request import RequestCall
from jobq.server.tokens import ALL_QUEUES, Scope

_NUMBERS: Final = frozenset({NoteKind.DEPTH, NoteKind.ENDED, NoteKind.DEPTH_OF_HOUR, NoteKind.ENDED_OF_HOUR})
ENDPOINTS: Final = Endpoints("/api")


class ViewVerb(NamedTuple):
    """A verb.

    Attributes:
        scope: that it wants, of the queue.
        body: what is asked.
        look: looks, and returns what is answered.
        answer: the model of that.
        summary: one line.
    """

    scope: Scope
    body: type[BaseModel]
    look: Callable[[RequestCall, Views, Any], Awaitable[Any]]
    answer: type[BaseModel]
    summary: str


async def _queue(call: RequestCall, views: Views, body: view_schemas.QueueLook) -> Any:
    return fields_of(_shown_line(call, await views.queue(call.queue, budget=_budget(body))))


async def _tasks(call: RequestCall, views: Views, body: view_schemas.TasksLook) -> Any:
    wanted = filter_of(body.wanted.model_dump())
    return fields_of(await views.tasks(call.queue, wanted, body.after, body.limit, budget=_budget(body)))


async def _count(call: RequestCall, views: Views, body: view_schemas.CountLook) -> Any:
    wanted = filter_of(body.wanted.model_dump())
    if not wanted.has_states_alone:  # else who may see numbers alone could guess at what runs, letter by letter
        call.needs(Scope.VIEW)
    return fields_of(await views.count(call.queue, wanted, most=body.most, budget=_budget(body)))


async def _task(call: RequestCall, views: Views, body: view_schemas.TaskLook) -> Any:
    return {"task": fields_of(await views.task(call.queue, body.id))}


async def _output(call: RequestCall, views: Views, body: view_schemas.OutputLook) -> Any:
    found = await views.output(call.queue, body.id, body.attempt)
    return {"attempt": None, "output": None} if found is None else {"attempt": found[0], "output": found[1]}


async def _leases(call: RequestCall, views: Views, body: view_schemas.LeasesLook) -> Any:
    """Return a page of as many as fit into an answer: a cursor may be as large as that."""

    async def page(limit: int) -> ViewPage[LeaseRecord]:
        return await views.leases(call.queue, body.prefix, body.after, limit, budget=_budget(body))

    found = await page(body.limit)
    fits = _fitting([len(json.dumps(fields_of(each))) for each in found.rows])
    return fields_of(found if fits >= len(found.rows) else await page(fits))


async def _dead_groups(call: RequestCall, views: Views, body: view_schemas.GroupsLook) -> Any:
    return fields_of(
        await views.dead_groups(
            call.queue, body.grouping, body.limit, max_age_seconds=body.max_age_seconds, budget=_budget(body)
        )
    )


async def _notes(call: RequestCall, views: Views, body: view_schemas.NotesLook) -> Any:
    kind = NoteKind(body.kind)
    if kind not in _NUMBERS:
        call.needs(Scope.VIEW)
    found = await views.notes(call.queue, kind, body.after, body.limit, budget=_budget(body))
    return {"notes": [fields_of(shown_note(call, kind, each)) for each in found]}


VERBS: Final = {
    "queue": ViewVerb(
        Scope.WATCH,
        view_schemas.QueueLook,
        _queue,
        view_answers.QueueLineShown,
        "Show its counts, and what ended lately.",
    ),
    "tasks": ViewVerb(
        Scope.VIEW,
        view_schemas.TasksLook,
        _tasks,
        view_answers.RowsPage,
        "Show a page of its tasks, by state and filter.",
    ),
    "count": ViewVerb(
        Scope.WATCH, view_schemas.CountLook, _count, view_answers.TasksCounted, "Count tasks, up to a number."
    ),
    "task": ViewVerb(
        Scope.VIEW,
        view_schemas.TaskLook,
        _task,
        view_answers.OneTask,
        "Show one task, with its attempts; null = unknown.",
    ),
    "output": ViewVerb(
        Scope.VIEW, view_schemas.OutputLook, _output, answers.JournalOutput, "Show the end of an attempt's output."
    ),
    "leases": ViewVerb(
        Scope.VIEW,
        view_schemas.LeasesLook,
        _leases,
        view_answers.RowsPage,
        "Show a page of named leases, with cursors.",
    ),
    "dead_groups": ViewVerb(
        Scope.VIEW,
        view_schemas.GroupsLook,
        _dead_groups,
        view_answers.LetterGroups,
        "Show what dead letters have in common.",
    ),
    "notes": ViewVerb(
        Scope.WATCH, view_schemas.NotesLook, _notes, view_answers.NotesShown, "Show a page of what was noted of it."
    ),
}


async def _answered(verb: ViewVerb, call: RequestCall) -> Reply:
    return 200, await verb.look(call, await call.service.places.views(), call.body)


ENDPOINTS.extend(
    Endpoint(
        method="POST",
        path=f"/api/queues/{{queue}}/views/{name}",
        scope=verb.scope,
        handler=partial(_answered, verb),
        summary=verb.summary,
        answers={200: verb.answer},
        body=verb.body,
        is_large=name in {"tasks", "task", "leases", "notes"},
    )
    for name, verb in VERBS.items()
)


@ENDPOINTS.add(
    "POST",
    "/views/queues",
    None,
    body=view_schemas.QueuesLook,
    answers={200: view_answers.QueueLines},
    has_queue=False,
    changes=False,
)
async def queues(call: RequestCall) -> Reply:
    """Show a page of the queues that the token may watch, with their counts."""
    body: view_schemas.QueuesLook = call.body
    views = await call.service.places.views()
    if call.may(Scope.WATCH, ALL_QUEUES):
        found = await views.queues(body.after, body.limit, budget=_budget(body))
        return 200, fields_of(replace(found, rows=[_shown_line(call, line) for line in found.rows]))
    # His alone: no place in a list of all is told to him, for it is the name of a queue.
    names = sorted(name for name in await call.service.places.names() if call.may(Scope.WATCH, name))
    behind = [name for name in names if name > body.after]
    ends = time.monotonic() + body.budget_seconds
    rows, looked = list[QueueLine](), 0
    for name in behind[: body.limit]:
        left = ends - time.monotonic()
        if rows and left <= 0:
            break
        looked += 1
        try:
            line = await views.queue(name, budget=timedelta(seconds=max(0.0, left)))
            rows.append(_shown_line(call, line))
        except QueueNotFound:  # it was deleted meanwhile
            continue
    after = behind[looked - 1] if 0 < looked < len(behind) else None
    return 200, fields_of(ViewPage(rows=rows, after=after))


def _shown_line(call: RequestCall, line: QueueLine) -> QueueLine:
    return replace(line, paused=call.mark_of(line.paused, line.name))


def shown_note(call: RequestCall, kind: NoteKind, note: QueueNote) -> QueueNote:
    """Return a note as the caller may see it: what others have changed is for administrators, and blank to others."""
    if kind is not NoteKind.CHANGE or call.may(Scope.ADMIN, call.queue) or is_own(call, note.value):
        return note
    return note._replace(value="")


def is_own(call: RequestCall, value: str) -> bool:
    """Return whether a change was noted of who calls."""
    change = QueueChange.decode(value)
    return change is not None and change.by.partition(" ")[0] == call.caller


def _fitting(sizes: list[int]) -> int:
    """Return how many of the first fit into an answer, one in any case."""
    total = 0
    for number, size in enumerate(sizes):
        total += size
        if total > PAGE_BYTES:
            return max(1, number)
    return len(sizes)


def _budget(body: Any) -> timedelta:
    return timedelta(seconds=body.budget_seconds)
