"""The conformance suite of named leases, entered like the queue's: does a store keep S3, S4, S9 and S10?

    @pytest.mark.parametrize("case", named_leases.cases(), ids=str)
    async def test_conforms(case): await named_leases.run_case(case, harness)

A case is skipped for what the store's `LeaseLimits` say it cannot do, never for its name.
"""

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

from jobq.backend import Backend
from jobq.errors import ConfirmationDiffers, LockLost
from jobq.lease.store import Busy, Grant, LeaseLimits, LeaseState, LeaseStore, Request, store_of
from jobq.task import new_id
from jobq.testing.clock import SteppedClock
from jobq.testing.harness import raises

NAME: Final = "nightly"
_MARGIN_SECONDS: Final = 1.0
_MANY: Final = 20


@dataclass(kw_only=True)
class LeaseHarness:
    """How the suite reaches a backend that keeps named leases.

    Attributes:
        connect: makes a new handle, not yet entered, onto the one store for a queue name.
        clock: the time that the store runs on; `VirtualClock` where it can be injected, else `RealTime`.
        case_timeout: real time after which a case has failed.
        creates: whether the queue has to be made before it can have leases.
        queue_name: makes a name that is fresh for each case.
    """

    connect: Callable[[str], Backend]
    clock: SteppedClock
    case_timeout: timedelta = timedelta(seconds=60)
    creates: bool = False
    queue_name: Callable[[], str] = field(default=lambda: f"q-{new_id()[-12:]}")


class LeaseBench:
    """One case's queue, and the steps that cases share."""

    store: LeaseStore

    def __init__(self, harness: LeaseHarness, stack: AsyncExitStack) -> None:
        self._harness = harness
        self._queue = harness.queue_name()
        self._stack = stack
        self.clock = harness.clock

    async def open(self) -> None:
        """Connect."""
        if self._harness.creates:
            await (await self._stack.enter_async_context(self._harness.connect(self._queue))).create()
        self.store = await self.another()
        self.ttl = max(self.store.limits.min_ttl, timedelta(seconds=2))

    async def another(self) -> LeaseStore:
        """Return the same leases through another handle."""
        return store_of(await self._stack.enter_async_context(self._harness.connect(self._queue)))

    def request(self, holder: str = "a", *, name: str = NAME) -> Request:
        """Return a new request."""
        return Request(name=name, key=str(uuid.uuid4()), holder=holder, ttl=self.ttl)

    async def granted(self, holder: str = "a") -> Grant:
        """Take the name, which must be free."""
        answer = await self.store.acquire(self.request(holder))
        assert isinstance(answer, Grant), f"a free name was refused: {answer}"
        return answer

    async def busy(self, store: LeaseStore | None = None) -> Busy:
        """Ask for the name, which must not be free."""
        answer = await (store or self.store).acquire(self.request("other"))
        assert isinstance(answer, Busy), f"a name that is taken was granted: {answer}"
        return answer

    async def expire(self) -> None:
        """Let a lease that was granted or renewed just now run out."""
        await self.clock.advance(self.ttl.total_seconds() + _MARGIN_SECONDS)

    async def state(self) -> LeaseState:
        """Return what the store says of the name."""
        record = await self.store.read(NAME)
        assert record is not None
        return record.state

    async def refused(self, stale: Grant, how: str) -> None:
        """Try every verb with a token that is stale: none may change anything (S4)."""
        before = await self._seen()
        verbs: dict[str, Callable[[], Awaitable[object]]] = {
            "renew": lambda: self.store.renew(stale, self.ttl),
            "save": lambda: self.store.save(stale, "stale", stale.version + 100),
            "confirm": lambda: self.store.confirm(NAME, stale.token, "stale"),
        }
        for verb, call in verbs.items():
            with raises(LockLost, f"{verb} {how}"):
                await call()
            assert await self._seen() == before, f"{verb} {how} has changed something"

    async def _seen(self) -> tuple[object, ...]:
        record = await self.store.read(NAME)
        assert record is not None
        return record.token, record.state, record.cursor, record.confirmation, record.holder


Check = Callable[[LeaseBench], Awaitable[None]]


@dataclass(frozen=True, kw_only=True)
class LeaseCase:
    """One case, and what of `LeaseLimits` it needs."""

    name: str
    needs: tuple[str, ...]
    check: Check

    def __str__(self) -> str:
        return self.name


_registered: Final[list[LeaseCase]] = []


def _case(*needs: str) -> Callable[[Check], Check]:
    def register(check: Check) -> Check:
        _registered.append(LeaseCase(name=check.__name__, needs=needs, check=check))
        return check

    return register


def cases(limits: LeaseLimits | None = None) -> list[LeaseCase]:
    """Return all cases, or those that apply to a store with these limits."""
    return [case for case in _registered if limits is None or not missing(case, limits)]


def missing(case: LeaseCase, limits: LeaseLimits) -> str:
    """Return the first thing that the case needs and the store cannot do; empty when it can all."""
    return next((need for need in case.needs if not getattr(limits, need)), "")


