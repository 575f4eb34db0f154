"""The answer of each request of each verb is lost: unknown is told as unknown, and a repeat is exact (S5, S8).

A verb is called as often as it sends requests, and each time another one is struck.
"""

import asyncio
import itertools
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import pytest

from jobq.backend import Backend, Delivery
from jobq.batch_plan import Plan
from jobq.batches import BatchState, batches_of
from jobq.errors import AnswerLost, BackendUnavailable, LockLost, PushUnknown, SettlementUnknown
from jobq.journal.store import journal_of
from jobq.lease.store import Grant, Request, store_of
from jobq.pausing import Pausable, Pause
from jobq.server.error_responses import refused_for
from jobq.settlement import Complete, MoveToDeadLetters, Release, Requeue
from tests.backends.places import DONE, NOW, tasks
from tests.backends.ways import Way, to_postgres, to_service, to_storage
from tests.service.server import HttpServer, running

pytestmark = [pytest.mark.check, pytest.mark.timeout(180)]

LEASE: Final = timedelta(seconds=30)
_MOST_REQUESTS: Final = 12  # of a verb; more come from what goes on in the background


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpServer]:
    folder = Path(tmp_path_factory.mktemp("service"))
    with running(f"sqlite://{folder}/jobs.db/demo", folder) as made:
        yield made


@pytest.fixture(params=["postgres", "http", "storage"])
async def way(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Way]:
    """A queue of one's own, and the way to it."""
    if request.param == "postgres":
        reached = to_postgres(request.getfixturevalue("postgres"))
    elif request.param == "http":
        reached = to_service(request.getfixturevalue("server"))
    else:
        reached = to_storage(request.getfixturevalue("azurite"), tmp_path)
    async with reached as made:
        yield made


@pytest.fixture(params=["lose_answer", "break"])
def lost(request: pytest.FixtureRequest) -> str:
    """What befalls the request: it was done and not answered, or it was neither."""
    return str(request.param)


async def _each(round_: Callable[[int], Awaitable[bool]], tries: int = 1) -> None:
    """Do a round for each request of a verb, in which that one is struck, and one in which none is.

    Args:
        round_: strikes that request, and returns whether there was one.
        tries: how often, where a verb does not send as many each time.
    """
    await round_(0)  # so that its connections are open, and its statements known
    for number in range(1, _MOST_REQUESTS):
        struck = [await round_(number) for _ in range(tries)]
        if not any(struck):
            break
    assert number > 1, "it has sent nothing"


@pytest.mark.parametrize("count", [1, 250])  # one statement; COPY
async def test_a_push(way: Way, lost: str, count: int) -> None:
    """S8: PushUnknown names what may be queued, BackendUnavailable says that nothing is; a repeat adds nothing."""
    capabilities = way.near.capabilities
    if count > 1 and not capabilities.deduplicates:
        count = 3  # each is a request, and a second or two

    async def round_(number: int) -> bool:
        pushed = tasks(count, f"p{number}")
        ids = [task.id for task in pushed]
        struck, error = await way.struck(lost, number, way.far.push(pushed))
        assert error is None or isinstance(error, (PushUnknown, BackendUnavailable)), error
        queued = {each.id for each in await way.near.peek(300 if capabilities.max_peek is None else 32)}
        if error is None:
            assert queued == set(ids)
        elif isinstance(error, PushUnknown):
            assert queued <= set(error.ids) <= set(ids), "what may be queued is named"
        else:
            assert queued == set(), "nothing of it is said to be queued"
        if capabilities.idempotent_push:
            assert await way.far.push(pushed) == ids
            assert (await way.near.stats()).visible == count
        await way.near.clear()
        return struck

    await _each(round_)


_SETTLEMENTS: dict[str, tuple[Callable[[Delivery], Awaitable[object]], int, int]] = {
    # what is called, how many tasks and dead letters there are then
    "complete": (lambda held: held.settle(Complete(DONE)), 0, 0),
    "requeue": (lambda held: held.settle(Requeue(held.task.requeued(failures=1).counters, timedelta(hours=1))), 1, 0),
    "release": (lambda held: held.settle(Release()), 1, 0),
    "dead_letter": (
        lambda held: held.settle(MoveToDeadLetters("failures", "with a NUL \0 and half a pair \ud800")), 0, 1,
    ),
    "renew": (lambda held: held.renew(LEASE), 1, 0),
    "checkpoint": (lambda held: held.checkpoint("half"), 1, 0),
}  # fmt: skip


