"""Named leases in PostgreSQL: one statement a write, which compares the token and asks the server's clock itself (S4).

Why a write changed nothing is found out afterwards, by reading the row and asking `jobq.lease.rules`: it may be the
repetition of one whose answer was lost, or stale.
"""

from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final

from jobq.errors import BackendUnavailable, SettlementUnknown
from jobq.lease import rules
from jobq.lease.rules import LeaseRow
from jobq.lease.store import Busy, Confirmation, Grant, LeaseLimits, LeaseRecord, Request
from jobq_postgres.errors import NoAnswer
from jobq_postgres.lane import Lane, Work

_LIMITS: Final = LeaseLimits(
    default_ttl=timedelta(seconds=60), min_ttl=timedelta(seconds=1), poll=timedelta(seconds=0.5)
)
_SECONDS: Final = 10.0  # a statement; the keeper gives up earlier
_RACES: Final = 3  # how often a row may change between a write that missed and the look at why

_AGAIN: Final = """
    UPDATE jobq.lease SET expires_at = greatest(expires_at, clock_timestamp() + $4), ttl = $4
    WHERE queue = $1 AND name = $2 AND request = $3 AND state = 'held' AND NOT is_revoked
      AND expires_at > clock_timestamp()
    RETURNING token, cursor, version
"""
_ACQUIRE: Final = """
    INSERT INTO jobq.lease AS l (
        queue, name, token, request, holder, state, expires_at, ttl, acquired_at)
    VALUES ($1, $2, 1, $3, $5, 'held', clock_timestamp() + $4, $4, clock_timestamp())
    ON CONFLICT (queue, name) DO UPDATE SET
        token = l.token + 1,
        request = excluded.request,
        holder = excluded.holder,
        state = 'held',
        expires_at = clock_timestamp() + $4,
        ttl = $4,
        acquired_at = clock_timestamp(),
        renewals = 0,
        is_revoked = false,
        confirmation = NULL,
        ends = array_to_string((string_to_array(
            l.token || CASE l.state WHEN 'released' THEN ' released;' ELSE ' expired;' END || l.ends, ';'))[1:16], ';')
    WHERE l.state = 'released' AND l.request <> excluded.request
       OR l.state = 'held' AND l.expires_at <= clock_timestamp()
    RETURNING token, cursor, version
"""
_OURS: Final = "queue = $1 AND name = $2 AND token = $3 AND state = 'held' AND expires_at > clock_timestamp()"
_RENEW: Final = f"""
    UPDATE jobq.lease SET expires_at = clock_timestamp() + $4, ttl = $4, renewals = renewals + 1
    WHERE {_OURS} AND NOT is_revoked
"""  # noqa: S608 - a constant of ours, every value is bound; as in the next
_SAVE: Final = f"UPDATE jobq.lease SET cursor = $4, version = $5 WHERE {_OURS} AND version < $5"  # noqa: S608
_CONFIRM: Final = f"UPDATE jobq.lease SET state = 'confirmed', confirmation = $4 WHERE {_OURS} AND NOT is_revoked"  # noqa: S608
_RELEASE: Final = """
    UPDATE jobq.lease SET state = 'released', expires_at = clock_timestamp(), confirmation = NULL
    WHERE queue = $1 AND name = $2 AND token = $3
      AND (state = 'confirmed' OR state = 'held' AND expires_at > clock_timestamp())
"""
_WITHDRAW: Final = """
    UPDATE jobq.lease SET state = 'released', expires_at = clock_timestamp()
    WHERE queue = $1 AND name = $2 AND request = $3 AND state = 'held'
"""
_REVOKE: Final = """
    UPDATE jobq.lease SET
        state = CASE state WHEN 'confirmed' THEN 'released' ELSE state END,
        expires_at = CASE state WHEN 'confirmed' THEN clock_timestamp() ELSE expires_at END,
        confirmation = NULL,
        is_revoked = (state = 'held')
    WHERE queue = $1 AND name = $2 AND (state = 'confirmed' OR state = 'held' AND expires_at > clock_timestamp())
"""
LEASE_COLUMNS: Final = """
    name, token, request, holder, state, extract(epoch FROM expires_at)::float8 AS expires_at,
           extract(epoch FROM acquired_at)::float8 AS acquired,
           renewals, is_revoked, cursor, version, confirmation, ends, extract(epoch FROM ttl)::float8 AS ttl,
           extract(epoch FROM clock_timestamp())::float8 AS now
"""
_READ: Final = f"SELECT {LEASE_COLUMNS} FROM jobq.lease WHERE queue = $1"  # noqa: S608 - as above
_READ_ONE: Final = f"{_READ} AND name = $2"
_READ_ALL: Final = f"{_READ} ORDER BY name"