async def run_case(case: LeaseCase, harness: LeaseHarness) -> str:
    """Run one case on a fresh queue; raises AssertionError for a broken rule. Returns why it was skipped, or ""."""
    async with asyncio.timeout(harness.case_timeout.total_seconds()), AsyncExitStack() as stack:
        bench = LeaseBench(harness, stack)
        await bench.open()
        lacking = missing(case, bench.store.limits)
        if not lacking:
            await case.check(bench)
        return lacking


@_case()
async def tokens_rise_for_ever(bench: LeaseBench) -> None:
    """S3: with every grant, through a release and by another handle."""
    first = await bench.granted()
    await bench.store.release(NAME, first.token)
    second = await bench.granted("b")
    await bench.store.release(NAME, second.token)
    other = await bench.another()
    third = await other.acquire(bench.request("c"))
    assert isinstance(third, Grant)
    assert first.token < second.token < third.token


@_case()
async def one_holder(bench: LeaseBench) -> None:
    """S10: while it is held nobody else gets it, and everybody learns who has it."""
    grant = await bench.granted("first holder")
    busy = await bench.busy(await bench.another())
    assert (busy.holder, busy.token, busy.why) == ("first holder", grant.token, "held")
    assert busy.remaining is None or 0 < busy.remaining <= bench.ttl.total_seconds()
    assert await bench.state() is LeaseState.ACTIVE


@_case()
async def one_of_many_that_ask_at_once(bench: LeaseBench) -> None:
    """S10: of many requests at the same time one is granted."""
    stores = [await bench.another() for _ in range(4)]
    asked = [stores[number % 4].acquire(bench.request(f"{number}")) for number in range(_MANY)]
    answers = await asyncio.gather(*asked)
    assert sum(isinstance(answer, Grant) for answer in answers) == 1


@_case()
async def a_repeated_request_is_answered_alike(bench: LeaseBench) -> None:
    """A lost answer to an acquire is repeated: same token, no second grant."""
    request = bench.request()
    first, second = await bench.store.acquire(request), await (await bench.another()).acquire(request)
    assert isinstance(first, Grant)
    assert first == second


@_case()
async def a_request_that_was_granted_and_released_is_over(bench: LeaseBench) -> None:
    """A repetition that comes after the release takes nothing."""
    request = bench.request()
    grant = await bench.store.acquire(request)
    assert isinstance(grant, Grant)
    await bench.store.release(NAME, grant.token)
    with raises(LockLost, "a request again after its release"):
        await bench.store.acquire(request)
    assert await bench.state() is LeaseState.RELEASED


@_case()
async def withdrawing_frees_what_nobody_heard_of(bench: LeaseBench) -> None:
    """Who stops waiting for an answer leaves nothing held; a stranger's key withdraws nothing."""
    request = bench.request()
    await bench.store.acquire(request)
    await bench.store.withdraw(NAME, str(uuid.uuid4()))
    await bench.busy()
    await bench.store.withdraw(NAME, request.key)
    assert (await bench.granted("b")).token == 2
    await bench.store.withdraw("never-asked-for", request.key)


@_case()
async def expired_is_not_held_and_can_be_stolen(bench: LeaseBench) -> None:
    """S10, S3: the name is free for others once it has expired, under a higher token."""
    first = await bench.granted("a")
    await bench.expire()
    assert await bench.state() is LeaseState.EXPIRED
    second = await bench.granted("b")
    assert second.token > first.token
    await bench.refused(first, "after the steal")
    with raises(LockLost, "release after the steal"):
        await bench.store.release(NAME, first.token)
    await bench.store.renew(second, bench.ttl)


@_case("strict_expiry")
async def expired_is_refused_before_anyone_takes_it(bench: LeaseBench) -> None:
    """S10: expired and not yet taken is not held either."""
    grant = await bench.granted()
    await bench.expire()
    await bench.refused(grant, "after the expiry")
    with raises(LockLost, "release after the expiry"):
        await bench.store.release(NAME, grant.token)


@_case()
async def renewals_keep_it(bench: LeaseBench) -> None:
    """Each renewal counts from when it came, and keeps token and cursor."""
    grant = await bench.granted()
    for _ in range(2):
        await bench.clock.advance(0.6 * bench.ttl.total_seconds())
        await bench.store.renew(grant, bench.ttl)
    assert (await bench.busy()).token == grant.token


@_case("counts_renewals")
async def renewals_are_counted(bench: LeaseBench) -> None:
    """`lease list` knows what was renewed."""
    grant = await bench.granted()
    for _ in range(3):
        await bench.store.renew(grant, bench.ttl)
    (record,) = await bench.store.list()
    assert record.renewals == 3
    assert record.remaining is not None
    assert 0 < record.remaining <= bench.ttl.total_seconds()
    await bench.store.release(NAME, grant.token)
    await bench.granted("b")
    (record,) = await bench.store.list()
    assert record.renewals == 0


