"""Cuts a process off at the n-th request that it sends of a ledger or a queue: before it, or once it is done."""

import asyncio
import math
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from http import HTTPStatus
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from jobq.batch_plan import Plan
from jobq.batches import BatchState, counts_of
from jobq.errors import AllPutBack, BackendUnavailable, JobqError
from jobq.settlement import Complete
from jobq.task import Task
from jobq.testing.harness import DONE
from jobq_azure.ledger.queue import LedgerQueue
from tests.azure.emulator import Azurite
from tests.azure.ledger.sites import Service, Site, sited
from tests.emulators.service_bus.faults import NO_FAULT, Drop, Fault, Faults, Operation, Request, Via
from tests.support.http_proxy import ProxiedRequest, Strike

_SOON: Final = timedelta(seconds=1)
_SECONDS: Final = 40.0
_AT_ONCE: Final = 8
_SLOW_TIMES: Final = 2
NAME: Final = "s7"
PLAN: Final = Plan(
    then=tuple(Task.new(command=f"python {name}.py", id="any").encode().decode() for name in ("merge", "tell"))
)


class Gap(StrEnum):
    """What befalls the process at a request."""

    DIES_BEFORE = "dies before"  # the request is not sent, and nothing after it
    DIES_AFTER = "dies after"  # it is done, and nobody hears so; nothing is sent after it
    LOSES = "loses its answer"  # and goes on
    REFUSED = "is refused"  # busy, or throttled, in turn; and goes on

    @property
    def ends_it(self) -> bool:
        """Whether the process is dead then."""
        return self in (Gap.DIES_BEFORE, Gap.DIES_AFTER)


@dataclass
class Cut:
    """What a process sends, counted, with one gap in it.

    Attributes:
        site: through whose proxies it goes.
        gap: what befalls it.
        at: the number of the request, from 0; None = none.
        count: how many it has sent.
    """

    site: Site
    gap: Gap
    at: int | None
    count: int = 0
    is_past: bool = False
    sent: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        refusal = Strike.THROTTLE if (self.at or 0) % 2 else Strike.BUSY
        strike = {Gap.LOSES: Strike.LOSE_ANSWER, Gap.DIES_AFTER: Strike.LOSE_ANSWER, Gap.REFUSED: refusal}
        self.site.on_amqp(_CutOfAmqp(self))
        for proxy in self.site.proxies:
            proxy.strike(Strike.BREAK, count=math.inf, matches=lambda _: self.gap.ends_it and self.is_past)
            proxy.strike(strike.get(self.gap, Strike.BREAK), count=math.inf, matches=self._is_it)

    def _is_it(self, request: ProxiedRequest) -> bool:
        if not self._is_of_ledger_or_queue(request):
            return False  # the journal writes when it likes
        return self.is_it(f"{request.method} {unquote(request.path)[-60:]}")

    def is_it(self, what: str) -> bool:
        """Count a request, and return whether the gap is here."""
        self.sent.append(what)
        number, self.count = self.count, self.count + 1
        self.is_past = self.is_past or number == self.at
        return number == self.at

    def _is_of_ledger_or_queue(self, request: ProxiedRequest) -> bool:
        if "$batch" not in request.path and "jobqjournal" not in request.path:
            return True
        whose = f"!{self.site.queue}!b"
        return whose in unquote(request.body.decode(errors="replace")) or whose in request.query.get("$filter", "")


class _CutOfAmqp(Faults):
    """The same of requests that pass no proxy."""

    def __init__(self, cut: Cut) -> None:
        super().__init__()
        self._cut = cut

    def take(self, request: Request) -> Fault:
        """Return what befalls a request."""
        cut = self._cut
        if request.via is not Via.AMQP or request.operation in (Operation.ATTACH, Operation.AUTHORIZE):
            return NO_FAULT
        is_over = cut.gap.ends_it and cut.is_past
        if not cut.is_it(f"AMQP {request.operation}"):
            return Fault(drop=Drop.BEFORE) if is_over else NO_FAULT
        if cut.gap is Gap.REFUSED:
            is_odd = (cut.at or 0) % 2
            return Fault(status=HTTPStatus.TOO_MANY_REQUESTS if is_odd else HTTPStatus.SERVICE_UNAVAILABLE)
        return Fault(drop=Drop.BEFORE if cut.gap is Gap.DIES_BEFORE else Drop.AFTER)


Act = Callable[["Life", LedgerQueue, Cut], Awaitable[None]]


