"""A store of named leases whose answers get lost: scripted for the next calls of a verb, or standing."""

import asyncio
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import TypeVar, cast

from jobq.errors import BackendUnavailable, SettlementUnknown
from jobq.lease.store import Busy, Confirmation, Grant, LeaseLimits, LeaseRecord, LeaseStore, Request

T = TypeVar("T")


class FaultyStore:
    """Passes calls on, or not.

    Faults: "refuse" (not done), "lose" (done, and the answer lost), "lose_before" (not done, and nobody knows), "hang"
    (not done, no answer), "hang_after" (done, no answer).
    """

    def __init__(self, store: LeaseStore) -> None:
        self.store = store
        self.next: dict[str, deque[str]] = {}
        self.always: dict[str, str] = {}
        self.calls: Counter[str] = Counter()
        self.keys: list[str] = []
        self.begun: dict[str, asyncio.Event] = {}

    def strike(self, verb: str, *faults: str) -> None:
        self.next.setdefault(verb, deque()).extend(faults)

    @property
    def limits(self) -> LeaseLimits:
        return self.store.limits

    async def acquire(self, request: Request) -> Grant | Busy:
        self.keys.append(request.key)
        return await self._do("acquire", lambda: self.store.acquire(request))

    async def withdraw(self, name: str, key: str) -> None:
        await self._do("withdraw", lambda: self.store.withdraw(name, key))

    async def renew(self, grant: Grant, ttl: timedelta) -> None:
        await self._do("renew", lambda: self.store.renew(grant, ttl))

    async def release(self, name: str, token: int) -> None:
        await self._do("release", lambda: self.store.release(name, token))

    async def confirm(self, name: str, token: int, value: str) -> Confirmation:
        return await self._do("confirm", lambda: self.store.confirm(name, token, value))

    async def save(self, grant: Grant, cursor: str, version: int) -> None:
        await self._do("save", lambda: self.store.save(grant, cursor, version))

    async def revoke(self, name: str) -> LeaseRecord | None:
        return await self._do("revoke", lambda: self.store.revoke(name))

    async def read(self, name: str) -> LeaseRecord | None:
        return await self.store.read(name)

    async def list(self) -> "list[LeaseRecord]":
        return await self.store.list()

    async def _do(self, verb: str, call: Callable[[], Awaitable[T]]) -> T:
        self.calls[verb] += 1
        self.begun.setdefault(verb, asyncio.Event()).set()
        planned = self.next.get(verb)
        fault = planned.popleft() if planned else self.always.get(verb)
        if fault == "refuse":
            raise BackendUnavailable(f"{verb} refused")
        result = None if fault in {"hang", "lose_before"} else await call()
        if fault in {"lose", "lose_before"}:
            raise SettlementUnknown(f"the answer to {verb} was lost")
        if fault in {"hang", "hang_after"}:
            await asyncio.Event().wait()
        return cast("T", result)
