"""What becomes of a named lease's record, as pure functions of the record and the store's own time (S4, S10).

A store that can read, decide and write in one step (under a lock, in a transaction that holds the write lock) uses
these as they are, so that the rules are written once. `now` is always the server's clock, in seconds.
"""

from dataclasses import dataclass, replace
from typing import Final

from jobq.errors import ConfirmationDiffers, LockLost
from jobq.lease.store import Busy, Confirmation, Grant, LeaseRecord, LeaseState, Request

HELD: Final = "held"
RELEASED: Final = "released"
CONFIRMED: Final = "confirmed"
_ENDS_REMEMBERED: Final = 16  # grants; for repeats of a release whose answer was lost


@dataclass(frozen=True)
class LeaseRow:
    """A named lease as it is stored.

    Attributes:
        token, key, holder: of the latest grant.
        state: held (perhaps expired), released, or confirmed.
        expires_at: by the store's clock.
        acquired: wall time, for people.
        renewals: of the latest grant.
        is_revoked: it may be neither renewed nor confirmed.
        cursor, version: as last saved.
        confirmation: what the latest grant has confirmed.
        ends: how the last few grants ended, newest first, as in "7 released;6 expired;".
        ttl: seconds that it lasts from its grant or latest renewal; 0 = granted before that was kept.
    """

    token: int = 0
    key: str = ""
    holder: str = ""
    state: str = RELEASED
    expires_at: float = 0.0
    acquired: float = 0.0
    renewals: int = 0
    is_revoked: bool = False
    cursor: str | None = None
    version: int = 0
    confirmation: str | None = None
    ends: str = ""
    ttl: float = 0.0


def acquire(row: LeaseRow | None, request: Request, now: float, wall: float) -> tuple[LeaseRow, Grant | Busy]:
    """Return the record after a request, and the answer; a record that is returned as it was need not be written.

    Raises:
        LockLost: this very request was granted, and given back since.
    """
    row = row or LeaseRow()
    ttl = request.ttl.total_seconds()
    if row.token and row.key == request.key:
        if row.state == HELD and now < row.expires_at and not row.is_revoked:
            row = replace(row, expires_at=max(row.expires_at, now + ttl), ttl=ttl)
            return row, _grant(row, request)
        if row.state != HELD or row.is_revoked:
            raise LockLost(f"lease {request.name}: this request was granted and has ended; make a new one")
    if (busy := _busy(row, now)) is not None:
        return row, busy
    ended = f"{row.token} {RELEASED if row.state == RELEASED else 'expired'}" if row.token else ""
    row = LeaseRow(
        token=row.token + 1,
        key=request.key,
        holder=request.holder,
        state=HELD,
        expires_at=now + ttl,
        acquired=wall,
        cursor=row.cursor,
        version=row.version,
        ends=remembered(row.ends, ended),
        ttl=ttl,
    )
    return row, _grant(row, request)


def withdraw(row: LeaseRow, key: str, now: float) -> LeaseRow:
    """Release what a request was granted, if it has it still."""
    return replace(row, state=RELEASED, expires_at=now) if row.key == key and row.state == HELD else row


def renew(name: str, row: LeaseRow | None, token: int, ttl: float, now: float) -> LeaseRow:
    """Extend it."""
    row = _ours(name, row, token, now)
    if row.is_revoked:
        raise LockLost(f"lease {name} was revoked: it may not be renewed under token {token}")
    return replace(row, expires_at=now + ttl, renewals=row.renewals + 1, ttl=ttl)


def release(name: str, row: LeaseRow | None, token: int, now: float) -> LeaseRow:
    """Give it back; the same again changes nothing (S5)."""
    if row is not None and row.token == token:
        if row.state == RELEASED:
            return row
        if row.state == CONFIRMED or now < row.expires_at:
            return replace(row, state=RELEASED, expires_at=now, confirmation=None)
    elif row is not None and was_released(row.ends, token):
        return row
    raise _stale(name, row, token)


