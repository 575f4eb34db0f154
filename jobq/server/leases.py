"""The endpoints of named leases (S10); every write is one compare on the token (S4)."""

import time
import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final

from jobq.errors import LockLost
from jobq.lease.store import Busy, Grant, LeaseRecord, LeaseState, LeaseStore, Request, checked_name, store_of
from jobq.server import schemas
from jobq.server.endpoint import AFTER, LIMIT, Call, Endpoint, Parameter, Reply, whole
from jobq.server.error_responses import Refused
from jobq.server.tokens import Scope

_ACCEPTED: Final = {"accepted": True}
_OURS: Final = "jobq."  # names of the service itself


async def _store(call: Call) -> LeaseStore:
    name = getattr(call.body, "resource", None)
    if name is not None and name.startswith(_OURS):  # else all who may lease tasks could stop the generator
        call.needs(Scope.ADMIN)
    return store_of(await call.backend())


async def acquire(call: Call) -> Reply:
    """Take a name."""
    body: schemas.NewLease = call.body
    call.audited["lease"] = body.resource
    request = Request(
        name=body.resource,
        key=body.key or str(uuid.uuid4()),
        holder=body.holder,
        ttl=timedelta(seconds=body.ttl),
        lock_delay=timedelta(seconds=body.lock_delay),
    )
    answer = await (await _store(call)).acquire(request)
    if isinstance(answer, Busy):
        raise Refused(
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


async def renew(call: Call) -> Reply:
    """Extend a lease."""
    body: schemas.Renewal = call.body
    _audit(call)
    grant = Grant(name=body.resource, token=body.token, key="", cursor=None, version=0)
    await (await _store(call)).renew(grant, timedelta(seconds=body.ttl))
    return 202, _ACCEPTED


async def release(call: Call) -> Reply:
    """Give a name back."""
    _audit(call)
    await (await _store(call)).release(call.body.resource, call.body.token)
    return 202, _ACCEPTED


async def save(call: Call) -> Reply:
    """Save a cursor."""
    body: schemas.Cursor = call.body
    _audit(call)
    grant = Grant(name=body.resource, token=body.token, key="", cursor=None, version=0)
    await (await _store(call)).save(grant, body.cursor, body.version)
    return 202, _ACCEPTED


async def confirm(call: Call) -> Reply:
    """Take a name for good."""
    _audit(call)
    made = await (await _store(call)).confirm(call.body.resource, call.body.token, call.body.value)
    return 202, {"token": made.token, "value": made.value}


async def withdraw(call: Call) -> Reply:
    """Give back what a request was granted."""
    call.audited["lease"] = call.body.resource
    await (await _store(call)).withdraw(call.body.resource, call.body.key)
    return 202, _ACCEPTED


async def revoke(call: Call) -> Reply:
    """Keep a holder from renewing."""
    name = checked_name(call.path["id"])
    call.audited["lease"] = name
    record = await (await _store(call)).revoke(name)
    if record is None:
        raise _no_lease(name)
    return 200, shown(record)


async def show(call: Call) -> Reply:
    """Show one lease."""
    name = checked_name(call.path["id"])
    record = await (await _store(call)).read(name)
    if record is None:
        raise _no_lease(name)
    return 200, shown(record)


def _no_lease(name: str) -> Refused:
    return Refused(404, "lease_not_found", f"nobody ever held a lease {name} here")


def _listing(wanted: Callable[[LeaseRecord], bool]) -> Any:
    async def handler(call: Call) -> Reply:
        limit, after = whole(call, "limit", 100, schemas.MAX_PAGE), call.query.get("after", "")
        name = call.query.get("resource")
        store = await _store(call)
        if name is None:
            records = await store.list()
        else:  # one is not to cost what all of them do
            record = await store.read(checked_name(name))
            records = [] if record is None else [record]
        found = [each for each in records if each.name > after and wanted(each)]
        more = found[limit - 1].name if len(found) > limit else None
        return 200, {"leases": [shown(each) for each in found[:limit]], "next": more}

    return handler


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


def _audit(call: Call) -> None:
    call.audited |= {"lease": call.body.resource, "token": call.body.token}


async def release_by_id(call: Call) -> Reply:
    """Give back under a token, or revoke without one."""
    text = call.query.get("token")
    if text is None:
        call.needs(Scope.ADMIN)
        return await revoke(call)
    call.needs(Scope.ADMIN if call.path["id"].startswith(_OURS) else Scope.LEASE)
    token = whole(call, "token", 0, schemas.MAX_TOKEN)
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


_DONE: Final = {202: schemas.Accepted}
_LISTS: Final = {
    "": (lambda _: True, "Show all leases, by name."),
    "/active": (lambda record: record.state is LeaseState.ACTIVE, "Show the leases that are held."),
    "/expired": (lambda record: record.state is LeaseState.EXPIRED, "Show those whose holder vanished."),
    "/renewed": (
        lambda record: record.state is LeaseState.ACTIVE and bool(record.renewals),
        "Show those that are held and were renewed.",
    ),
    "/released": (lambda record: record.state is LeaseState.RELEASED, "Show those that were given back."),
    "/confirmed": (lambda record: record.state is LeaseState.CONFIRMED, "Show those that were taken for good."),
}
_RESOURCE: Final = Parameter(
    name="resource", schema={"type": "string", "maxLength": 128}, text="Only the lease of this name."
)
_TOKEN: Final = Parameter(
    name="token",
    schema={"type": "integer", "minimum": 1, "maximum": schemas.MAX_TOKEN},
    text="Of the holder; without it an admin keeps the holder from renewing.",
)
ENDPOINTS: Final = (
    Endpoint(
        method="POST",
        path="/api/leases",
        scope=Scope.LEASE,
        handler=acquire,
        body=schemas.NewLease,
        answers={201: schemas.LeaseGranted},
        summary="Take a name, unless it is held (409).",
        changes=True,
    ),
    *(
        Endpoint(
            method="GET",
            path=f"/api/leases{path}",
            scope=Scope.VIEW,
            handler=_listing(wanted),
            answers={200: schemas.LeasePage},
            parameters=(AFTER, LIMIT, _RESOURCE),
            summary=summary,
        )
        for path, (wanted, summary) in _LISTS.items()
    ),
    *(
        Endpoint(
            method=method,
            path=f"/api/leases/{verb}",
            scope=Scope.LEASE,
            handler=handler,
            body=model,
            answers=answers,
            summary=summary,
            changes=True,
        )
        for method, verb, handler, model, answers, summary in (
            ("PUT", "renew", renew, schemas.Renewal, _DONE, "Extend a lease, from now."),
            ("DELETE", "release", release, schemas.LeaseToken, _DONE, "Give a name back."),
            ("POST", "release", release, schemas.LeaseToken, _DONE, "The same, for clients whose DELETE has no body."),
            ("PUT", "cursor", save, schemas.Cursor, _DONE, "Save how far the work has come."),
            ("PUT", "confirm", confirm, schemas.Confirmed, {202: schemas.Confirmation}, "Take a name for good."),
            ("POST", "withdraw", withdraw, schemas.Withdrawal, _DONE, "Give back what a request was granted."),
        )
    ),
    Endpoint(
        method="GET",
        path="/api/leases/{id}",
        scope=Scope.VIEW,
        handler=show,
        answers={200: schemas.LeaseShown},
        summary="Show a lease. One that is named like a list is found by ?resource=.",
    ),
    Endpoint(
        method="DELETE",
        path="/api/leases/{id}",
        scope=None,
        handler=release_by_id,
        answers={200: schemas.LeaseShown},
        parameters=(_TOKEN,),
        summary="Give a name back under its token; without one, and as admin, keep its holder from renewing.",
        changes=True,
    ),
)
