"""Named leases on blobs with answers that are lost at the wire: every request of every verb, one after the other (S4).

Whatever was lost, the same call again is answered as if it came first: one grant, one token, one cursor. And the
service itself refuses whoever is stale.
"""

import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any

import pytest

from jobq.errors import AccessDenied, BackendUnavailable, ConfigurationError, LockLost, SettlementUnknown, StoreUnusable
from jobq.lease.store import Grant, LeaseState, LeaseStore, Request
from jobq.settings import Settings
from jobq.task import new_id
from jobq_azure import blobs
from jobq_azure.storage.account import Account
from jobq_azure.storage.backend import StorageQueueBackend
from tests.azure.emulator import ACCOUNT, KEY, Azurite, connection_string
from tests.support.http_proxy import HttpProxy, Strike

TTL = timedelta(seconds=15)
NAME = "nightly"


class Stage:
    """One queue's leases, through the proxy and not."""

    def __init__(self, azurite: Azurite, proxy: HttpProxy) -> None:
        self.proxy = proxy
        self.queue = f"q-{new_id()[-12:]}"
        self._through = connection_string(azurite.port, blob_port=proxy.port)
        self._behind = azurite.connection_string
        self.backend = self._made(self._through)
        self.other = self._made(self._behind)

    def _made(self, given: str) -> StorageQueueBackend:
        return StorageQueueBackend(Account(ACCOUNT, given, ""), self.queue, timedelta(seconds=1))

    @property
    def store(self) -> LeaseStore:
        return self.backend.leases

    @property
    def behind(self) -> LeaseStore:
        return self.other.leases

    def account(self) -> Account:
        return Account(ACCOUNT, self._behind, "")

    async def granted(self) -> Grant:
        answer = await self.store.acquire(request())
        assert isinstance(answer, Grant)
        return answer


@pytest.fixture
async def stage(azurite: Azurite) -> AsyncIterator[Stage]:
    async with AsyncExitStack() as stack:
        proxy = await stack.enter_async_context(HttpProxy(azurite.blob_port))
        made = Stage(azurite, proxy)
        await stack.enter_async_context(made.backend)
        await stack.enter_async_context(made.other)
        yield made


def request(holder: str = "a") -> Request:
    return Request(name=NAME, key=str(uuid.uuid4()), holder=holder, ttl=TTL)


async def insisted(stage: Stage, call: Callable[[], Awaitable[Any]], number: int, strike: Strike) -> tuple[Any, bool]:
    """Make a call whose request of this number is struck, and repeat it; return its answer and whether it was hit."""
    before = len(stage.proxy.seen())
    seen = iter(range(10_000))
    stage.proxy.strike(strike, matches=lambda _: next(seen) == number)
    for _ in range(5):
        try:
            answer = await call()
        except (SettlementUnknown, BackendUnavailable):
            continue
        stage.proxy._plans.clear()  # what it did not strike is not meant for what follows
        return answer, len(stage.proxy.seen()) - before > number
    raise AssertionError("it is never answered")


@pytest.mark.parametrize("strike", [Strike.LOSE_ANSWER, Strike.BREAK])
async def test_an_acquire_gets_one_token_whatever_is_lost(stage: Stage, strike: Strike) -> None:
    for number in range(12):
        again = request()
        answer, was_hit = await insisted(stage, lambda again=again: stage.store.acquire(again), number, strike)  # type: ignore[misc] # of this turn
        assert isinstance(answer, Grant)
        assert answer.token == number + 1, f"request {number} without an answer cost a token"
        await stage.store.save(answer, f"{number}", number + 1)
        await stage.store.release(NAME, answer.token)
        if not was_hit:
            break
    assert number >= 3, "an acquire has several requests"


