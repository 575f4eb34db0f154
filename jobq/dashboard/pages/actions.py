"""What can be done to chosen tasks, batches and a queue: asked for, confirmed with what will be done, then done.

What was shown is what is done: a confirmation carries its tasks, and the proof that this session was shown them.
"""

import json
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from jobq.backend import Backend, Hastened, hastening
from jobq.batches import batches_of
from jobq.dashboard.bulk import SCOPES
from jobq.dashboard.change_notes import noted_change
from jobq.dashboard.forms import form_of
from jobq.dashboard.pages.enter import ours
from jobq.dashboard.session import Viewer
from jobq.dashboard.site import PageRoutes, Site, WebPage, needs, told
from jobq.errors import ConfigurationError
from jobq.formats import task_ids
from jobq.formats.visible_text import visible
from jobq.journal.records import Canceled
from jobq.journal.store import MOST_IDS, journal_of
from jobq.pausing import MOST_CHARACTERS, Pause, pausable
from jobq.server.error_responses import RequestRefused
from jobq.server.tokens import Scope

PAGES = PageRoutes()


@dataclass(frozen=True, kw_only=True)
class PageAction:
    """Something that can be done.

    Attributes:
        scope: that it needs.
        title: what the confirmation asks, about so many.
        warning: what cannot be undone; "" = all can.
        do: does it: takes the backend, the chosen ids, the mark of a pause; returns what to say.
        takes_ids: whether it is done to chosen ones; else to the queue.
    """

    scope: Scope
    title: str
    do: Callable[[Backend, Sequence[str], Pause], Awaitable[str]]
    warning: str = ""
    takes_ids: bool = True


_CANCELED: Final[Mapping[str, str]] = {
    Canceled.CANCELED: "{} canceled",
    Canceled.STOPPING: "{} stop with their next heartbeat",
    Canceled.ENDED: "{} had ended",
    Canceled.UNKNOWN: "{} are not known",
}
_HASTENED: Final[Mapping[str, str]] = {
    Hastened.DUE: "{} due now",
    Hastened.WAITING: "{} waited already",
    Hastened.RUNNING: "{} ran already",
    Hastened.ENDED: "{} had ended",
    Hastened.UNKNOWN: "{} are not known",
}


async def _cancel(backend: Backend, ids: Sequence[str], _mark: Pause) -> str:
    return _counted(await journal_of(backend).cancel(ids), _CANCELED)


async def _hasten(backend: Backend, ids: Sequence[str], _mark: Pause) -> str:
    return _counted(await hastening(backend).hasten(ids), _HASTENED)


async def _retry(backend: Backend, ids: Sequence[str], _mark: Pause) -> str:
    return _done(len(await backend.redrive(ids)), len(ids), "put back")


async def _purge(backend: Backend, ids: Sequence[str], _mark: Pause) -> str:
    return _done(len(await backend.purge_dead(ids)), len(ids), "deleted")


async def _pause(backend: Backend, _ids: Sequence[str], mark: Pause) -> str:
    await pausable(backend).pause(mark)
    return "the queue is paused: nothing new is handed out, what runs goes on"


async def _resume(backend: Backend, _ids: Sequence[str], _mark: Pause) -> str:
    was = await pausable(backend).resume()
    return "tasks are handed out again" if was else "the queue was not paused"


async def _cancel_batches(backend: Backend, ids: Sequence[str], _mark: Pause) -> str:
    for name in ids:
        await batches_of(backend).cancel(name)
    return f"{len(ids)} batch{'' if len(ids) == 1 else 'es'} canceled: what waits of it ends, what runs is asked to end"


def _counted(answers: Sequence[str], said: Mapping[str, str]) -> str:
    counts = Counter(answers)
    return ", ".join(text.format(counts[answer]) for answer, text in said.items() if counts[answer])


def _done(count: int, of: int, what: str) -> str:
    return f"{count} {what}" + (f", {of - count} were gone" if count < of else "")


