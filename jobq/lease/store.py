"""The protocol that every store of named leases speaks, and the only part of `jobq.lease` that backends import (S10).

A named lease is one record: who holds a name, under which token, for how long by the server's clock, and how far the
work has come (the cursor). One verb is one request: one shot, no loops, no sleeping. Every write is one compare on the
token. Rules that all stores share stand in `jobq.lease.rules`.

What every verb may raise, beside what its own docstring names:
    BackendUnavailable: it did definitely not happen.
    SettlementUnknown: no one can say; the same call may be repeated, and is then answered as if it came first.
    LockLost: the token is stale; nothing was changed.
    QueueNotFound, AccessDenied, StoreUnusable: as they say.
"""

import re
from datetime import timedelta
from enum import StrEnum
from typing import Final, Protocol, runtime_checkable

from jobq.errors import ConfigurationError
from jobq.formats.lazy_dataclass import dataclass

_NAME: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._:-]{0,126}[A-Za-z0-9])?")


class LeaseState(StrEnum):
    """What a name is at the moment, by the server's clock."""

    ACTIVE = "active"  # held, and not expired
    EXPIRED = "expired"  # nobody holds it; its holder vanished, or let it go
    RELEASED = "released"  # nobody holds it; its last holder gave it back
    CONFIRMED = "confirmed"  # taken for good by the holder of its token, until that one releases it


@dataclass(frozen=True, kw_only=True)
class LeaseLimits:
    """What differs between stores.

    Attributes:
        default_ttl, min_ttl, max_ttl: how long a lease may last without a renewal; max_ttl None = no limit.
        poll: how often a waiting acquire looks, at most.
        counts_renewals: whether the store knows that a lease was renewed, and how much time is left.
        strict_expiry: an expired token is refused even before anyone else has taken the name.
        whole_seconds: the store takes no fractions.
    """

    default_ttl: timedelta
    min_ttl: timedelta
    max_ttl: timedelta | None = None
    poll: timedelta = timedelta(seconds=1)
    counts_renewals: bool = True
    strict_expiry: bool = True
    whole_seconds: bool = False


@dataclass(frozen=True, kw_only=True)
class Request:
    """One request for a name.

    Attributes:
        name: of the lease.
        key: made for this request alone (a UUID); the same key again is answered like the first time.
        holder: for display only.
        ttl: how long the lease lasts unless it is renewed.
    """

    name: str
    key: str
    holder: str
    ttl: timedelta


@dataclass(frozen=True, kw_only=True)
class Grant:
    """The name is ours.

    Attributes:
        name: of the lease.
        token: rises with every grant of this name, for ever (S3).
        key: of the request that was granted.
        cursor: the last one that was saved, by whichever holder (S9).
        version: of the cursor; 0 = none was ever saved.
    """

    name: str
    token: int
    key: str
    cursor: str | None
    version: int


@dataclass(frozen=True, kw_only=True)
class Busy:
    """The name is not to be had now.

    Attributes:
        holder: who has it, for display.
        token: of the present lease.
        remaining: seconds until it may be free unless it is renewed, by the server's clock; None = nobody knows.
        why: "held" or "confirmed".
    """

    holder: str
    token: int
    remaining: float | None
    why: str


@dataclass(frozen=True, kw_only=True)
class Confirmation:
    """What was confirmed, and under which token."""

    token: int
    value: str


@dataclass(frozen=True, kw_only=True)
class LeaseRecord:
    """A named lease as it stands, for people.

    Attributes:
        name, token, holder, cursor: as in `Grant` and `Request`, of the latest grant.
        state: by the server's clock.
        remaining: seconds until it expires, below 0 since it has; None = not active nor expired, or nobody knows.
        renewals: of the latest grant; None = the store does not count them.
        acquired: wall time of the latest grant, in seconds since the epoch.
        is_revoked: its holder may not renew it any more.
        confirmation: what its holder has confirmed.
        ttl: seconds from a renewal to its end; None = the store does not keep it.
        released: seconds since it was given back; None = it was not, or nobody knows.
    """

    name: str
    token: int
    holder: str
    state: LeaseState
    remaining: float | None
    renewals: int | None
    acquired: float
    cursor: str | None
    is_revoked: bool = False
    confirmation: str | None = None
    ttl: float | None = None
    released: float | None = None


@runtime_checkable
class LeaseStore(Protocol):
    """The named leases of one queue; usable while the backend that gave it is entered."""

    @property
    def limits(self) -> LeaseLimits:
        """What this store can and cannot do."""
        ...

    async def acquire(self, request: Request) -> Grant | Busy:
        """Take the name if it is free: never taken, released, or expired.

        The same request again, while its lease lasts, renews it and gets the same token: so a lost answer is repeated.
        """
        ...

    async def withdraw(self, name: str, key: str) -> None:
        """Release whatever this request was granted, for a caller that stopped waiting for the answer."""
        ...

    async def renew(self, grant: Grant, ttl: timedelta) -> None:
        """Let the lease end this long from now; LockLost once it has expired, was released, revoked or confirmed."""
        ...

    async def release(self, name: str, token: int) -> None:
        """Give the name back; again = the same answer, also when somebody else has taken it since."""
        ...

    async def confirm(self, name: str, token: int, value: str) -> Confirmation:
        """Take the name for good; again = the same answer.

        Raises:
            ConfirmationDiffers: this token has confirmed another value.
        """
        ...

    async def save(self, grant: Grant, cursor: str, version: int) -> None:
        """Save the cursor durably (S9), under a version above the last one; again = the same answer.

        A save that arrives after a later one is refused with LockLost.
        """
        ...

    async def revoke(self, name: str) -> LeaseRecord | None:
        """Keep the holder from renewing: the name is free once its lease has run out. Return it as it stands then.

        A confirmed name is released at once. None = there is no such lease.
        """
        ...

    async def read(self, name: str) -> LeaseRecord | None:
        """Return one lease; None = nobody ever had this name."""
        ...

    async def list(self) -> "list[LeaseRecord]":
        """Return all, by name."""
        ...


@runtime_checkable
class KeepsLeases(Protocol):
    """A backend that declares `named_leases`."""

    @property
    def leases(self) -> LeaseStore:
        """The named leases of its queue."""
        ...


def store_of(backend: object) -> LeaseStore:
    """Return where a backend keeps named leases.

    Raises:
        ConfigurationError: it keeps none; says which do.
    """
    capabilities = getattr(backend, "capabilities", None)
    if not getattr(capabilities, "named_leases", False) or not isinstance(backend, KeepsLeases):
        raise ConfigurationError(
            f"the service of queue {getattr(backend, 'name', '?')!r} keeps no named leases; name a queue of one that"
            " does: embedded or SQLite (one machine), Azure Storage (ACCOUNT/QUEUE), PostgreSQL"
        )
    return backend.leases


def checked_name(name: str) -> str:
    """Return the name of a lease; raises ConfigurationError for one that not every store takes."""
    if not _NAME.fullmatch(name):
        raise ConfigurationError(
            f"{name[:200]!a} is no name for a lease: 1 to 128 letters, digits, dots, dashes, colons and underscores,"
            " beginning and ending with a letter or digit"
        )
    return name