class PostgresLeases:
    """The named leases of one queue.

    Args:
        lane: to the server, of their own: a renewal waits behind no push.
        queue: the queue's name; it need not exist.
    """

    def __init__(self, lane: Lane, queue: str) -> None:
        self._lane = lane
        self._queue = queue

    @property
    def limits(self) -> LeaseLimits:
        """What PostgreSQL can do: all of it."""
        return _LIMITS

    async def acquire(self, request: Request) -> Grant | Busy:
        """Take the name if it is free."""
        name, key = request.name, request.key

        async def work(connection: Any) -> Grant | Busy:
            for _ in range(_RACES):
                found = await connection.fetchrow(_AGAIN, self._queue, name, key, request.ttl)
                found = found or await connection.fetchrow(
                    _ACQUIRE, self._queue, name, key, request.ttl, request.holder
                )
                if found is not None:
                    token, cursor, version = found
                    return Grant(name=name, token=token, key=key, cursor=_text(cursor), version=version)
                row, now = await self._row(connection, name)
                answer = rules.acquire(row, request, now, 0.0)[1]
                if isinstance(answer, Busy):
                    return answer
            raise BackendUnavailable(f"lease {name}: it changes hands again and again; nothing was changed")

        answer: Grant | Busy = await self._do(work)
        return answer

    async def withdraw(self, name: str, key: str) -> None:
        """Release what this request was granted."""
        await self._do(lambda connection: connection.execute(_WITHDRAW, self._queue, name, key))

    async def renew(self, grant: Grant, ttl: timedelta) -> None:
        """Extend it."""
        seconds = ttl.total_seconds()
        await self._write(
            grant.name,
            _RENEW,
            (grant.token, ttl),
            lambda row, now: rules.renew(grant.name, row, grant.token, seconds, now),
            early=True,
        )

    async def release(self, name: str, token: int) -> None:
        """Give it back."""
        await self._write(name, _RELEASE, (token,), lambda row, now: rules.release(name, row, token, now))

    async def confirm(self, name: str, token: int, value: str) -> Confirmation:
        """Take it for good."""
        await self._write(
            name, _CONFIRM, (token, value.encode()), lambda row, now: rules.confirm(name, row, token, value, now)[0]
        )
        return Confirmation(token=token, value=value)

    async def save(self, grant: Grant, cursor: str, version: int) -> None:
        """Save the cursor."""
        await self._write(
            grant.name,
            _SAVE,
            (grant.token, cursor.encode(), version),
            lambda row, now: rules.save(grant.name, row, grant.token, cursor, version, now),
        )

    async def revoke(self, name: str) -> LeaseRecord | None:
        """Keep the holder from renewing."""
        await self._do(lambda connection: connection.execute(_REVOKE, self._queue, name))
        return await self.read(name)

    async def read(self, name: str) -> LeaseRecord | None:
        """Return one."""
        row, now = await self._look(lambda connection: self._row(connection, name))
        return None if row is None else rules.record(name, row, now)

    async def list(self) -> list[LeaseRecord]:
        """Return all, by name."""
        found = await self._look(lambda connection: connection.fetch(_READ_ALL, self._queue))
        # Sorted here: the database may have another opinion of the order of letters.
        records = [rules.record(row["name"], row_of(row), row["now"]) for row in found]
        return sorted(records, key=lambda record: record.name)

    async def _write(
        self,
        name: str,
        statement: str,
        values: tuple[Any, ...],
        rule: Callable[[LeaseRow | None, float], LeaseRow],
        *,
        early: bool = False,
    ) -> None:
        """Run a fenced statement; where it changed nothing, let the rule say what that means."""

        async def work(connection: Any) -> None:
            for _ in range(_RACES):
                if await connection.execute(statement, self._queue, name, *values) == "UPDATE 1":
                    return
                row, now = await self._row(connection, name)
                if rule(row, now) == row:  # raises where the token is stale
                    return  # done before: the answer was lost
            raise BackendUnavailable(f"lease {name}: it changes again and again; nothing was changed")

        await self._do(work, early=early)

    async def _row(self, connection: Any, name: str) -> tuple[LeaseRow | None, float]:
        found = await connection.fetchrow(_READ_ONE, self._queue, name)
        return (None, 0.0) if found is None else (row_of(found), found["now"])

    async def _do(self, work: Work[Any], *, early: bool = False) -> Any:
        """Run what may write; a lost answer is SettlementUnknown."""
        try:
            # Given up, it makes way for the next at once. What it may still do late changes nothing: tokens, versions.
            return await self._lane.submit(work, seconds=_SECONDS, early=early, gives_up=True)
        except NoAnswer as error:
            raise SettlementUnknown(str(error)) from None

    async def _look(self, work: Work[Any]) -> Any:
        try:
            return await self._lane.submit(work, seconds=_SECONDS)
        except NoAnswer as error:
            raise BackendUnavailable(str(error)) from None


def row_of(found: Any) -> LeaseRow:
    """Return the lease of a row of LEASE_COLUMNS."""
    return LeaseRow(
        token=found["token"],
        key=found["request"],
        holder=found["holder"],
        state=found["state"],
        expires_at=found["expires_at"],
        acquired=found["acquired"],
        renewals=found["renewals"],
        is_revoked=found["is_revoked"],
        cursor=_text(found["cursor"]),
        version=found["version"],
        confirmation=_text(found["confirmation"]),
        ends=found["ends"],
        ttl=found["ttl"],
    )


def _text(stored: bytes | None) -> str | None:
    return None if stored is None else stored.decode()
