"""Named leases on Azure Storage: a blob a name, in the container `jobq-leases`, as QUEUE/NAME.

The blob holds token and cursor, and the service's own lease on it is the named lease: every write names the lease's id,
so that the service refuses a stale holder by its own clock (S4), and the etag as read, so that a write which was on its
way for long changes nothing (S9). What the service's leases mean here:

- they last 15 to 60 s in whole seconds, or for ever, which nothing that can vanish may hold: so a ttl is 15 to 60 s;
- the service says neither how much time is left nor how often a lease was renewed;
- it still renews a lease that has expired, if nobody has leased the blob or written to it since: nothing has overlapped
  then, and the holder has let go of it by its own deadline anyway.
"""

import asyncio
import contextlib
import json
import logging
import math
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, fields, replace
from datetime import timedelta
from typing import Any, Final, TypeVar

from jobq.errors import BackendUnavailable, LockLost, MalformedTask, SettlementUnknown, StoreUnusable
from jobq.formats import strict_json
from jobq.lease import rules
from jobq.lease.rules import CONFIRMED, HELD, LeaseRow
from jobq.lease.store import Busy, Confirmation, Grant, LeaseLimits, LeaseRecord, Request
from jobq_azure.common.errors import NoAnswer, NoBlob
from jobq_azure.storage.blob_client import BlobWire, Changed, Found, Taken

_T = TypeVar("_T")
_log: Final = logging.getLogger(__name__)
_LIMITS: Final = LeaseLimits(
    default_ttl=timedelta(seconds=60),
    min_ttl=timedelta(seconds=15),
    max_ttl=timedelta(seconds=60),
    poll=timedelta(seconds=2),
    counts_renewals=False,
    strict_expiry=False,
    whole_seconds=True,
)
_IN_TIME: Final = -1.0  # for the rules: that it has not expired is what the service itself checks, by the lease's id
_RACES: Final = 3  # how often a blob may change between our read and our write
_READS_AT_ONCE: Final = 16
_ACTIVE: Final = frozenset({"leased", "breaking"})


@dataclass(frozen=True, kw_only=True)
class _Kept:
    """A blob's content, taken apart."""

    row: LeaseRow
    etag: str = ""
    lease_state: str = "available"

    def encode(self) -> bytes:
        return json.dumps(asdict(self.row)).encode()

    @classmethod
    def decode(cls, name: str, found: Found) -> "_Kept":
        try:
            values: Any = strict_json.loads(found.content)
            row = LeaseRow(**{field.name: values[field.name] for field in fields(LeaseRow)})
        except (MalformedTask, AttributeError, KeyError, TypeError):
            raise StoreUnusable(f"the blob of lease {name} is not one that jobq wrote; delete it, or mend it") from None
        return cls(row=row, etag=found.etag, lease_state=found.lease_state)