@pytest.mark.parametrize("strike", [Strike.LOSE_ANSWER, Strike.BREAK])
@pytest.mark.parametrize("verb", ["renew", "save", "confirm", "release"])
async def test_a_verb_is_answered_alike_whatever_is_lost(stage: Stage, verb: str, strike: Strike) -> None:
    calls: dict[str, Callable[[Grant], Awaitable[Any]]] = {
        "renew": lambda grant: stage.store.renew(grant, TTL),
        "save": lambda grant: stage.store.save(grant, "the cursor", grant.version + 1),
        "confirm": lambda grant: stage.store.confirm(NAME, grant.token, "seat 5"),
        "release": lambda grant: stage.store.release(NAME, grant.token),
    }
    states = {"confirm": LeaseState.CONFIRMED, "release": LeaseState.RELEASED}
    for number in range(4):
        grant = await stage.granted()
        await insisted(stage, lambda grant=grant: calls[verb](grant), number, strike)  # type: ignore[misc] # as above
        record = await stage.behind.read(NAME)
        assert record is not None
        assert (record.token, record.state) == (grant.token, states.get(verb, LeaseState.ACTIVE))
        if verb == "save":
            assert record.cursor == "the cursor"
        await stage.store.release(NAME, grant.token)


async def test_a_stale_holder_is_refused_by_the_service(stage: Stage) -> None:
    """Its lease was given back behind it: what it has in memory is right but for that."""
    grant = await stage.granted()
    await stage.store.save(grant, "mine", 1)
    await stage.behind.release(NAME, grant.token)
    answer = await stage.behind.acquire(request("b"))
    assert isinstance(answer, Grant)
    before = len(stage.proxy.seen())
    with pytest.raises(LockLost):
        await stage.store.save(grant, "stale", 2)
    with pytest.raises(LockLost):
        await stage.store.renew(grant, TTL)
    assert len(stage.proxy.seen()) > before, "the service was asked"
    record = await stage.behind.read(NAME)
    assert record is not None
    assert (record.cursor, record.holder) == ("mine", "b")


async def test_a_blob_that_jobq_did_not_write_is_refused(stage: Stage) -> None:
    async with stage.account() as account:
        container = account.container("jobq-leases")
        await stage.granted()
        await container.upload_blob(f"{stage.queue}/other", b"not ours")
    with pytest.raises(StoreUnusable, match="is not one that jobq wrote"):
        await stage.store.read("other")


async def test_no_service_and_no_right_are_told(stage: Stage) -> None:
    await stage.proxy.refuse()
    with pytest.raises(BackendUnavailable):
        await stage.store.acquire(request())
    with pytest.raises(BackendUnavailable):
        await stage.store.read(NAME)
    await stage.proxy.heal()
    wrong = connection_string(1, key="d3Jvbmc=", blob_port=stage.proxy.port)
    async with StorageQueueBackend(Account(ACCOUNT, wrong, ""), "q-1", timedelta(seconds=1)) as backend:
        with pytest.raises(AccessDenied) as caught:
            await backend.leases.acquire(request())
    assert "Storage Blob Data Contributor" in caught.value.__notes__[0]
    assert KEY not in str(caught.value)


async def test_blobs_are_listed_page_by_page_and_from_a_saved_marker(stage: Stage, azurite: Azurite) -> None:
    container_name = stage.queue
    names = [f"scans/{number:03}" for number in range(25)]
    async with stage.account() as account:
        container = account.container(container_name)
        await container.create_container()
        for number, name in enumerate([*names, "other"]):
            await container.upload_blob(name, b"x" * number)
    settings = Settings(connection_string=azurite.connection_string)
    fetch = blobs(f"{ACCOUNT}/{container_name}/scans/", settings)
    found: list[str] = []
    after: Any = None
    for _ in range(10):
        page = await fetch(after, 10)
        found += [blob["name"] for blob in page.items]
        after = page.after
        if page.is_last:
            break
    assert found == names
    assert page.items[-1]["size"] == "24"
    with pytest.raises(ConfigurationError, match="there is no container"):
        await blobs(f"{ACCOUNT}/missing", settings)(None, 10)


async def test_an_account_without_blobs_says_what_is_missing(azurite: Azurite) -> None:
    without = connection_string(azurite.port)
    async with StorageQueueBackend(Account(ACCOUNT, without, ""), "q-1", timedelta(seconds=1)) as backend:
        for call in (backend.leases.acquire(request()), backend.leases.list()):
            with pytest.raises(ConfigurationError, match="add the BlobEndpoint"):
                await call
