"""Backends that break one rule each, thinly wrapped around the router, for `test_suite_catches`."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import ClassVar

from jobq.backend import DeadLetter, Delivery, FencingNumber, Hastened, Hastens, Peeked, Renewed
from jobq.batches import Batches, KeepsBatches
from jobq.errors import DuplicateTask, LockLost
from jobq.journal.observations import Observations, observations_of
from jobq.journal.records import Beat, Canceled
from jobq.journal.store import Journal, KeepsJournal
from jobq.journal.task_filter import TaskFilter
from jobq.journal.task_rows import TaskDetail, TaskRow
from jobq.journal.views import BUDGET, KeepsViews, ViewPage, Views
from jobq.lease.store import KeepsLeases, LeaseStore
from jobq.pausing import Pausable, Pause
from jobq.resources.room import Room
from jobq.selecting import Selects, WaitingShape
from jobq.settlement import Complete, Release, Requeue, Settlement
from jobq.task import Task
from jobq.testing.faults import Faults, FaultyBackend, FaultyDelivery
from jobq_memory import MemoryBackend, State
from jobq_memory.journal import MemoryJournal
from jobq_memory.views import MemoryViews


class Wrapped(FaultyBackend):
    """Passes everything on; a mutant overrides one thing, or names another delivery."""

    delivery: type[FaultyDelivery] = FaultyDelivery

    async def receive(self, max_tasks: int, lease: timedelta | None, wait: timedelta) -> list[Delivery]:
        return [self.delivery(each, Faults()) for each in await self.inner.receive(max_tasks, lease, wait)]

    async def pause(self, mark: Pause) -> None:
        assert isinstance(self.inner, Pausable)
        await self.inner.pause(mark)

    async def resume(self) -> Pause | None:
        assert isinstance(self.inner, Pausable)
        return await self.inner.resume()

    async def paused(self) -> Pause | None:
        assert isinstance(self.inner, Pausable)
        return await self.inner.paused()

    async def hasten(self, ids: Sequence[str]) -> list[Hastened]:
        assert isinstance(self.inner, Hastens)
        return await self.inner.hasten(ids)

    async def receive_fitting(
        self, room: Room, max_tasks: int, lease: timedelta | None, wait: timedelta, *, worker_id: str = ""
    ) -> list[Delivery]:
        assert isinstance(self.inner, Selects)
        found = await self.inner.receive_fitting(room, max_tasks, lease, wait, worker_id=worker_id)
        return [self.delivery(each, Faults()) for each in found]

    async def waiting_shapes(self) -> list[WaitingShape]:
        assert isinstance(self.inner, Selects)
        return await self.inner.waiting_shapes()

    @property
    def batches(self) -> Batches:
        assert isinstance(self.inner, KeepsBatches)
        return self.inner.batches

    @property
    def journal(self) -> Journal | None:
        assert isinstance(self.inner, KeepsJournal)
        return self.inner.journal

    @property
    def leases(self) -> LeaseStore:
        assert isinstance(self.inner, KeepsLeases)
        return self.inner.leases

    def views(self) -> Views:
        assert isinstance(self.inner, KeepsViews)
        return self.inner.views()

    def observations(self, queue: str = "") -> Observations | None:
        return observations_of(self.inner, queue)


class _UnfencedDelivery(FaultyDelivery):
    async def settle(self, settlement: Settlement) -> None:
        try:
            await self.inner.settle(settlement)
        except LockLost:
            if not isinstance(settlement, Complete):
                raise


class UnfencedComplete(Wrapped):
    """S4: a stale completion is told yes."""

    delivery = _UnfencedDelivery


class _SilentCheckpointDelivery(FaultyDelivery):
    async def checkpoint(self, value: str, number: int = 0) -> None:
        try:
            await self.inner.checkpoint(value, number)
        except LockLost:
            return


class SilentCheckpoint(Wrapped):
    """S9: a stale checkpoint is dropped without a word."""

    delivery = _SilentCheckpointDelivery


class _UnorderedCheckpointDelivery(FaultyDelivery):
    async def checkpoint(self, value: str, number: int = 0) -> None:
        await self.inner.checkpoint(value)


class LateCheckpoint(Wrapped):
    """S9: the number of a checkpoint is not looked at."""

    delivery = _UnorderedCheckpointDelivery


class _DeafRenewDelivery(FaultyDelivery):
    async def renew(self, lease: timedelta, beat: Beat | None = None) -> Renewed:
        with suppress(LockLost):
            return await self.inner.renew(lease, beat)
        return Renewed()


class ExpiredRenewed(Wrapped):
    """S4: the renewal of an expired lease is told yes."""

    delivery = _DeafRenewDelivery


class _IdleRenewDelivery(FaultyDelivery):
    async def renew(self, lease: timedelta, beat: Beat | None = None) -> Renewed:
        await self.inner.checkpoint(self.inner.checkpoint_value or "")  # fenced, but extends nothing
        return Renewed()


class RenewExtendsNothing(Wrapped):
    """S4: a renewal is accepted and the lease runs out all the same."""

    delivery = _IdleRenewDelivery


class _ForgetfulDelivery(FaultyDelivery):
    @property
    def deliveries(self) -> int:
        return self.inner.deliveries if self.fencing.generation == 0 else 1

    @property
    def fencing(self) -> FencingNumber:
        epoch, generation, delivery = self.inner.fencing
        return FencingNumber(epoch, generation, delivery if generation == 0 else 1)


class DeliveriesReset(Wrapped):
    """S3, S7: a requeue begins to count from one again."""

    delivery = _ForgetfulDelivery


class _CostlyReleaseDelivery(FaultyDelivery):
    async def settle(self, settlement: Settlement) -> None:
        costly = Requeue(self.inner.task.counters.raised(failures=1))
        await self.inner.settle(costly if isinstance(settlement, Release) else settlement)


class ReleaseConsumesBudget(Wrapped):
    """S7: a delivery that was never started counts as a failure."""

    delivery = _CostlyReleaseDelivery


class _UncountedReleaseDelivery(FaultyDelivery):
    async def settle(self, settlement: Settlement) -> None:
        uncounted = Requeue(self.inner.task.counters)
        await self.inner.settle(uncounted if isinstance(settlement, Release) else settlement)


class ReleaseIsACrash(Wrapped):
    """S7: a release that records no end, so that it shows as a crash."""

    delivery = _UncountedReleaseDelivery


class _HastyDelivery(FaultyDelivery):
    async def settle(self, settlement: Settlement) -> None:
        await self.inner.settle(Release() if isinstance(settlement, Release) else settlement)


class ReleaseAtOnce(Wrapped):
    """S7: what was given back for want of room comes again at once."""

    delivery = _HastyDelivery


class _UncountedMisfitDelivery(FaultyDelivery):
    async def settle(self, settlement: Settlement) -> None:
        await self.inner.settle(replace(settlement, misfits=0) if isinstance(settlement, Release) else settlement)


class MisfitIsNotCounted(Wrapped):
    """What no worker can run goes round for ever."""

    delivery = _UncountedMisfitDelivery


class _OvertakenDelivery(FaultyDelivery):
    async def settle(self, settlement: Settlement) -> None:
        is_at_once = isinstance(settlement, Release) and not settlement.delay
        await self.inner.settle(Release(timedelta(microseconds=1)) if is_at_once else settlement)


class ReleaseToTheBack(Wrapped):
    """What was given back is the youngest from then on."""

    delivery = _OvertakenDelivery


class _ImpatientDelivery(FaultyDelivery):
    async def settle(self, settlement: Settlement) -> None:
        if isinstance(settlement, Requeue):
            settlement = replace(settlement, delay=timedelta(0))
        await self.inner.settle(settlement)


class DelayIgnored(Wrapped):
    """S6: a requeued task is visible at once, whatever its delay."""

    delivery = _ImpatientDelivery


class _AmnesicDelivery(FaultyDelivery):
    async def settle(self, settlement: Settlement) -> None:
        if isinstance(settlement, Requeue):
            settlement = replace(settlement, counters=self.inner.task.counters)
        await self.inner.settle(settlement)


class CountersLost(Wrapped):
    """S6, S7: a requeue forgets the counters it was given."""

    delivery = _AmnesicDelivery


class DeadLetterWithoutBody(Wrapped):
    """S6: a dead letter without its original bytes."""

    async def dead_letters(self, limit: int) -> list[DeadLetter]:
        return [
            DeadLetter(
                id=each.id,
                reason=each.reason,
                description=each.description,
                body=b"",
                deliveries=each.deliveries,
                died=each.died,
            )
            for each in await self.inner.dead_letters(limit)
        ]


class DedupSilent(Wrapped):
    """S8: another payload under a known id is swallowed in silence."""

    async def push(self, tasks: Sequence[Task]) -> list[str]:
        try:
            return await self.inner.push(tasks)
        except DuplicateTask:
            return [each.id for each in tasks]


class PushInPieces(Wrapped):
    """S1, S8: a push that fails half-way leaves what it had added."""

    async def push(self, tasks: Sequence[Task]) -> list[str]:
        return [(await self.inner.push([each]))[0] for each in tasks]


class Greedy(Wrapped):
    """Receives more than was asked for."""

    async def receive(self, max_tasks: int, lease: timedelta | None, wait: timedelta) -> list[Delivery]:
        return await super().receive(max_tasks + 1, lease, wait)


class RedriveClaimsAll(Wrapped):
    """Redrive answers with ids that it has not found."""

    async def redrive(self, ids: Sequence[str]) -> list[str]:
        await self.inner.redrive(ids)
        return list(ids)


class PeekDelivers(Wrapped):
    """Peek leases what it shows."""

    async def peek(self, limit: int) -> list[Peeked]:
        seen = await self.inner.peek(limit)
        if seen:
            await self.inner.receive(len(seen), None, timedelta(0))
        return seen


class ShadowLease(Wrapped):
    """S3: a task is handed to a second receiver while the first still holds it."""

    _last: ClassVar[dict[str, Delivery]] = {}

    async def receive(self, max_tasks: int, lease: timedelta | None, wait: timedelta) -> list[Delivery]:
        found = await super().receive(max_tasks, lease, wait)
        if not found and self.name in self._last:
            return [self._last.pop(self.name)]
        if found:
            self._last[self.name] = found[0]
        return found


class LeaseNeverEnds(Wrapped):
    """S1, L6: who vanishes with a task keeps it."""

    async def receive(self, max_tasks: int, lease: timedelta | None, wait: timedelta) -> list[Delivery]:
        return await super().receive(max_tasks, timedelta(days=365), wait)


class WorkRewritten(Wrapped):
    """A1: what was signed is stored as this backend would write it."""

    async def push(self, tasks: Sequence[Task]) -> list[str]:
        return await self.inner.push([task.copied({"work": None}) for task in tasks])


class PauseIsAWord(Wrapped):
    """A paused queue says so, and hands out."""

    async def receive(self, max_tasks: int, lease: timedelta | None, wait: timedelta) -> list[Delivery]:
        mark = (await self.inner.stats()).paused
        await self.resume()
        try:
            return await super().receive(max_tasks, lease, wait)
        finally:
            if mark is not None:
                await self.pause(mark)


class PauseStays(Wrapped):
    """A pause without an end."""

    async def resume(self) -> Pause | None:
        return None


class HastenIsAWord(Wrapped):
    """What is put off is said to be due, and is not."""

    async def hasten(self, ids: Sequence[str]) -> list[Hastened]:
        return [Hastened.DUE for _ in ids]


class HastenTakesAll(Wrapped):
    """What runs is handed out once more, too (S3)."""

    async def hasten(self, ids: Sequence[str]) -> list[Hastened]:
        assert isinstance(self.inner, MemoryBackend)
        with self.inner._router.opened(self.name) as store:
            for entry in (store.entries[each] for each in ids if each in store.entries):
                if entry.state is State.LEASED:
                    store._place(entry, timedelta(0))
        return await super().hasten(ids)


class HastenedOnce(Wrapped):
    """What comes back is put off as it was at first."""

    async def hasten(self, ids: Sequence[str]) -> list[Hastened]:
        assert isinstance(self.inner, MemoryBackend)
        answers = await super().hasten(ids)
        with self.inner._router.opened(self.name) as store:
            for entry in (store.entries[each] for each in ids if each in store.entries):
                entry.not_before = Task.decode(entry.body).not_before
        return answers


class TagsAreAWord(Wrapped):
    """Whoever has one tag gets what needs it, whatever else that needs."""

    async def receive_fitting(
        self, room: Room, max_tasks: int, lease: timedelta | None, wait: timedelta, *, worker_id: str = ""
    ) -> list[Delivery]:
        tags = [*room.tags, *(["a100"] if room.tags else [])]
        return await super().receive_fitting(room.copied({"tags": tags}), max_tasks, lease, wait)


class RoomForEach(Wrapped):
    """What is handed out fits, but not together."""

    async def receive_fitting(
        self, room: Room, max_tasks: int, lease: timedelta | None, wait: timedelta, *, worker_id: str = ""
    ) -> list[Delivery]:
        each = [await super(RoomForEach, self).receive_fitting(room, 1, lease, wait) for _ in range(max_tasks)]
        return [delivery for found in each for delivery in found]


class ReservedAtOnce(Wrapped):
    """What has no room is kept from others the first time."""

    async def receive_fitting(
        self, room: Room, max_tasks: int, lease: timedelta | None, wait: timedelta, *, worker_id: str = ""
    ) -> list[Delivery]:
        after = None if room.reserves_after is None else 0.0
        return await super().receive_fitting(room.copied({"reserves_after": after}), max_tasks, lease, wait)


class BatchForgotten(Wrapped):
    """A push to a batch that is one to none."""

    async def push(self, tasks: Sequence[Task]) -> list[str]:
        return await self.inner.push([task.copied({"batch": None}) for task in tasks])


class BatchOfTheClear(Wrapped):
    """What is cleared is counted by nobody."""

    async def clear(self) -> int:
        ids = [each.id for each in await self.inner.peek(1000)]
        assert isinstance(self.inner, KeepsJournal)
        assert self.inner.journal is not None
        return len(await self.inner.journal.cancel(ids))


class _CancelIsAWord(MemoryJournal):
    async def cancel(self, ids: Sequence[str]) -> list[Canceled]:
        return [Canceled.CANCELED if each.lease_left is None else Canceled.STOPPING for each in await self.find(ids)]


class CancelIsAWord(Wrapped):
    """A cancel is answered, and ends nothing."""

    @property
    def journal(self) -> Journal:
        assert isinstance(self.inner, MemoryBackend)
        return _CancelIsAWord(self.inner._router, self.name)


class _OutputOfTheLast(MemoryJournal):
    async def output(self, task_id: str, attempt: int | None = None) -> tuple[int, str] | None:
        return await super().output(task_id)


class OutputOfTheLast(Wrapped):
    """Each attempt is shown with the output of the last one."""

    @property
    def journal(self) -> Journal:
        assert isinstance(self.inner, MemoryBackend)
        return _OutputOfTheLast(self.inner._router, self.name)


class _RecordLostDelivery(FaultyDelivery):
    async def settle(self, settlement: Settlement) -> None:
        if not isinstance(settlement, Release):
            settlement = replace(settlement, record=None)
        await self.inner.settle(settlement)


class RecordLost(Wrapped):
    """What an attempt came to is not recorded."""

    delivery = _RecordLostDelivery


class _PagesByNumber(MemoryViews):
    async def tasks(
        self, queue: str, wanted: TaskFilter, after: str, limit: int, *, budget: timedelta = BUDGET
    ) -> ViewPage[TaskRow]:
        skipped = int(after or 0)
        page = await super().tasks(queue, wanted, "", 500, budget=budget)
        rows = page.rows[skipped : skipped + limit]
        return ViewPage(rows=rows, after=str(skipped + limit) if len(page.rows) > skipped + limit else None)


class PagesMove(Wrapped):
    """A page begins behind so many rows, whichever these are now."""

    def views(self) -> Views:
        assert isinstance(self.inner, MemoryBackend)
        return _PagesByNumber(self.inner._router)


class _WithValues(MemoryViews):
    async def task(self, queue: str, task_id: str) -> TaskDetail | None:
        found = await super().task(queue, task_id)
        with self._router.opened(queue) as store:
            env = Task.decode(store.entries[task_id].body).env if task_id in store.entries else {}
        return None if found is None else replace(found, variables=[f"{name}={env[name]}" for name in found.variables])


class ValuesShown(Wrapped):
    """A6: the values of variables are shown."""

    def views(self) -> Views:
        assert isinstance(self.inner, MemoryBackend)
        return _WithValues(self.inner._router)


CAUGHT_BY: dict[type[Wrapped], str] = {
    UnfencedComplete: "stale.after_expiry_and_redelivery",
    SilentCheckpoint: "lease.stale_checkpoint_is_refused",
    LateCheckpoint: "lease.late_checkpoint_undoes_no_newer_one",
    ExpiredRenewed: "lease.expired_receipt_is_refused_before_redelivery",
    RenewExtendsNothing: "lease.renewal_extends",
    DeliveriesReset: "lease.fencing_rises_through_everything",
    ReleaseConsumesBudget: "settle.release_consumes_no_budget",
    ReleaseIsACrash: "settle.release_consumes_no_budget",
    ReleaseAtOnce: "settle.release_waits_for_its_delay",
    MisfitIsNotCounted: "settle.release_counts_a_misfit",
    ReleaseToTheBack: "settle.release_keeps_its_place",
    DelayIgnored: "settle.requeue_waits_for_its_delay",
    CountersLost: "settle.requeue_stores_counters_and_generation",
    WorkRewritten: "signed.work_is_kept_as_it_was_written",
    DeadLetterWithoutBody: "dead.keeps_bytes_and_reason",
    DedupSilent: "push.other_payload_is_an_error_and_adds_none",
    PushInPieces: "push.other_payload_is_an_error_and_adds_none",
    Greedy: "receive.never_more_than_asked_for",
    RedriveClaimsAll: "dead.redrive_answers_with_what_it_found",
    PeekDelivers: "receive.peek_leases_nothing",
    ShadowLease: "lease.expired_task_comes_back",
    PauseIsAWord: "pause.paused_hands_nothing_out_and_what_runs_goes_on",
    PauseStays: "pause.stats_say_who_has_paused_it_and_why",
    TagsAreAWord: "select.a_worker_has_all_that_is_needed",
    RoomForEach: "select.what_is_handed_out_fits_together",
    ReservedAtOnce: "select.none_is_reserved_before_it_was_overtaken_for_long",
    HastenIsAWord: "hasten.what_is_put_off_is_to_be_had_now",
    HastenTakesAll: "hasten.nothing_else_is_touched_and_the_answer_says_so",
    HastenedOnce: "hasten.it_is_put_off_no_more",
    BatchForgotten: "batch.an_open_batch_takes_tasks_and_never_ends",
    BatchOfTheClear: "batch.what_is_deleted_is_counted_as_gone",
    CancelIsAWord: "cancel.what_runs_and_is_canceled_hears_of_it_with_its_renewal",
    OutputOfTheLast: "journal.an_attempt_is_kept_as_it_was_told",
    RecordLost: "journal.each_way_out_of_an_attempt_is_recorded_once",
    PagesMove: "views.what_comes_or_goes_meanwhile_moves_no_page",
    ValuesShown: "views.no_body_and_no_value_of_a_variable_is_shown",
    LeaseNeverEnds: "receive.cancelled_grant_is_not_lost",
}