@pytest.mark.parametrize("verb", _SETTLEMENTS)
async def test_a_verb_of_a_delivery(way: Way, lost: str, verb: str) -> None:
    """S5: never told as done, nor as not done, what may be either; 1.3 rule 4: nothing below us sends it again.

    Where the service knows a receipt again, the same is answered, with one effect in all. Else, after what was done and
    not answered, the receipt may be stale (1.3 rule 9), and the task is not lost.
    """
    call, unfinished, dead = _SETTLEMENTS[verb]
    exact = way.near.capabilities.idempotent_settle

    unseen = False

    async def round_(number: int) -> bool:
        nonlocal unseen
        await way.near.push(tasks(1, f"{verb}-{number}"))
        (held,) = await way.far.receive(1, LEASE, timedelta(seconds=5))
        struck, error = await way.struck(lost, number, call(held))
        assert struck == (error is not None), "somebody has repeated it"
        possible = [(unfinished, dead)]
        if error is not None:
            assert isinstance(error, (SettlementUnknown, BackendUnavailable)), error
            unseen |= (await way.near.stats()).leased == 0
            try:
                await call(held)
            except LockLost:
                assert lost == "lose_answer", "it was not done, so the receipt is good"
                assert not exact
                possible.append((1, 0))
        if exact:
            before = await way.near.stats()
            await call(held)
            assert await way.near.stats() == before
        seen = (await way.near.stats()).unfinished, len(await way.near.dead_letters(10))
        assert seen in possible, f"request {number}"
        await _emptied(way.near, held)
        return struck

    await _each(round_)
    if exact and verb not in ("renew", "checkpoint"):
        assert unseen == (lost == "lose_answer"), "it was done and not answered"


async def _emptied(near: Backend, held: Delivery) -> None:
    await near.clear()
    await near.purge_dead([held.id])
    if (await near.stats()).unfinished:
        await held.settle(Complete(DONE))


async def test_a_claim(way: Way, lost: str) -> None:
    """S1, S7: what was claimed for an answer that never came is handed out again, at no price where that is known."""
    exact = way.near.capabilities.idempotent_settle
    lease = LEASE if exact else timedelta(seconds=1)

    unseen = False
    names = itertools.count(1)

    async def round_(number: int) -> bool:
        nonlocal unseen
        ids = await way.near.push(tasks(3, f"c{next(names)}"))
        found: list[Delivery] = []

        async def claim() -> None:
            found.extend(await way.far.receive(3, lease, NOW))

        struck, error = await way.struck(lost, number, claim())
        assert error is None or isinstance(error, BackendUnavailable), error
        assert error is None or not found
        unseen |= error is not None and (await way.near.stats()).visible != 3
        while len(found) < 3:
            more = await way.far.receive(1, LEASE, timedelta(seconds=10))
            assert more, "what was claimed is lost"
            found += more
        assert sorted(each.id for each in found) == sorted(ids), "each is handed out once"
        assert {each.deliveries for each in found} <= ({1} if exact else {1, 2})
        for each in found:
            await each.settle(Complete(DONE))
        return struck

    await _each(round_, tries=3)
    if exact:
        assert unseen == (lost == "lose_answer"), "a claim was done and not answered"


@pytest.mark.parametrize("way", ["postgres", "http"], indirect=True)
async def test_a_claim_that_nobody_asks_for_again(way: Way) -> None:
    """S1: it comes back when its lease has run out, as any other."""
    for number in range(1, _MOST_REQUESTS):
        await way.near.push(tasks(2))
        await way.far.receive(1, LEASE, NOW)  # so that its connection is open
        _, error = await way.struck("lose_answer", number, way.far.receive(1, timedelta(seconds=1), NOW))
        if error is not None and (await way.near.stats()).leased == 2:
            break
        await way.near.clear()
    (found,) = await way.near.receive(1, LEASE, timedelta(seconds=10))
    assert found.deliveries == 2


@pytest.mark.parametrize("way", ["postgres", "http"], indirect=True)
async def test_a_black_hole(way: Way) -> None:
    """1.3 rule 4: it holds a renewal up no longer than one attempt; the next goes over a new connection."""
    await way.near.push(tasks(1))
    (held,) = await way.far.receive(1, timedelta(seconds=10), NOW)
    await held.renew(timedelta(seconds=10))
    began = time.monotonic()
    _, error = await way.struck("hang", 1, held.renew(LEASE))
    assert isinstance(error, SettlementUnknown)
    assert time.monotonic() - began < 4
    await held.renew(LEASE)
    await held.settle(Complete(DONE))


