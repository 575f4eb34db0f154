"""The endpoints of what is noted of a queue: for workers, which tell of themselves, and for who changes something.

What somebody has changed is named after his token, whatever the request says, and no other token changes it: the audit
of a place is worth what its services keep of it.
"""

import time
from dataclasses import replace
from typing import Any, Final

from jobq.journal.changes import QueueChange, change_key
from jobq.journal.minutes import EndedAttempts
from jobq.journal.notes import NoteKind, time_of
from jobq.journal.observations import Observations, checked_note, observations_of
from jobq.journal.observing import CHANGES_KEPT
from jobq.journal.view_wire import fields_of
from jobq.server import answers, view_answers, view_schemas
from jobq.server.endpoint import Endpoints, Reply
from jobq.server.error_responses import RequestRefused
from jobq.server.request import RequestCall
from jobq.server.tokens import Scope
from jobq.server.views import is_own, shown_note

_AHEAD_SECONDS: Final = 3600.0  # how far the clock of who writes may be ahead
ENDPOINTS: Final = Endpoints("/api/queues/{queue}/notes")


async def _notes(call: RequestCall) -> Observations | None:
    """Return the queue's notes; None = none are kept here: they are taken, and dropped."""
    return observations_of(await call.backend())


@ENDPOINTS.add("POST", "/put", None, body=view_schemas.NotePut, answers={202: view_answers.NoteKept})
async def put(call: RequestCall) -> Reply:
    """Keep a note; of who has changed something with the scope operate, else with lease."""
    body: view_schemas.NotePut = call.body
    kind = NoteKind(body.kind)
    call.needs(Scope.OPERATE if kind is NoteKind.CHANGE else Scope.LEASE)
    call.audited["kind"] = body.kind
    checked_note(kind, body.key, body.value)
    notes = await _notes(call)
    if notes is None:
        return 202, {"at": time.time(), "is_kept": False}
    value = body.value
    ahead = time.time() + _AHEAD_SECONDS
    if body.key < change_key(ahead) if kind is NoteKind.CHANGE else (time_of(body.key) or 0) > ahead:
        raise RequestRefused(400, "malformed_request", "key: this time is in the future, so it would never be tidied")
    if kind is NoteKind.CHANGE:
        await _check_is_own(call, notes, body.key)
        value = _of_caller(call, value)
    found = await notes.put(kind, body.key, value, replaces=body.replaces)
    return 202, {"at": found.at, "is_kept": found.is_kept}


async def _check_is_own(call: RequestCall, notes: Observations, key: str) -> None:
    """Raise RequestRefused (403) where the note of somebody else stands there, as far as the caller is no admin."""
    if call.may(Scope.ADMIN, call.queue):
        return
    just_before = f"{key[:-1]}{chr(ord(key[-1]) - 1)}~"  # no key of a change lies between
    found = await notes.page(NoteKind.CHANGE, just_before, 1)
    if found and found[0].key == key and not is_own(call, found[0].value):
        raise RequestRefused(403, "forbidden", "this is the note of somebody else")


def _of_caller(call: RequestCall, value: str) -> str:
    change = QueueChange.decode(value)
    if change is None:
        raise RequestRefused(400, "malformed_request", "value: this is no change")
    by = change.by if is_own(call, value) else f"{call.caller} {change.by}".strip()
    return replace(change, by=by, address=", ".join(filter(None, [call.address, change.address]))).encode()


@ENDPOINTS.add(
    "POST",
    "/page",
    Scope.LEASE,
    body=view_schemas.NotesPage,
    answers={200: view_answers.NotesShown},
    changes=False,
    is_large=True,
)
async def page(call: RequestCall) -> Reply:
    """Show a page of notes, to who keeps them."""
    body: view_schemas.NotesPage = call.body
    kind, notes = NoteKind(body.kind), await _notes(call)
    found = [] if notes is None else await notes.page(kind, body.after, body.limit)
    return 200, {"notes": [fields_of(shown_note(call, kind, each)) for each in found]}


@ENDPOINTS.add("POST", "/drop", Scope.LEASE, body=view_schemas.NotesDrop, answers={202: answers.Accepted})
async def drop(call: RequestCall) -> Reply:
    """Delete notes."""
    body: view_schemas.NotesDrop = call.body
    if NoteKind(body.kind) is NoteKind.CHANGE and min(body.keys) <= change_key(time.time() - CHANGES_KEPT):
        call.needs(Scope.ADMIN)  # what is too old is anybody's to tidy up
    call.audited |= {"kind": body.kind, "count": len(body.keys)}
    if (notes := await _notes(call)) is not None:
        await notes.drop(NoteKind(body.kind), body.keys)
    return 202, {"accepted": True}


@ENDPOINTS.add(
    "POST", "/ended", Scope.LEASE, body=view_schemas.EndedLook, answers={200: view_answers.EndsCounted}, changes=False
)
async def ended(call: RequestCall) -> Reply:
    """Count the attempts that ended within a time."""
    notes = await _notes(call)
    found = EndedAttempts(outcomes={}) if notes is None else await notes.ended(call.body.since, call.body.until)
    return 200, fields_of(found)


@ENDPOINTS.add(
    "POST", "/line", Scope.LEASE, body=view_schemas.LineLook, answers={200: view_answers.QueueLineShown}, changes=False
)
async def line(call: RequestCall) -> Reply:
    """Show the queue's counts, as its views do."""
    notes = await _notes(call)
    if notes is not None:
        return 200, fields_of(await notes.line())
    found: Any = await (await call.service.places.views()).queue(call.queue)
    return 200, fields_of(found)