class BlobLeases:
    """The named leases of one queue.

    Args:
        wire: makes the requests; asked for on first use.
        wall: returns people's time.
    """

    def __init__(self, wire: Callable[[], BlobWire], wall: Callable[[], float]) -> None:
        self._make_wire = wire
        self._wall = wall
        self._known: dict[tuple[str, int], _Kept] = {}  # what this process holds: a save then takes one request

    @property
    def limits(self) -> LeaseLimits:
        """What the service's leases can and cannot do."""
        return _LIMITS

    async def acquire(self, request: Request) -> Grant | Busy:
        """Lease the blob, then write the next token into it under that lease."""
        return await _settled(self._acquire(request))

    async def _acquire(self, request: Request) -> Grant | Busy:
        wire, name, key = self._wire, request.name, request.key
        seconds = math.ceil(request.ttl.total_seconds())
        try:
            try:
                await wire.lease(name, key, seconds)
            except NoBlob:
                await wire.make(name, _Kept(row=LeaseRow()).encode())
                await wire.lease(name, key, seconds)
        except Taken:
            row = (await self._read(name)).row
            if row.key == key:
                raise LockLost(f"lease {name}: this request was granted and is revoked; make a new one") from None
            return Busy(holder=row.holder, token=row.token, remaining=None, why="held")
        kept = await self._read(name, key)
        if kept.row.token and kept.row.key == key and kept.row.state == HELD:
            self._known[name, kept.row.token] = kept
            return _grant(name, kept.row)
        if kept.row.state == CONFIRMED:
            await self._unlease(name, key)
            return Busy(holder=kept.row.holder, token=kept.row.token, remaining=None, why="confirmed")
        if kept.row.key == key:
            await self._unlease(name, key)
            raise LockLost(f"lease {name}: this request was granted and has ended; make a new one")
        # That the name is free was decided above: the rule only has to make the next grant.
        free = replace(kept.row, expires_at=-math.inf)
        row, _ = rules.acquire(free if kept.row.token else None, request, 0.0, self._wall())
        kept = await self._write(name, _Kept(row=replace(row, expires_at=0.0), etag=kept.etag), key)
        self._known[name, row.token] = kept
        return _grant(name, row)

    async def withdraw(self, name: str, key: str) -> None:
        """Release whatever this request was granted, be it only the blob's lease."""
        await _settled(self._withdraw(name, key))

    async def _withdraw(self, name: str, key: str) -> None:
        with contextlib.suppress(NoBlob, LockLost):
            kept = await self._read(name)
            if kept.row.key == key and kept.row.state == HELD:
                await self._write(name, replace(kept, row=rules.withdraw(kept.row, key, 0.0)), key)
            await self._wire.unlease(name, key)

    async def renew(self, grant: Grant, ttl: timedelta) -> None:  # noqa: ARG002 - it lasts as long as it was leased for
        """Renew the blob's lease."""
        await _settled(self._there(grant.name, lambda: self._wire.renew(grant.name, grant.key)))

    async def release(self, name: str, token: int) -> None:
        """Write that it is released, then give back the blob's lease."""
        await _settled(self._change(name, lambda row: rules.release(name, row, token, _IN_TIME)))
        self._known.pop((name, token), None)

    async def confirm(self, name: str, token: int, value: str) -> Confirmation:
        """Write that it is taken for good, then give back the blob's lease."""
        await _settled(self._change(name, lambda row: rules.confirm(name, row, token, value, _IN_TIME)[0], breaks=True))
        return Confirmation(token=token, value=value)

    async def save(self, grant: Grant, cursor: str, version: int) -> None:
        """Write the cursor, under the blob's lease."""
        await _settled(self._save(grant, cursor, version))

    async def _save(self, grant: Grant, cursor: str, version: int) -> None:
        name, place = grant.name, (grant.name, grant.token)
        for _ in range(_RACES):
            known = self._known.get(place)
            kept = await self._there(name, lambda: self._read(name)) if known is None else known
            row = rules.save(name, kept.row, grant.token, cursor, version, _IN_TIME)
            if row != kept.row:
                try:
                    self._known[place] = await self._write(name, replace(kept, row=row), grant.key)
                except Changed:  # by a save of ours whose answer was lost
                    self._known.pop(place, None)
                    continue
                return
            seen = await self._read(name, grant.key)  # that it is saved is certain; is it ours still?
            self._known[place] = seen
            if seen.row == row:
                return
        raise SettlementUnknown(f"lease {name}: its blob changes again and again")

    async def revoke(self, name: str) -> LeaseRecord | None:
        """Break the blob's lease: it ends with its time. A confirmation is released."""
        return await _settled(self._revoke(name))

    async def _revoke(self, name: str) -> LeaseRecord | None:
        try:
            kept = await self._read(name)
            if kept.row.state == CONFIRMED:
                await self._change(name, lambda row: rules.revoke(row, 0.0))
            else:
                with contextlib.suppress(LockLost):  # nobody leases it
                    await self._wire.break_lease(name)
            return _record(name, await self._read(name))
        except NoBlob:
            return None

    async def read(self, name: str) -> LeaseRecord | None:
        """Return one."""
        try:
            kept = await _asked(self._read(name))
        except NoBlob:
            return None
        return _record(name, kept) if kept.row.token else None

    async def list(self) -> list[LeaseRecord]:
        """Return all, by name; a request for each."""
        turn = asyncio.Semaphore(_READS_AT_ONCE)

        async def one(name: str) -> LeaseRecord | None:
            async with turn:
                return await self.read(name)

        names = await self.names()
        found = await asyncio.gather(*(one(name) for name in sorted(names)))
        return [record for record in found if record is not None]

    async def names(self) -> set[str]:
        """Return the names of all, a request for each some thousand."""
        return await _asked(self._names())

    async def _names(self) -> set[str]:
        return {name async for name in self._wire.names()}

    @property
    def _wire(self) -> BlobWire:
        return self._make_wire()

    async def _read(self, name: str, key: str | None = None) -> _Kept:
        return _Kept.decode(name, await self._wire.read(name, key))

    async def _write(self, name: str, kept: _Kept, key: str | None) -> _Kept:
        return replace(kept, etag=await self._wire.write(name, kept.encode(), kept.etag, key))

    async def _change(self, name: str, rule: Callable[[LeaseRow], LeaseRow], *, breaks: bool = False) -> None:
        """Read, apply the rule, and write under the lease of the token's holder; then give back the lease.

        Args:
            name: of the lease.
            rule: what becomes of its row.
            breaks: whether the rule looks at `is_revoked`, which the blob's own lease says: it is being broken. One
                that is broken between our read and our write was revoked after the change.
        """
        for _ in range(_RACES):
            kept = await self._there(name, lambda: self._read(name))
            if breaks and _is_revoked(kept):
                rule(replace(kept.row, is_revoked=True))
            row = rule(kept.row)
            if row == kept.row or await self._replaced(name, kept, row):
                if row.state != HELD:  # else it is another's by now, and stays so
                    await self._unlease(name, row.key)
                return
        raise SettlementUnknown(f"lease {name}: its blob changes again and again")

    async def _replaced(self, name: str, kept: _Kept, row: LeaseRow) -> bool:
        """Write; return False when the blob is not as it was read, or somebody just looks whether it is free."""
        held = kept.row.state == HELD
        # What is confirmed is leased no more, unless giving that back was lost on the way: then it is still its own.
        for key in (kept.row.key,) if held else (None, kept.row.key):
            try:
                await self._write(name, replace(kept, row=row), key)
            except Changed:
                return False
            except LockLost:
                if held:
                    raise
            else:
                return True
        return False

    async def _unlease(self, name: str, key: str) -> None:
        try:
            with contextlib.suppress(LockLost):
                await self._wire.unlease(name, key)
        except (NoAnswer, BackendUnavailable) as error:
            _log.info("the lease on the blob of %s was perhaps not given back, it expires: %s", name, error)

    @staticmethod
    async def _there(name: str, ask: Callable[[], Awaitable[_T]]) -> _T:
        try:
            return await ask()
        except NoBlob:
            raise LockLost(f"there is no lease {name}") from None


async def _settled(call: Awaitable[_T]) -> _T:
    """Return what a verb that writes returns; an answer that was lost is SettlementUnknown, as is a race."""
    try:
        return await call
    except NoAnswer as error:
        raise SettlementUnknown(str(error)) from None
    except (Changed, Taken):
        raise SettlementUnknown("the blob of this lease was changed meanwhile; ask again") from None


async def _asked(call: Awaitable[_T]) -> _T:
    """Return what a verb that only reads returns."""
    try:
        return await call
    except NoAnswer as error:
        raise BackendUnavailable(str(error)) from None


def _grant(name: str, row: LeaseRow) -> Grant:
    return Grant(name=name, token=row.token, key=row.key, cursor=row.cursor, version=row.version)


def _record(name: str, kept: _Kept) -> LeaseRecord:
    is_active = kept.lease_state in _ACTIVE
    record = rules.record(name, replace(kept.row, expires_at=1.0 if is_active else -1.0), 0.0)
    return replace(record, remaining=None, renewals=None, is_revoked=_is_revoked(kept))


def _is_revoked(kept: _Kept) -> bool:
    return kept.lease_state == "breaking" and kept.row.state == HELD
