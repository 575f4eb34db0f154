"""The endpoints of named leases (S10); every write is one compare on the token (S4)."""

import time
import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final

from jobq.errors import BackendUnavailable, LockLost
from jobq.lease.store import Busy, Grant, LeaseRecord, LeaseState, LeaseStore, Request, checked_name, store_of
from jobq.servable import PAGE_BYTES
from jobq.server import answers, schemas
from jobq.server.endpoint import AFTER, LIMIT, Endpoints, Parameter, Reply
from jobq.server.error_responses import RequestRefused
from jobq.server.request import RequestCall
from jobq.server.tokens import Scope

_ACCEPTED: Final = {"accepted": True}
_AT_ONCE: Final = 50  # read before it is seen whether a page is full
_BUDGET: Final = timedelta(seconds=2)
_OURS: Final = "jobq."  # names of the service itself
_DONE: Final = {202: answers.Accepted}
_RESOURCE: Final = Parameter(name="resource", schema=schemas.RESOURCE, text="Only the lease of this name.")
_TOKEN: Final = Parameter(
    name="token",
    schema={"type": "integer", "minimum": 1, "maximum": schemas.MAX_TOKEN},
    text="Of the holder; without it an admin keeps the holder from renewing.",
)
ENDPOINTS: Final = Endpoints("/api/leases")


async def _store(call: RequestCall) -> LeaseStore:
    name = getattr(call.body, "resource", None)
    if name is not None and name.startswith(_OURS):  # else all who may lease tasks could stop the generator
        call.needs(Scope.ADMIN)
    return store_of(await call.backend())


@ENDPOINTS.add("POST", "", Scope.LEASE, body=schemas.NewLease, answers={201: answers.LeaseGranted})
async def acquire(call: RequestCall) -> Reply:
    """Take a name, unless it is held (409)."""
    body: schemas.NewLease = call.body
    call.audited["lease"] = body.resource
    request = Request(
        name=body.resource,
        key=body.key or str(uuid.uuid4()),
        holder=body.holder,
        ttl=timedelta(seconds=body.ttl),
    )
    answer = await (await _store(call)).acquire(request)
    if isinstance(answer, Busy):
        raise RequestRefused(
            409,
            "held",
            f"lease {body.resource} is not to be had: it is {answer.why}, token {answer.token}",
            holder=answer.holder,
            token=answer.token,
            remaining=answer.remaining,
            why=answer.why,
        )
    call.audited["token"] = answer.token
    granted = {"resource": answer.name, "token": answer.token, "key": answer.key}
    return 201, granted | {"cursor": answer.cursor, "version": answer.version}


@ENDPOINTS.add("PUT", "/renew", Scope.LEASE, body=schemas.Renewal, answers=_DONE)
async def renew(call: RequestCall) -> Reply:
    """Extend a lease, from now."""
    body: schemas.Renewal = call.body
    _audit(call)
    grant = Grant(name=body.resource, token=body.token, key="", cursor=None, version=0)
    await (await _store(call)).renew(grant, timedelta(seconds=body.ttl))
    return 202, _ACCEPTED


@ENDPOINTS.add(
    "POST",
    "/release",
    Scope.LEASE,
    body=schemas.LeaseToken,
    answers=_DONE,
    summary="The same, for clients whose DELETE has no body.",
)
@ENDPOINTS.add("DELETE", "/release", Scope.LEASE, body=schemas.LeaseToken, answers=_DONE)
async def release(call: RequestCall) -> Reply:
    """Give a name back."""
    _audit(call)
    await (await _store(call)).release(call.body.resource, call.body.token)
    return 202, _ACCEPTED


@ENDPOINTS.add("PUT", "/cursor", Scope.LEASE, body=schemas.CursorRequest, answers=_DONE)
async def save(call: RequestCall) -> Reply:
    """Save how far the work has come."""
    body: schemas.CursorRequest = call.body
    _audit(call)
    grant = Grant(name=body.resource, token=body.token, key="", cursor=None, version=0)
    await (await _store(call)).save(grant, body.cursor, body.version)
    return 202, _ACCEPTED


@ENDPOINTS.add("PUT", "/confirm", Scope.LEASE, body=schemas.ConfirmRequest, answers={202: answers.ConfirmAnswer})
async def confirm(call: RequestCall) -> Reply:
    """Take a name for good."""
    _audit(call)
    made = await (await _store(call)).confirm(call.body.resource, call.body.token, call.body.value)
    return 202, {"token": made.token, "value": made.value}


@ENDPOINTS.add("POST", "/withdraw", Scope.LEASE, body=schemas.Withdrawal, answers=_DONE)
async def withdraw(call: RequestCall) -> Reply:
    """Give back what a request was granted."""
    call.audited["lease"] = call.body.resource
    await (await _store(call)).withdraw(call.body.resource, call.body.key)
    return 202, _ACCEPTED


async def _revoke(call: RequestCall) -> Reply:
    name = checked_name(call.path["id"])
    call.audited["lease"] = name
    record = await (await _store(call)).revoke(name)
    if record is None:
        raise _no_lease(name)
    return 200, shown(record)


