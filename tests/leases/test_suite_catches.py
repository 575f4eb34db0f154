"""The suite of named leases can fail: each broken store below is caught by at least one case."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest

from jobq.errors import JobqError, LockLost
from jobq.lease import rules
from jobq.lease.store import Busy, Confirmation, Grant, Request
from jobq.testing import named_leases
from jobq.testing.clock import VirtualClock
from jobq_memory import MemoryBackend, Router
from jobq_memory.leases import MemoryLeases


class _Mutant(MemoryLeases):
    def _put(self, name: str, **changes: object) -> None:
        row = self._row(name)
        if row is not None:
            self._book.rows[self._queue, name] = replace(row, **changes)  # type: ignore[arg-type] # fields of Row


class TokensAreUsedAgain(_Mutant):
    async def release(self, name: str, token: int) -> None:
        await super().release(name, token)
        self._put(name, token=token - 1)


class RepeatedRequestsAreGrantedAnew(_Mutant):
    async def acquire(self, request: Request) -> Grant | Busy:
        row = self._row(request.name)
        if row is not None and row.key == request.key:
            self._put(request.name, state="released", key="")
        return await super().acquire(request)


class TwoHolders(_Mutant):
    async def acquire(self, request: Request) -> Grant | Busy:
        self._put(request.name, state="released", key="")
        return await super().acquire(request)


class ExpiredIsHeld(_Mutant):
    async def acquire(self, request: Request) -> Grant | Busy:
        row = self._row(request.name)
        if row is not None and row.state == rules.HELD:
            return Busy(holder=row.holder, token=row.token, remaining=1.0, why="held")
        return await super().acquire(request)


class RenewalsAreNotFenced(_Mutant):
    async def renew(self, grant: Grant, ttl: timedelta) -> None:
        self._put(grant.name, expires_at=self._now() + ttl.total_seconds())


class SavesAreNotFenced(_Mutant):
    async def save(self, grant: Grant, cursor: str, version: int) -> None:
        self._put(grant.name, cursor=cursor, version=version)


class OldSavesAreAccepted(_Mutant):
    async def save(self, grant: Grant, cursor: str, version: int) -> None:
        self._put(grant.name, version=0)
        await super().save(grant, cursor, version)


class CursorsDieWithTheirHolder(_Mutant):
    async def acquire(self, request: Request) -> Grant | Busy:
        answer = await super().acquire(request)
        if isinstance(answer, Busy):
            return answer
        self._put(request.name, cursor=None, version=0)
        return replace(answer, cursor=None, version=0)


class RepeatedReleasesAreRefused(_Mutant):
    async def release(self, name: str, token: int) -> None:
        row = self._row(name)
        if row is None or row.state == rules.RELEASED or row.token != token:
            raise LockLost("stale")
        await super().release(name, token)


class AnyoneReleases(_Mutant):
    async def release(self, name: str, token: int) -> None:
        self._put(name, state="released")


class ConfirmationsExpire(_Mutant):
    async def confirm(self, name: str, token: int, value: str) -> Confirmation:
        answer = await super().confirm(name, token, value)
        self._put(name, state="held")
        return answer


class ConfirmationsMayChange(_Mutant):
    async def confirm(self, name: str, token: int, value: str) -> Confirmation:
        row = self._row(name)
        if row is not None and row.state == rules.CONFIRMED:
            self._put(name, confirmation=value)
        return await super().confirm(name, token, value)


class ExpiredMayConfirm(_Mutant):
    async def confirm(self, name: str, token: int, value: str) -> Confirmation:
        row = self._row(name)
        if row is not None and row.token == token and row.state == rules.HELD:
            self._put(name, expires_at=self._now() + 1)
        return await super().confirm(name, token, value)


class RevokedIsFreeAtOnce(_Mutant):
    async def acquire(self, request: Request) -> Grant | Busy:
        row = self._row(request.name)
        if row is not None and row.is_revoked:
            self._put(request.name, state="released")
        return await super().acquire(request)


class RevokedMayRenew(_Mutant):
    async def renew(self, grant: Grant, ttl: timedelta) -> None:
        self._put(grant.name, is_revoked=False)
        await super().renew(grant, ttl)


class StrangersWithdraw(_Mutant):
    async def withdraw(self, name: str, key: str) -> None:
        self._put(name, state="released")


class RenewalsAreNotCounted(_Mutant):
    async def renew(self, grant: Grant, ttl: timedelta) -> None:
        await super().renew(grant, ttl)
        self._put(grant.name, renewals=0)


MUTANTS: list[Callable[..., _Mutant]] = list(_Mutant.__subclasses__())


class _Backend(MemoryBackend):
    made: Callable[..., _Mutant]

    @property
    def leases(self) -> MemoryLeases:
        return type(self).made(self._router.leases, self.name)


def harness_of(mutant: Callable[..., _Mutant]) -> named_leases.LeaseHarness:
    clock = VirtualClock()
    router = Router(clock)
    kind: type[_Backend] = type("Broken", (_Backend,), {"made": mutant})
    return named_leases.LeaseHarness(connect=lambda queue: kind(router, queue), clock=clock)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
async def test_a_broken_store_is_caught(mutant: Callable[..., _Mutant]) -> None:
    caught = []
    for case in named_leases.cases():
        harness = harness_of(mutant)
        try:
            await named_leases.run_case(case, harness)
        except (AssertionError, JobqError):
            caught.append(case.name)
    assert caught
    assert len(caught) < len(named_leases.cases()), "broken in one way, not in all"
