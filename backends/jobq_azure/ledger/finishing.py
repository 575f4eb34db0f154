"""The end of a batch: found out by whoever ends its tasks, or waits for it; what is to be run then is queued once.

Nothing is counted beside the tasks: a batch has ended when it is sealed and no row says that a task has not. Its head
is read before that is looked for, and changed as it was read: so whoever puts a task back meanwhile, and touches the
head after that, is not passed over. It is `finishing` then, with its round and its counts; what is to be run is queued
as tasks of the ledger, under ids that follow from the round; and then it has finished. Whoever dies in between leaves
it to the next one.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Final

from jobq.batches import COUNTED, rounds_with
from jobq.clock import SystemClock
from jobq.errors import BatchNotFound, JobqError, MalformedTask
from jobq.task import Task
from jobq_azure.common.errors import NoAnswer
from jobq_azure.ledger import heads
from jobq_azure.ledger.counting import Counting
from jobq_azure.ledger.heads import Head, Heads
from jobq_azure.ledger.ledger import Ledger
from jobq_azure.ledger.unended_pushes import UnendedPushes
from jobq_azure.ledger.walk import LedgerWalk
from jobq_azure.table_journal import entities as rows
from jobq_azure.table_journal.lookup import answered

_EVERY_SECONDS: Final = 5.0  # a look at a batch, by each worker that has ended tasks of it
_MOST_LOOKED_AT: Final = 100  # batches that a worker's start looks at
_TRIES: Final = 3
_START_SECONDS: Final = 10.0  # for that; who comes next goes on
_END_SECONDS: Final = 120.0  # to count one of which nothing is left, and to queue what is run at its end
_CLOCK: Final = SystemClock()
_log: Final = logging.getLogger(__name__)
Push = Callable[[Sequence[tuple[str, Task]]], Awaitable[object]]


class Finishing:
    """Finishes the batches of one queue.

    Args:
        ledger: of the queue.
        batches: of the queue.
        walk: over their tasks.
        pushing: pushes to them.
        counting: of them.
        push: queues tasks of the ledger, each with the book in which it is kept.
        is_bare: returns whether the queue holds no message at all.
    """

    def __init__(
        self,
        ledger: Ledger,
        batches: Heads,
        walk: LedgerWalk,
        pushing: UnendedPushes,
        counting: Counting,
        push: Push,
        is_bare: Callable[[], Awaitable[bool]],
    ) -> None:
        self._ledger = ledger
        self._heads = batches
        self._walk = walk
        self._pushing = pushing
        self._counting = counting
        self._push = push
        self._is_bare = is_bare
        self._told_of: set[str] = set()  # batches at whose end something is to be queued that cannot be
        self._looked: dict[str, float] = {}  # when, by name
        self._due: set[str] = set()  # batches of which something has ended since
        self._some = asyncio.Event()
        self._looking = asyncio.Lock()
        self._ending = 0  # batches of which nothing is left, and which are being counted and finished
        self._limits: set[asyncio.Timeout] = set()  # of looks that are under way
        self._finished = 0  # batches, by this process
        self._told = 0  # of those `drained` has told of
        self._left_at: dict[str, str] = {}  # the partition in which something was left, by book
        self._loop: asyncio.Task[None] | None = None

    def has_ended(self, name: str) -> None:
        """Note that a task of a batch has ended: it is looked at within some seconds, or when the queue is empty."""
        self._later(name)
        if self._loop is None:
            self._loop = asyncio.create_task(self._look_for_ever(), name="ends of batches")

    def is_left_in(self, book: str, partition: str) -> None:
        """Note where something was left of a batch: the next look begins there, and mostly ends."""
        self._left_at[book] = partition

    async def aclose(self) -> None:
        """Look no more, but once at what has ended since the last look."""
        if self._loop is not None:
            self._loop.cancel()
            await asyncio.wait({self._loop})
        await self.drained()

    async def start(self) -> None:
        """Find batches that were left to the next one: sealed, and whoever ended their last task died.

        They are looked at beside what else is done, and when the queue is empty: no start waits for a large one.
        """
        where = f"(State eq '{heads.SEALED}' or State eq '{heads.FINISHING}')"
        try:
            async with asyncio.timeout(_START_SECONDS):
                for head in await self._heads.list("", _MOST_LOOKED_AT, where=where):
                    self.has_ended(head.name)
        except (JobqError, NoAnswer, TimeoutError) as error:
            _log.debug("the batches of %s are not looked at: %s", self._ledger.wire.place.spec, error)

    async def drained(self) -> bool:
        """Look at once at all batches of which something has ended: nothing waits; return whether one has finished.

        For some seconds: a table that is away holds nobody up, and what is left is looked at later. One of which
        nothing is left is seen to its end.
        """
        with suppress(TimeoutError):
            async with self._limited(_EVERY_SECONDS), self._looking:  # also to the end of a look that is under way
                for name in list(self._due):
                    await self._tried(name, drained=True)
        told, self._told = self._told, self._finished
        return self._finished > told

    async def _look_for_ever(self) -> None:
        while True:
            await self._some.wait()
            self._some.clear()
            while self._due:
                now = _CLOCK.boottime()
                for name in [name for name in self._due if self._looked.get(name, 0.0) + _EVERY_SECONDS <= now]:
                    async with self._looking:
                        await self._tried(name)
                await asyncio.sleep(_EVERY_SECONDS / 5)

    @asynccontextmanager
    async def _limited(self, seconds: float) -> AsyncIterator[None]:
        """Raise TimeoutError after this time; after more where meanwhile nothing is left of a batch."""
        async with asyncio.timeout(seconds) as limit:
            self._limits.add(limit)
            try:
                self._extend_limits()
                yield
            finally:
                self._limits.discard(limit)

    def _extend_limits(self) -> None:
        for limit in self._limits if self._ending else ():
            if not limit.expired():
                limit.reschedule(asyncio.get_running_loop().time() + _END_SECONDS)

    async def _tried(self, name: str, *, drained: bool = False) -> None:
        """Finish a batch if it can be; what fails is tried again when the next task of it ends, or at the next look."""
        self._due.discard(name)
        try:
            await self.finish(name, drained=drained)
        except BatchNotFound:
            return
        except asyncio.CancelledError:
            self._later(name)
            raise
        except MalformedTask as error:
            level = logging.DEBUG if name in self._told_of else logging.WARNING
            self._told_of.add(name)
            self._later(name)
            spec = self._ledger.wire.place.spec
            _log.log(
                level, "batch %s of %s cannot finish, for what is run then cannot be queued: %s", name, spec, error
            )
        except (JobqError, NoAnswer) as error:
            self._later(name)
            _log.debug("batch %s of %s is looked at later: %s", name, self._ledger.wire.place.spec, error)

    def _later(self, name: str) -> None:
        self._due.add(name)
        self._some.set()

    async def finish(self, name: str, *, drained: bool = False) -> bool:
        """Finish a batch if it has ended, and go on with a cancel; return whether it has finished by this.

        Args:
            name: of it.
            drained: whether nothing waits in the queue: then its messages may be lost.

        Raises:
            BatchNotFound: as it says.
            JobqError: as the verbs of a backend; it may be repeated.
        """
        self._looked[name] = _CLOCK.boottime()
        for _ in range(_TRIES):
            head = await self._heads.found(name)
            if head.state == heads.SEALED:
                if head.is_canceled:
                    await self._walk.cancel(head.book, head.opening)
                left = await self._walk.is_left(head.book, self._left_at.get(head.book, ""))
                if left:
                    self.is_left_in(head.book, left)
                    await self._pushing.left(head.book, left)  # a push that died may have entered it behind the seal
                    if drained and await self._is_bare() and await self._walk.lost(head.book, self._is_bare):
                        _log.warning(
                            "batch %s of %s: its queue is empty, so what had not ended of it is gone: the queue was"
                            " perhaps deleted and made anew",
                            name,
                            self._ledger.wire.place.spec,
                        )
                        continue
                    return False
                begun = await self._begun(head)
                if begun is None:  # somebody else has, or has put something back
                    continue
                head = begun
            if head.state != heads.FINISHING:
                return False
            self._ending += 1
            self._extend_limits()
            try:
                has_finished = (await self.ended(head)).state == heads.FINISHED
            finally:
                self._ending -= 1
            self._finished += has_finished
            return has_finished
        return False

    async def _begun(self, head: Head) -> Head | None:
        """Note that a batch has ended; None = it has changed since it was read."""
        values = {"State": heads.FINISHING, "Finished": self._ledger.wire.now()}
        return await answered(self._heads.replace(head, values))

    async def _counted(self, head: Head) -> Head:
        """Note the counts of a round that has ended, which takes long where it is large; nothing changes meanwhile."""
        if any(each.number == head.round for each in head.rounds):
            return head
        counts = (await self._counting.counted(head.book)).counts
        whole = {name: counts.get(name, 0) for name in COUNTED}
        values: dict[str, object] = {}
        finished = head.finished or self._ledger.wire.now()
        rows.put(values, "Rounds", rounds_with(head.rounds_text, head.round, finished, whole).encode())

        def decide(now: Head) -> dict[str, object] | None:
            is_same = now.book == head.book and now.state == heads.FINISHING and now.round == head.round
            return values if is_same and now.rounds_text == head.rounds_text else None

        return await self._heads.change(head.name, decide)

    async def ended(self, head: Head) -> Head:
        """Go on with the end of a batch that is `finishing`, and return it as it is then; others as they are."""
        if head.state != heads.FINISHING or (head := await self._counted(head)).state != heads.FINISHING:
            return head
        tasks = head.plan.tasks(head.name, head.round)
        await self._push([(head.book_of_end, task) for task in tasks])

        def decide(now: Head) -> dict[str, object] | None:
            is_same = now.book == head.book and now.state == heads.FINISHING and now.round == head.round
            return {"State": heads.FINISHED} if is_same else None

        return await self._heads.change(head.name, decide)