ACTIONS: Final = {
    "cancel": PageAction(
        scope=SCOPES["cancel"], title="Cancel {}", do=_cancel, warning="A task that is canceled runs no more."
    ),
    "hasten": PageAction(scope=Scope.OPERATE, title="Run {} now", do=_hasten),
    "retry": PageAction(scope=SCOPES["retry"], title="Put {} back, with fresh budgets", do=_retry),
    "purge": PageAction(
        scope=SCOPES["purge"], title="Purge {}", do=_purge, warning="For good: body, history and output of each go."
    ),
    "pause": PageAction(scope=Scope.OPERATE, title="Pause the queue", do=_pause, takes_ids=False),
    "resume": PageAction(scope=Scope.OPERATE, title="Resume the queue", do=_resume, takes_ids=False),
    "cancel-batch": PageAction(
        scope=Scope.OPERATE, title="Cancel {} with all tasks of it", do=_cancel_batches, warning="It cannot be undone."
    ),
}


@PAGES.add("/q/{queue}/act", Scope.WATCH, changes=True)
async def ask(site: Site, viewer: Viewer, request: Request) -> WebPage:  # noqa: ARG001 - as all pages
    """Show what will be done."""
    name = request.path_params["queue"]
    fields = await form_of(request, viewer)
    key, action, ids = _asked(viewer, name, fields)
    what = "batch" if key == "cancel-batch" else "task"
    return WebPage(
        template="confirm.html",
        title=action.title.format(f"{len(ids)} {what}{_plural(what) if len(ids) != 1 else ''}"),
        queue=name,
        values={
            "key": key,
            "action": action,
            "ids": ids,
            "proof": viewer.proof(_what(key, name, ids)),
            "back": ours(dict(fields).get("back", "")),
            "most": MOST_CHARACTERS,
        },
    )


@PAGES.add("/q/{queue}/do", Scope.WATCH, changes=True)
async def act(site: Site, viewer: Viewer, request: Request) -> Response:
    """Do what was confirmed, and go back to where it was asked for."""
    name = request.path_params["queue"]
    fields = await form_of(request, viewer)
    key, action, ids = _asked(viewer, name, fields)
    given = dict(fields)
    if not viewer.is_proof(given.get("proof", ""), _what(key, name, ids)):
        raise RequestRefused(403, "forbidden", "this is not what was shown; choose again")
    reason = given.get("reason", "").strip()
    if len(reason) > MOST_CHARACTERS or not reason.isprintable():
        raise RequestRefused(400, "malformed_request", f"a reason has at most {MOST_CHARACTERS} characters of one line")
    mark = Pause(
        at=time.time(), by=f"{viewer.token.name or viewer.token.id} (dashboard)"[:MOST_CHARACTERS], reason=reason
    )
    try:
        async with noted_change(site.places.root, viewer, request, key, name, ids=ids) as change:
            backend = await site.places.take(name, is_seen=True)
            try:
                change.said = await action.do(backend, ids, mark)
            finally:
                site.places.give(name)
                site.snapshots.forget()
    except ConfigurationError as error:
        raise RequestRefused(400, "refused", str(error)) from None
    return told(viewer, ours(given.get("back", "")), change.said)


def _asked(viewer: Viewer, queue: str, fields: Sequence[tuple[str, str]]) -> tuple[str, PageAction, list[str]]:
    key = dict(fields).get("action", "")
    action = ACTIONS.get(key)
    if action is None:
        raise RequestRefused(400, "malformed_request", f"there is no action {visible(key[:40])!r}")
    needs(viewer, action.scope, queue)
    ids = list(dict.fromkeys(value for field, value in fields if field == "id")) if action.takes_ids else []
    if action.takes_ids and not ids:
        raise RequestRefused(
            400, "nothing_chosen", "nothing is chosen; tick the rows that are meant, then press it again"
        )
    if len(ids) > MOST_IDS:
        raise RequestRefused(400, "too_many", f"{len(ids)} are chosen: at most {MOST_IDS} at once")
    if any(not task_ids.VALID.fullmatch(each) for each in ids):
        raise RequestRefused(400, "malformed_request", "what is chosen has an id that none can have")
    return key, action, ids


def _what(key: str, queue: str, ids: Sequence[str]) -> str:
    return "confirm " + json.dumps([key, queue, list(ids)])


def _plural(what: str) -> str:
    return "es" if what == "batch" else "s"