def _list(path: str, summary: str, wanted: Callable[[LeaseRecord], bool]) -> None:
    @ENDPOINTS.add(
        "GET",
        path,
        Scope.VIEW,
        answers={200: answers.LeasePage},
        parameters=(AFTER, LIMIT, _RESOURCE),
        summary=summary,
        is_large=True,
    )
    async def handler(call: RequestCall) -> Reply:
        limit, after = LIMIT.read(call.query), AFTER.read(call.query) or ""
        name = call.query.get("resource")
        store = await _store(call)
        if name is None:
            found, behind = await _page(call, wanted, after, limit)
        else:  # one is not to cost what all of them do
            record, behind = await store.read(checked_name(name)), None
            found = [] if record is None or record.name <= after or not wanted(record) else [record]
        return 200, {"leases": [shown(each) for each in found], "next": behind}


async def _page(
    call: RequestCall, wanted: Callable[[LeaseRecord], bool], after: str, limit: int
) -> tuple[list[LeaseRecord], str | None]:
    """Return as many as fit into an answer, and the name that the others are behind; None = there are none."""
    views = await call.service.places.views()
    found, size, behind = list[LeaseRecord](), 0, after
    while True:
        page = await views.leases(call.queue, "", behind, min(limit, _AT_ONCE), budget=_BUDGET)
        for record in filter(wanted, page.rows):
            if len(found) == limit or size >= PAGE_BYTES:
                return found, found[-1].name
            found.append(record)
            size += len(record.cursor or "") + len(record.confirmation or "")
        if page.after == behind:
            raise BackendUnavailable("there was no time to look at the leases")
        if page.after is None or page.searched_to is not None:
            return found, page.after
        behind = page.after


def _in_state(state: LeaseState) -> Callable[[LeaseRecord], bool]:
    return lambda record: record.state is state


_list("", "Show all leases, by name.", lambda _: True)
_list("/active", "Show the leases that are held.", _in_state(LeaseState.ACTIVE))
_list("/expired", "Show those whose holder vanished.", _in_state(LeaseState.EXPIRED))
_list(
    "/renewed",
    "Show those that are held and were renewed.",
    lambda record: record.state is LeaseState.ACTIVE and bool(record.renewals),
)
_list("/released", "Show those that were given back.", _in_state(LeaseState.RELEASED))
_list("/confirmed", "Show those that were taken for good.", _in_state(LeaseState.CONFIRMED))


@ENDPOINTS.add("GET", "/{id}", Scope.VIEW, answers={200: answers.LeaseShown}, id_schema=schemas.RESOURCE)
async def show(call: RequestCall) -> Reply:
    """Show a lease. One that is named like a list is found by ?resource=."""
    name = checked_name(call.path["id"])
    record = await (await _store(call)).read(name)
    if record is None:
        raise _no_lease(name)
    return 200, shown(record)


def _no_lease(name: str) -> RequestRefused:
    return RequestRefused(404, "lease_not_found", f"nobody ever held a lease {name} here")


def shown(record: LeaseRecord) -> dict[str, Any]:
    """Return a lease as an answer."""
    now = time.time()
    is_held = record.state in (LeaseState.ACTIVE, LeaseState.EXPIRED)
    expires = now + record.remaining if is_held and record.remaining is not None else None
    renewed = expires - record.ttl if expires is not None and record.ttl and record.renewals else None
    released = None if record.released is None else now - record.released
    return {
        "id": record.name,
        "resource": record.name,
        "holder": record.holder,
        "state": str(record.state),
        "token": record.token,
        "ttl": record.ttl,
        "created": record.acquired,
        "renewed": renewed,
        "released": released,
        "expires": expires,
        "remaining": record.remaining,
        "renewals": record.renewals,
        "revoked": record.is_revoked,
        "cursor": record.cursor,
        "confirmation": record.confirmation,
    }


def _audit(call: RequestCall) -> None:
    call.audited |= {"lease": call.body.resource, "token": call.body.token}


@ENDPOINTS.add(
    "DELETE", "/{id}", None, answers={200: answers.LeaseShown}, parameters=(_TOKEN,), id_schema=schemas.RESOURCE
)
async def release_by_id(call: RequestCall) -> Reply:
    """Give a name back under its token; without one, and as admin, keep its holder from renewing."""
    token = _TOKEN.read(call.query)
    if token is None:
        call.needs(Scope.ADMIN)
        return await _revoke(call)
    call.needs(Scope.ADMIN if call.path["id"].startswith(_OURS) else Scope.LEASE)
    name = checked_name(call.path["id"])
    call.audited |= {"lease": name, "token": token}
    store = await _store(call)
    try:
        await store.release(name, token)
    except LockLost:
        if await store.read(name) is None:
            raise _no_lease(name) from None
        raise
    record = await store.read(name)
    if record is None:
        raise _no_lease(name)
    return 200, shown(record)
