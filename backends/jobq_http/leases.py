"""The named leases of a queue of a service (S10); the service keeps the rules."""

import time
from builtins import list as List  # noqa: N812 - the protocol has a verb of that name
from datetime import timedelta
from typing import Any, Final
from urllib.parse import quote

from jobq.errors import LockLost, SettlementUnknown
from jobq.lease.store import Busy, Confirmation, Grant, LeaseLimits, LeaseRecord, LeaseState, Request
from jobq_http.connection import Busy409, HttpConnection, NoAnswer, unavailable

_LIMITS: Final = LeaseLimits(
    default_ttl=timedelta(seconds=60),
    min_ttl=timedelta(seconds=1),
    max_ttl=timedelta(days=7),
    poll=timedelta(seconds=1),
)
_SECONDS: Final = 5.0
_LIST_SECONDS: Final = 30.0
_PAGE: Final = 1000


class HttpLeases:
    """The named leases of one queue.

    Args:
        connection: to the service.
        queue: the queue's name.
    """

    def __init__(self, connection: HttpConnection, queue: str) -> None:
        self._connection = connection
        self._query = {"queue": queue}

    @property
    def limits(self) -> LeaseLimits:
        """What an SQL store can do."""
        return _LIMITS

    async def acquire(self, request: Request) -> Grant | Busy:
        """Take the name if it is free; the same request again is answered alike."""
        body = {
            "resource": request.name,
            "key": request.key,
            "holder": request.holder,
            "ttl": request.ttl.total_seconds(),
        }
        try:
            answer = await self._do("POST", "", body)
        except Busy409 as busy:
            error = busy.error
            return Busy(holder=error["holder"], token=error["token"], remaining=error["remaining"], why=error["why"])
        return Grant(
            name=answer["resource"],
            token=answer["token"],
            key=answer["key"],
            cursor=answer["cursor"],
            version=answer["version"],
        )

    async def withdraw(self, name: str, key: str) -> None:
        """Release what this request was granted."""
        await self._do("POST", "/withdraw", {"resource": name, "key": key})

    async def renew(self, grant: Grant, ttl: timedelta) -> None:
        """Extend it."""
        body = {"resource": grant.name, "token": grant.token, "ttl": ttl.total_seconds()}
        await self._do("PUT", "/renew", body)

    async def release(self, name: str, token: int) -> None:
        """Give it back."""
        await self._do("POST", "/release", {"resource": name, "token": token})

    async def confirm(self, name: str, token: int, value: str) -> Confirmation:
        """Take it for good."""
        answer = await self._do("PUT", "/confirm", {"resource": name, "token": token, "value": value})
        return Confirmation(token=answer["token"], value=answer["value"])

    async def save(self, grant: Grant, cursor: str, version: int) -> None:
        """Save the cursor."""
        body = {"resource": grant.name, "token": grant.token, "cursor": cursor, "version": version}
        await self._do("PUT", "/cursor", body)

    async def revoke(self, name: str) -> LeaseRecord | None:
        """Keep the holder from renewing."""
        try:
            return _record(await self._do("DELETE", f"/{quote(name, safe='')}", None))
        except LockLost:
            return None  # nobody ever had it

    async def read(self, name: str) -> LeaseRecord | None:
        """Return one."""
        found = await self._page(after="", resource=name)  # by a filter: a name may be that of a list
        return _record(found["leases"][0]) if found["leases"] else None

    async def list(self) -> List[LeaseRecord]:
        """Return all, by name."""
        found: List[LeaseRecord] = []
        after: str | None = ""
        while after is not None:
            page = await self._page(after=after)
            found += [_record(each) for each in page["leases"]]
            after = page["next"]
        return found

    async def _page(self, **query: str) -> Any:
        wanted = self._query | query | {"limit": str(_PAGE)}
        try:
            return await self._connection.request("GET", "/api/leases", query=wanted, seconds=_LIST_SECONDS)
        except NoAnswer as error:
            raise unavailable(error) from None

    async def _do(self, method: str, verb: str, body: object) -> Any:
        try:
            return await self._connection.request(
                method, f"/api/leases{verb}", body, query=self._query, seconds=_SECONDS
            )
        except NoAnswer as error:
            raise SettlementUnknown(str(error)) from None


def _record(fields: dict[str, Any]) -> LeaseRecord:
    now = time.time()
    return LeaseRecord(
        name=fields["resource"],
        token=fields["token"],
        holder=fields["holder"],
        state=LeaseState(fields["state"]),
        remaining=fields["remaining"],
        renewals=fields["renewals"],
        acquired=fields["created"],
        cursor=fields["cursor"],
        is_revoked=fields["revoked"],
        confirmation=fields["confirmation"],
        ttl=fields["ttl"],
        released=None if fields["released"] is None else now - fields["released"],
    )