@_case()
async def a_repeated_release_is_answered_alike(bench: LeaseBench) -> None:
    """S5: also when others have held the name since; a token that was never granted is refused."""
    first = await bench.granted()
    await bench.store.release(NAME, first.token)
    await bench.store.release(NAME, first.token)
    second = await bench.granted("b")
    await bench.store.release(NAME, first.token)
    assert await bench.state() is LeaseState.ACTIVE, "a repeated release released somebody else's lease"
    await bench.store.release(NAME, second.token)
    await bench.granted("c")
    await bench.store.release(NAME, first.token)
    assert await bench.state() is LeaseState.ACTIVE
    with raises(LockLost, "release of a token that was never granted"):
        await bench.store.release(NAME, 77)


@_case()
async def released_is_refused(bench: LeaseBench) -> None:
    """S4: after the release nothing more may be done under its token."""
    grant = await bench.granted()
    await bench.store.release(NAME, grant.token)
    await bench.refused(grant, "after the release")
    await bench.granted("b")
    await bench.refused(grant, "after the next grant")


@_case()
async def the_cursor_outlives_its_holder(bench: LeaseBench) -> None:
    """S9: an acknowledged cursor is found by the next holder, after a release and after an expiry."""
    first = await bench.granted()
    assert (first.cursor, first.version) == (None, 0)
    await bench.store.save(first, "row 500", 1)
    await bench.store.save(first, "row 1000, ünïcode\0\n'", 2)
    await bench.store.release(NAME, first.token)
    second = await bench.granted("b")
    assert (second.cursor, second.version) == ("row 1000, ünïcode\0\n'", 2)
    await bench.store.save(second, "row 1500", 3)
    await bench.expire()
    third = await bench.granted("c")
    assert (third.cursor, third.version) == ("row 1500", 3)


@_case()
async def a_repeated_save_is_answered_alike_and_an_old_one_refused(bench: LeaseBench) -> None:
    """S9: a save that was on its way for long does not put the cursor back."""
    grant = await bench.granted()
    await bench.store.save(grant, "one", 1)
    await bench.store.save(grant, "one", 1)
    await bench.store.save(grant, "two", 2)
    for late in (("one", 1), ("another two", 2)):
        with raises(LockLost, f"a late save of {late}"):
            await bench.store.save(grant, *late)
    record = await bench.store.read(NAME)
    assert record is not None
    assert record.cursor == "two"


@_case()
async def confirmed_is_taken_for_good(bench: LeaseBench) -> None:
    """Reserve, confirm: it does not expire; the same again is answered alike, another value is refused."""
    grant = await bench.granted("guest")
    answer = await bench.store.confirm(NAME, grant.token, "seat 5")
    assert (answer.token, answer.value) == (grant.token, "seat 5")
    await bench.expire()
    assert await bench.store.confirm(NAME, grant.token, "seat 5") == answer
    assert await bench.state() is LeaseState.CONFIRMED
    with raises(ConfirmationDiffers, "another value"):
        await bench.store.confirm(NAME, grant.token, "seat 6")
    assert (await bench.busy()).why == "confirmed"
    with raises(LockLost, "a renewal of what is confirmed"):
        await bench.store.renew(grant, bench.ttl)


@_case()
async def a_confirmed_name_is_released_by_its_token_only(bench: LeaseBench) -> None:
    """Reserve, confirm, release; then it can be had again, and the old confirmation is stale."""
    grant = await bench.granted()
    await bench.store.confirm(NAME, grant.token, "")
    with raises(LockLost, "a release by another token"):
        await bench.store.release(NAME, grant.token + 1)
    await bench.store.release(NAME, grant.token)
    with raises(LockLost, "a confirmation after its release"):
        await bench.store.confirm(NAME, grant.token, "")
    assert (await bench.granted("b")).token > grant.token


@_case()
async def a_revoked_lease_ends_with_its_time(bench: LeaseBench) -> None:
    """It is neither renewed nor confirmed any more, and not free before it has run out: so nothing overlaps."""
    grant = await bench.granted()
    await bench.store.revoke(NAME)
    with raises(LockLost, "a renewal of what was revoked"):
        await bench.store.renew(grant, bench.ttl)
    with raises(LockLost, "a confirmation of what was revoked"):
        await bench.store.confirm(NAME, grant.token, "for good")
    await bench.busy()
    await bench.expire()
    await bench.granted("b")
    assert await bench.store.revoke("nobody-had-this") is None


@_case()
async def a_revoked_confirmation_is_free_at_once(bench: LeaseBench) -> None:
    """Nobody lives on a confirmation."""
    grant = await bench.granted()
    await bench.store.confirm(NAME, grant.token, "seat 5")
    await bench.store.revoke(NAME)
    await bench.granted("b")


@_case()
async def names_and_queues_do_not_touch_each_other(bench: LeaseBench) -> None:
    """S11: every name has its own token, state and cursor; the list has all of them, by name."""
    for name in ("b", "a.b-c:d_e", "a"):
        answer = await bench.store.acquire(bench.request(name=name))
        assert isinstance(answer, Grant)
        await bench.store.save(answer, f"cursor of {name}", 1)
    records = await bench.store.list()
    assert [record.name for record in records] == ["a", "a.b-c:d_e", "b"]
    assert [record.cursor for record in records] == [f"cursor of {record.name}" for record in records]
    assert {record.token for record in records} == {1}
    assert await bench.store.read("c") is None