class Life:
    """One batch on a queue of its own, what is known of it, and the healthy process that takes over.

    Attributes:
        site: of the queue.
        lease: to ask for.
        healthy: nothing befalls its requests.
        acknowledged: ids of tasks of the batch that somebody was told to be queued.
        runs: how often each task was handed out to be run.
        commands: what was run.
        ended: how often somebody was told that a task has ended.
    """

    def __init__(self, site: Site, healthy: LedgerQueue) -> None:
        self.site = site
        self.lease = site.lease
        self.healthy = healthy
        self.acknowledged: set[str] = set()
        self.runs: Counter[str] = Counter()
        self.commands: set[str | None] = set()
        self.ended: Counter[str] = Counter()

    def tasks(self, count: int = 3) -> list[Task]:
        """Return tasks of the batch."""
        return [Task.new(command="true", id=f"{NAME}.{number}", batch=NAME) for number in range(count)]

    async def pushed(self, count: int = 3) -> list[Task]:
        """Begin the batch, and push tasks to it."""
        await self.healthy.batches.begin(NAME, PLAN)
        tasks = self.tasks(count)
        self.acknowledged |= set(await self.healthy.push(tasks))
        return tasks

    async def drained(self, number: int = 1) -> None:
        """Run all there is until the batch has finished and nothing waits; then see that all is as it must be.

        Args:
            number: of rounds that have finished then.
        """
        async with asyncio.timeout(_SECONDS):
            while True:
                with suppress(BackendUnavailable):  # of a busy emulator: repeated, as everybody does
                    await self.run_some()
                    found = await self.healthy.batches.find(NAME)
                    if found.state is BatchState.FINISHED and not (await self.healthy.stats()).total:
                        break
        assert found.round == number, found
        assert [each.number for each in found.rounds] == list(range(1, number + 1))
        assert found.total == len(self.acknowledged), f"{found.counts} of {len(self.acknowledged)} acknowledged"
        for each in range(1, number + 1):
            for id_ in (f"jobq.then.{NAME}.{each}", f"jobq.then.{NAME}:1.{each}"):
                assert self.runs[id_] == 1, f"{id_} was run {self.runs[id_]} times"
        assert set(self.runs) >= self.acknowledged, "an acknowledged task was lost"

    async def run_some(self) -> None:
        """Run what can be had now."""
        with suppress(AllPutBack):
            for delivery in await self.healthy.receive(8, self.lease, _SOON):
                self.runs[delivery.id] += 1
                self.commands.add(delivery.task.command)
                await delivery.settle(Complete(DONE))
                self.ended[delivery.id] += 1

    async def counts(self) -> dict[str, int]:
        """Return the counts of the batch that are not 0."""
        found = (await self.healthy.batches.find(NAME)).counts
        return {name: count for name, count in found.items() if count}


def counted(**counts: int) -> dict[str, int]:
    """Return counts that are not 0."""
    return {name: count for name, count in counts_of(counts).items() if count}


async def _unless_slow(act: Callable[[], Awaitable[None]]) -> None:
    """Do what may be repeated; again where an emulator did not answer in time, as it may under hundreds of lives."""
    for _ in range(_SLOW_TIMES):
        try:
            return await act()
        except BackendUnavailable as error:
            if "TimeoutError" not in str(error):
                raise
    return await act()


@asynccontextmanager
async def living(service: Service, azurite: Azurite, folder: Path, *, window: bool) -> AsyncIterator[Life]:
    """Make a queue with a healthy process."""
    async with sited(service, azurite, folder, window=window) as site:
        yield Life(site, await site.ledgered(behind=True))


@dataclass(frozen=True)
class Given:
    """What a test is given.

    Attributes:
        service: of the queue. A Service Bus drops names that it knows, or not, in turn.
        azurite: keeps the table.
        folder: for HOME.
        every: 1 = each gap is tried, 5 = each fifth.
    """

    service: Service
    azurite: Azurite
    folder: Path
    every: int


async def in_each_gap(
    given: Given,
    before: Callable[[Life], Awaitable[None]],
    act: Act,
    after: Act,
    *,
    least: int,
) -> None:
    """Let a process act with each gap at each of its requests, and see what becomes of it.

    Args:
        given: where, and how many gaps.
        before: what has happened.
        act: what the process does that something befalls; may raise what the verbs of a backend raise.
        after: what others do then, and what must hold.
        least: so many requests are in `act`, or more: else nothing was tried.
    """
    turn = asyncio.Semaphore(_AT_ONCE)

    async def once(gap: Gap, at: int | None) -> Cut:
        async with turn, living(given.service, given.azurite, given.folder, window=bool((at or 0) % 2)) as life:
            await _unless_slow(lambda: before(life))
            process = await life.site.ledgered()
            cut = Cut(life.site, gap, at)
            with suppress(JobqError):
                await act(life, process, cut)
            life.site.on_amqp(None)
            for proxy in life.site.proxies if not gap.ends_it else ():
                await proxy.heal()
            try:
                await _unless_slow(lambda: after(life, process, cut))
            except (AssertionError, JobqError, TimeoutError) as error:
                error.add_note(f"the process {gap} at request {at}: {cut.sent[at : at + 1] if at is not None else ''}")
                raise
            return cut

    whole = await once(Gap.LOSES, None)
    assert whole.count >= least, f"only {whole.count} requests: {whole.sent}"
    tried = [(gap, at) for at in range(whole.count) for gap in Gap][:: given.every]  # five: each gap in its turn
    print(f"{len(tried)} gaps at {whole.count} requests: {whole.sent}")
    await asyncio.gather(*(once(gap, at) for gap, at in tried))