def confirm(name: str, row: LeaseRow | None, token: int, value: str, now: float) -> tuple[LeaseRow, Confirmation]:
    """Take it for good; the same again is answered alike, another value is refused."""
    if row is not None and row.token == token and row.state == CONFIRMED:
        if row.confirmation != value:
            raise ConfirmationDiffers(f"lease {name}: token {token} has confirmed another value; nothing was changed")
        return row, Confirmation(token=token, value=value)
    row = _ours(name, row, token, now)
    if row.is_revoked:
        raise LockLost(f"lease {name} was revoked: it may not be confirmed under token {token}")
    return replace(row, state=CONFIRMED, confirmation=value), Confirmation(token=token, value=value)


def save(name: str, row: LeaseRow | None, token: int, cursor: str, version: int, now: float) -> LeaseRow:
    """Save the cursor; the same again changes nothing, an older one is refused (S9)."""
    row = _ours(name, row, token, now)
    if row.version == version and row.cursor == cursor:
        return row
    if version <= row.version:
        raise LockLost(f"lease {name}: a later cursor was saved already ({row.version}); {version} came too late")
    return replace(row, cursor=cursor, version=version)


def revoke(row: LeaseRow, now: float) -> LeaseRow:
    """Keep its holder from renewing; a confirmed one is released."""
    if row.state == CONFIRMED:
        return replace(row, state=RELEASED, expires_at=now, confirmation=None)
    return replace(row, is_revoked=True) if row.state == HELD and now < row.expires_at else row


def record(name: str, row: LeaseRow, now: float) -> LeaseRecord:
    """Return it for people."""
    state = {RELEASED: LeaseState.RELEASED, CONFIRMED: LeaseState.CONFIRMED}.get(row.state)
    if state is None:
        state = LeaseState.ACTIVE if now < row.expires_at else LeaseState.EXPIRED
    return LeaseRecord(
        name=name,
        token=row.token,
        holder=row.holder,
        state=state,
        remaining=row.expires_at - now if row.state == HELD else None,
        renewals=row.renewals,
        acquired=row.acquired,
        cursor=row.cursor,
        is_revoked=row.is_revoked and state is LeaseState.ACTIVE,
        confirmation=row.confirmation,
        ttl=row.ttl or None,
        released=now - row.expires_at if row.state == RELEASED else None,  # a release ends it
    )


def remembered(ends: str, ended: str) -> str:
    """Return the list of ends with one more, as far back as it is kept."""
    if not ended:
        return ends
    return "".join(f"{end};" for end in [ended, *ends.split(";")][:_ENDS_REMEMBERED] if end)


def was_released(ends: str, token: int) -> bool:
    """Return whether a grant that others have followed is known to have been released."""
    return f"{token} {RELEASED}" in ends.split(";")


def _ours(name: str, row: LeaseRow | None, token: int, now: float) -> LeaseRow:
    if row is None or row.token != token or row.state != HELD or now >= row.expires_at:
        raise _stale(name, row, token)
    return row


def _stale(name: str, row: LeaseRow | None, token: int) -> LockLost:
    if row is None:
        return LockLost(f"there is no lease {name}")
    why = f"token {row.token} was granted since" if row.token != token else "it expired, or was released or confirmed"
    return LockLost(f"lease {name} is no longer held under token {token}: {why}")


def _busy(row: LeaseRow, now: float) -> Busy | None:
    if row.state == CONFIRMED:
        return Busy(holder=row.holder, token=row.token, remaining=None, why="confirmed")
    if row.state == RELEASED or now >= row.expires_at:
        return None
    return Busy(holder=row.holder, token=row.token, remaining=row.expires_at - now, why="held")


def _grant(row: LeaseRow, request: Request) -> Grant:
    return Grant(name=request.name, token=row.token, key=row.key, cursor=row.cursor, version=row.version)