@pytest.mark.parametrize("way", ["postgres", "http"], indirect=True)
async def test_named_leases(way: Way, lost: str) -> None:
    """S4: whether it took effect or not, the repetition is answered as if it came first."""
    leases = store_of(way.far)

    async def twice(number: int, call: Callable[[], Awaitable[Any]]) -> tuple[bool, Any]:
        struck, error = await way.struck(lost, number, call())
        assert error is None or isinstance(error, (SettlementUnknown, BackendUnavailable)), error
        return struck, await call()

    async def round_(number: int) -> bool:
        name = f"l-{number}"
        asked = Request(name=name, key=str(uuid.uuid4()), holder="me", ttl=LEASE)
        any_struck, grant = await twice(number, lambda: leases.acquire(asked))
        assert isinstance(grant, Grant)
        assert grant.token == 1
        for call in (
            lambda: leases.renew(grant, LEASE),
            lambda: leases.save(grant, "half", 1),
            lambda: leases.confirm(name, 1, "x"),
            lambda: leases.release(name, 1),
        ):
            struck, _ = await twice(number, call)
            any_struck |= struck
        found = await store_of(way.near).read(name)
        assert found is not None
        assert (found.token, found.cursor) == (1, "half")
        return any_struck

    await _each(round_)


async def _waiting(near: Backend, name: str) -> None:
    await near.push(tasks(2, name))


async def _dead(near: Backend, name: str) -> None:
    await _waiting(near, name)
    for held in await near.receive(2, LEASE, NOW):
        await held.settle(MoveToDeadLetters("failures", ""))


async def _batch(near: Backend, name: str) -> None:
    await batches_of(near).begin(name, Plan())
    await near.push(tasks(2, name, batch=name))


async def _sealed(near: Backend, name: str) -> None:
    await _batch(near, name)
    await batches_of(near).seal(name)


def _pausable(backend: Backend) -> Pausable:
    assert isinstance(backend, Pausable)
    return backend


def _ids(name: str) -> list[str]:
    return [task.id for task in tasks(2, name)]


Step = Callable[[Backend, str], Awaitable[object]]
_OPERATIONS: dict[str, tuple[Step, Step]] = {
    "clear": (_waiting, lambda far, _: far.clear()),
    "redrive": (_dead, lambda far, name: far.redrive(_ids(name))),
    "purge": (_dead, lambda far, name: far.purge_dead(_ids(name))),
    "pause": (_waiting, lambda far, _: _pausable(far).pause(Pause(at=1.0, by="tests"))),
    "cancel": (_waiting, lambda far, name: journal_of(far).cancel(_ids(name))),
    "begin": (_waiting, lambda far, name: batches_of(far).begin(name, Plan())),
    "seal": (_batch, lambda far, name: batches_of(far).seal(name)),
    "reopen": (_sealed, lambda far, name: batches_of(far).reopen(name)),
    "cancel a batch": (_sealed, lambda far, name: batches_of(far).cancel(name)),
}


@pytest.mark.parametrize("verb", _OPERATIONS)
@pytest.mark.parametrize("way", ["postgres", "http"], indirect=True)
async def test_a_verb_of_an_operator(way: Way, lost: str, verb: str) -> None:
    """S5: nobody claims that nothing was changed where that is not known; a repetition is safe."""
    prepare, call = _OPERATIONS[verb]
    wanted = list[object]()

    async def seen(name: str) -> tuple[object, ...]:
        found = [each for each in await batches_of(way.near).list("", 100) if each.name == name]
        if any(each.is_canceled and each.state is BatchState.SEALED for each in found):
            await asyncio.sleep(0.01)
            return await seen(name)  # its end is found by who looks next
        stats = await way.near.stats()
        states = [(each.state, each.is_canceled) for each in found]
        return stats.visible, stats.dead, stats.paused is None, states

    async def round_(number: int) -> bool:
        name = f"r{number}"
        await prepare(way.near, name)
        before = await seen(name)
        struck, error = await way.struck(lost, number, call(way.far, name))
        assert error is None or isinstance(error, BackendUnavailable), error
        if error is not None:
            assert isinstance(error, AnswerLost) or await seen(name) == before, f"request {number}: {error}"
            await call(way.far, name)
        if isinstance(error, AnswerLost):
            refusal = refused_for(error)
            assert (refusal.status, refusal.code) == (504, "unknown"), "a service says no more than that"
            assert "nothing was changed" not in refusal.message
        wanted.append(await seen(name))
        assert wanted[0] == wanted[-1] != before, f"request {number}"
        await way.near.clear()
        await way.near.purge_dead(_ids(name))
        await _pausable(way.near).resume()
        return struck

    await _each(round_)
