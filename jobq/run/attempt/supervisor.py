"""One attempt, from a delivery to its settlement: confirm, start, wait, stop, judge, settle (architecture 6)."""

import asyncio
import logging
import random
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING

from jobq.backend import Backend, Delivery
from jobq.clock import Clock, Moment
from jobq.errors import ConfigurationError, JobqError, MalformedTask
from jobq.events import Events
from jobq.formats import durations
from jobq.lease.keeper import STOPPING_ATTEMPT_SECONDS, LeaseKeeper
from jobq.lease.outage import Outage
from jobq.lease.ticker import Ticker
from jobq.lease.timing import LeaseTiming, timing_for
from jobq.racing import first_done, first_of, never, racing
from jobq.run.attempt import allowed, neighbours, retry
from jobq.run.attempt.attempt_events import AttemptEvents
from jobq.run.attempt.attempt_journal import AttemptJournal
from jobq.run.attempt.journal_looks import JournalLooks
from jobq.run.attempt.neighbours import Admission, Placement
from jobq.run.attempt.result import fit_to_keep
from jobq.run.attempt.retry import Backoff, Cancel, Judge, Leave, Reason, Verdict
from jobq.run.attempt.runner import Runner, Running
from jobq.run.attempt.settle import Settled, give_back, settle
from jobq.run.attempt.signature_check import Refused, SignatureCheck, Verified
from jobq.run.circuit_breaker import Breaker
from jobq.run.process.spawner import Awaited, Deadline, OtherKind, StartFailed, StatusLost
from jobq.run.stopping import Stopping
from jobq.settings import Settings
from jobq.settlement import Complete, MoveToDeadLetters, Release, Requeue
from jobq.signing.signer import locations
from jobq.spec import origin_of
from jobq.task import Outcome, OutcomeKind, Task

if TYPE_CHECKING:
    from jobq.run.attempt.checkpoints import AttemptCheckpoints

_log = logging.getLogger(__name__)
_SHOWN_AFTER_SECONDS = 1.0  # a failed task that is kept for longer is shown as that, not as one that runs
SAVE_SECONDS = 3.0  # after the grace, for the files of a task that was stopped: all within 30 s (P8)
_NOT_STARTED = "could not be started: "
_STOPPED_BY = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_SAME_SECONDS = 1.0  # by which a signal to the whole tree has reached task and worker
START_SECONDS = 3.0  # how long a start may still take once the worker has to stop


@dataclass(frozen=True, kw_only=True)
class DeliveryReport:
    """What became of one delivery.

    Attributes:
        task_id: whose.
        verdict: what was decided; None for a delivery that was let go unstarted.
        settled: what is known of the settlement.
        outcome: how the attempt ended; None when it was never started.
        not_allowed: whether this worker may not run it.
        misfit: whether this worker does not offer what it asks for.
    """

    task_id: str
    verdict: Verdict | None
    settled: Settled
    outcome: Outcome | None = None
    not_allowed: bool = False
    misfit: bool = False


@dataclass(frozen=True, kw_only=True)
class Supervisor:
    """Carries deliveries of one queue through; holds what all attempts share.

    Attributes:
        backend: where the deliveries come from.
        runner: starts the attempts.
        settings: leases, graces, backoff.
        clock: for leases.
        events: where each transition is published.
        stopping: how far the worker is to stop.
        breaker: judges failures in a row.
        on_slot_free: called when nothing of an attempt runs any more; its settlement may still be under way.
        judge: decides what becomes of a task after an attempt.
        chance: spreads the retries.
    """

    backend: Backend
    runner: Runner
    settings: Settings
    clock: Clock
    events: Events
    stopping: Stopping = field(default_factory=Stopping)
    breaker: Breaker
    on_slot_free: Callable[[], None] = lambda: None
    judge: Judge = retry.verdict
    chance: random.Random = field(default_factory=random.Random)

    @cached_property
    def outage(self) -> Outage:
        """What the queue's service does not answer, of all that is asked here."""
        return Outage(self.clock, f"queue {self.backend.name}")

    @cached_property
    def ticker(self) -> Ticker:
        """Watches the leases of all attempts."""
        return Ticker(self.clock)

    @cached_property
    def looks(self) -> JournalLooks:
        """At what is asked of the attempts, where that costs next to nothing."""
        return JournalLooks(self.backend, self.clock)

    @cached_property
    def signatures(self) -> SignatureCheck:
        """Whose signatures count."""
        origin = origin_of(self.backend)
        names = locations(self.settings, None if origin is None else origin[0])
        return SignatureCheck(self.settings, names, self.backend.name)

    @property
    def lease(self) -> timedelta:
        """The lease to ask for."""
        return self.settings.visibility_timeout or self.backend.capabilities.default_lease

    def check(self) -> LeaseTiming:
        """Return the timing of the lease.

        Raises:
            ConfigurationError: it cannot be had, or kept (rule 1.3(4)); or a list of what is allowed, or of the keys
                that are trusted, cannot be read.
        """
        able = self.backend.capabilities
        if not able.min_lease <= self.lease <= (able.max_lease or self.lease):
            at_most = "" if able.max_lease is None else f" and at most {durations.show(able.max_lease)}"
            raise ConfigurationError(
                f"a lease of {durations.show(self.lease)} is not to be had: {self.backend.name} is on a service that"
                f" grants at least {durations.show(able.min_lease)}{at_most}; change --visibility-timeout"
            )
        allowed.check(self.settings)
        self.signatures.check()
        timing = timing_for(self.lease, self.settings)
        timing.check(allow_short=self.settings.allow_short_lease)
        return timing

    def close(self) -> None:
        """Leave nothing running; no attempt is left."""
        self.ticker.close()
        self.looks.close()

    async def execute(self, delivery: Delivery, since: Moment, place: Placement = Placement()) -> DeliveryReport:  # noqa: B008 - frozen
        """Carry one delivery through.

        Args:
            delivery: what was received.
            since: read before the receive was sent.
            place: beside what it may start.
        """
        return await _Attempt(self, delivery, since, place).run()


class _Attempt:
    """The steps of one attempt, in the order in which they stand."""

    def __init__(self, supervisor: Supervisor, delivery: Delivery, since: Moment, place: Placement) -> None:
        self._with = supervisor
        self._delivery = delivery
        self._place = place
        self._slot_taken = True
        self._deadline = Deadline(since.boottime)  # the keeper's, once it has confirmed the lease
        self._events = AttemptEvents(supervisor.events, delivery, supervisor.backend.name)
        self._journal = AttemptJournal(delivery)
        self._keeper = LeaseKeeper(
            self._journal,
            since=since,
            timing=timing_for(delivery.lease, supervisor.settings),
            clock=supervisor.clock,
            on_extended=self._deadline.move,
            on_renewal=self._events.renewed,
            outage=supervisor.outage,
            ticker=supervisor.ticker,
        )
        self._checkpoints: AttemptCheckpoints | None = None
        self._save_by = 0.0  # boottime in seconds

    async def run(self) -> DeliveryReport:
        try:
            if not await self._keeper.confirm():
                self._events.leased()
                return await self._let_go()
            async with self._keeper:
                return await self._run()
        finally:
            self._free_slot()

    async def _run(self) -> DeliveryReport:
        verified = self._with.signatures.verify(self._delivery.id, self._delivery.body, self._with.clock.wall())
        if isinstance(verified, Refused):
            self._events.leased()
            return await self._refuse(verified)
        task: Task | None = None
        try:
            task = self._delivery.task
            retry.check_counters(task, self._delivery.deliveries)
        except MalformedTask as error:
            self._events.leased(task)
            return await self._settle(MoveToDeadLetters(Reason.MALFORMED, str(error)), None)
        self._events.leased(task)
        try:
            return await self._run_task(task, verified)
        except OtherKind as error:
            return await self._refuse(Refused(str(error)))

    async def _run_task(self, task: Task, verified: Verified | None) -> DeliveryReport:
        refused = self._refused(task, verified)  # first: no room is made for what this worker may not run
        has_room = refused is not None or await self._has_room()
        end = Cancel() if self._journal.is_canceled else retry.refusal(task, self._delivery.deliveries)
        if end is not None:
            return await self._settle(end, None)
        if self._is_stopped() or self._place.admission is Admission.BACK:
            return await self._let_go()
        if refused is not None:
            return await self._refuse(refused)
        if self._place.admission in (Admission.MISFIT, Admission.FULL):
            self._events.misfit(self._place.why)
        if self._place.admission is Admission.MISFIT:
            return await self._leave_to_others(task)
        if not has_room:
            delay = self._place.delay or neighbours.delay(task.counters.given_back + 1, self._backoff())
            return await self._go_back(Release(delay))
        outcome = await self._attempt(task)
        self._free_slot()
        return await self._conclude(task, outcome)

    def _refused(self, task: Task, verified: Verified | None) -> Refused | None:
        refused = self._with.signatures.compare(task, verified)
        if refused is None and (why := allowed.refusal(task, self._with.settings)) is not None:
            return Refused(why)
        return refused

    def _is_stopped(self) -> bool:
        return self._with.stopping.receiving.is_set() or self._with.stopping.paused

    async def _has_room(self) -> bool:
        """Wait until nothing else runs, or for what is granted to it; return whether it may start (S11)."""
        place, stopping = self._place, self._with.stopping
        if place.admission not in (Admission.ALONE, Admission.RESERVED) or self._is_stopped():
            return place.admission is Admission.START
        room: asyncio.Future[object]
        if place.admission is Admission.ALONE:
            self._events.alone()
            if not place.others:
                return place.has_grant
            room = asyncio.ensure_future(asyncio.wait(place.others))
        else:
            self._events.reserved()
            room = asyncio.ensure_future(place.grant.waited(self._with.clock) if place.grant else never())
        limit = self._with.clock.sleep_until(self._with.clock.boottime() + place.patience)
        stop = (stopping.receiving.future(), stopping.interrupted.future())
        await first_of(room, limit, self._keeper.lock_lost_event.future(), self._journal.canceled(), *stop)
        if not room.done() or room.cancelled() or not place.has_grant:
            return False
        await self._keeper.renew()  # or a cancel would be heard when a short task has run
        return not self._keeper.lock_lost_event.is_set()

    async def _refuse(self, refused: Refused) -> DeliveryReport:
        """Bury what nobody is to run; leave to others, uncharged, what only this worker does not."""
        if refused.reason is not None:
            return await self._settle(MoveToDeadLetters(refused.reason, refused.why), None)
        try:
            _ = self._delivery.task
        except MalformedTask as error:  # for whomever it was signed
            return await self._settle(MoveToDeadLetters(Reason.MALFORMED, str(error)), None)
        self._events.not_allowed(refused.why)
        delay = refused.wait or neighbours.delay(self._delivery.deliveries, self._backoff())
        return replace(await self._go_back(Release(delay)), not_allowed=refused.wait is None)

    async def _leave_to_others(self, task: Task) -> DeliveryReport:
        verdict = retry.misplaced(task, self._place.delay)
        if isinstance(verdict, MoveToDeadLetters):
            return await self._settle(verdict, None)
        return replace(await self._go_back(verdict), misfit=True)

    async def _go_back(self, verdict: Release) -> DeliveryReport:
        """Put it back uncharged, for a while: it needs room that is not here, or another worker."""
        settled = await self._settle_and_report(verdict, None)
        if settled is Settled.YES:
            self._events.released(verdict.delay)
        return DeliveryReport(task_id=self._delivery.id, verdict=verdict, settled=settled)

    async def _attempt(self, task: Task) -> Outcome:
        """Start it, wait for its end or a reason to end it, and leave nothing running."""
        try:
            running = await self._started(task)
        except StartFailed as error:
            if isinstance(error, OtherKind) and self._with.judge is retry.verdict:
                raise
            # What this machine is short of is no fault of the task: it goes back uncharged, and later (S11).
            if error.transient and not isinstance(error, Awaited):
                self._with.breaker.falls_short(str(error))
            kind = OutcomeKind.PREEMPTED if error.transient else OutcomeKind.CRASHED
            return Outcome(kind=kind, detail=f"{_NOT_STARTED}{error}", start_failed=True)
        except StatusLost as error:
            return Outcome(kind=OutcomeKind.LOCK_LOST, detail=str(error))  # it may live: left to its lease (P1)
        if running is None:
            detail = "the lease was lost" if self._keeper.lock_lost_event.is_set() else "its start took too long"
            return Outcome(kind=OutcomeKind.LOCK_LOST, detail=f"not started: {detail}")
        self._checkpoints = getattr(running, "checkpoints", None)
        self._journal.started(running, self._checkpoints)
        self._events.started()
        self._with.breaker.started()
        try:
            with self._with.looks.keeping(self._journal, self._keeper):
                outcome = await self._until_ended(running, task)
            if outcome.kind is OutcomeKind.PREEMPTED:
                await self._save_folder()
            return outcome
        finally:
            await running.close()
            self._with.breaker.ended()

    async def _save_folder(self) -> None:
        """Save the files of a task that was stopped: nothing of it runs any more, and it is still ours (S9, P8)."""
        if self._checkpoints is None or self._checkpoints.is_empty():
            return
        end = self._with.clock.sleep_until(self._save_by)
        hurry = self._with.stopping.at_once.future()
        with racing(self._checkpoints.checkpoint_folder(), self._keeper.lock_lost_event.future(), end, hurry) as waits:
            await first_done(*waits)
            if not waits[0].done():
                _log.warning("task %s: no time was left to save its files", self._delivery.id)
            elif (error := waits[0].exception()) is not None:
                if not isinstance(error, JobqError):
                    raise error
                _log.warning("task %s: its files were not saved: %s", self._delivery.id, error)

    async def _started(self, task: Task) -> Running | None:
        """Start it, however long that takes while the lease is kept.

        Returns:
            None when it has not begun and is not to begin any more: the lease was lost (P1), or it took longer than its
            time limit, or than there is time for in a stop. Nobody can say then that nothing of it lives: it is left to
            its lease, which is kept no longer.
        """
        self._deadline.move(self._keeper.deadline)
        start = self._with.runner.start(task, self._delivery, deadline=self._deadline, keeper=self._keeper)
        ends: list[Awaitable[object]] = [self._keeper.lock_lost_event.future()]
        if task.timeout is not None:
            ends.append(self._with.clock.sleep_until(self._with.clock.boottime() + task.timeout))
        with racing(start, self._with.stopping.interrupted.future(), *ends) as (starting, stopped, *reasons):
            try:
                await first_done(starting, stopped, *reasons)
                if stopped.done():
                    # A start that is let end for so long can be killed and given back for certain.
                    late = self._with.clock.sleep_until(self._with.clock.boottime() + START_SECONDS)
                    with racing(late) as lates:
                        await first_done(starting, *lates, *reasons)
            except asyncio.CancelledError:
                if starting.done() and not starting.cancelled() and starting.exception() is None:
                    await starting.result().close()  # it began in that very instant, and would be nobody's
                raise
            if not starting.done():
                starting.cancel()  # what starts it kills what may come of it
                await asyncio.wait([starting])
            return None if starting.cancelled() else starting.result()

    async def _until_ended(self, running: Running, task: Task) -> Outcome:
        clock, stopping = self._with.clock, self._with.stopping
        # The reasons to end it, the gravest first: a lost lock leaves no time for anything else, and memory that runs
        # out harms the neighbours (S11). What comes later in the list may wait for a grace.
        reasons: dict[OutcomeKind, Awaitable[object]] = {
            OutcomeKind.LOCK_LOST: self._keeper.lock_lost_event.future(),
            OutcomeKind.FAILED: running.over_limit(),
            OutcomeKind.CANCELED: self._journal.canceled(),
            OutcomeKind.PREEMPTED: stopping.interrupted.future(),
        }
        if task.timeout is not None:
            reasons[OutcomeKind.TIMED_OUT] = clock.sleep_until(clock.boottime() + task.timeout)
        with racing(running.exited(), *reasons.values()) as (end, *waits):
            await first_done(end, *waits)
            if end.done() or running.has_exited():
                return await self._own_end(running)  # what came at the same moment did not end it (P7)
            why, reason = next(pair for pair in zip(reasons, waits, strict=True) if pair[1].done())
            outcome = await self._stop(running, end, why)
        if outcome.kind is OutcomeKind.LOCK_LOST and why is not OutcomeKind.LOCK_LOST:
            return outcome  # stopped, but nobody can say that it is dead, or it was too late: the lease decides (P1)
        if why is OutcomeKind.FAILED:
            return replace(outcome, kind=why, detail=reason.result(), over_memory_limit=True)
        detail = {
            OutcomeKind.LOCK_LOST: "killed: the lease was lost",
            OutcomeKind.CANCELED: "stopped: it was canceled",
            OutcomeKind.PREEMPTED: f"stopped: {stopping.cause}",
            OutcomeKind.TIMED_OUT: f"killed after its time limit of {task.timeout or 0:g} s",
        }[why]
        return replace(outcome, kind=why, detail=detail)

    async def _own_end(self, running: Running) -> Outcome:
        """Return how it ended by itself; a signal that the worker gets in the same second, too, was meant for both."""
        outcome, clock, stopping = await running.ended(), self._with.clock, self._with.stopping
        if outcome.signal not in _STOPPED_BY and (outcome.exit_code or 0) - 128 not in _STOPPED_BY:
            return outcome
        same = clock.sleep_until(clock.boottime() + _SAME_SECONDS)
        await first_of(stopping.interrupted.future(), self._keeper.lock_lost_event.future(), same)
        if not stopping.interrupted.is_set():
            return outcome
        self._save_by = clock.boottime() + SAVE_SECONDS
        return replace(outcome, kind=OutcomeKind.PREEMPTED, detail=f"stopped: {stopping.cause}")

    async def _stop(self, running: Running, end: "asyncio.Future[None]", why: OutcomeKind) -> Outcome:
        """SIGTERM, grace, SIGKILL; SIGTERM only while the lease is ours, SIGKILL at its deadline at the latest (P6)."""
        clock, keeper = self._with.clock, self._keeper
        hurry: list[Awaitable[object]] = [self._with.stopping.at_once.future(), running.over_limit()]
        if why is OutcomeKind.LOCK_LOST:
            loss = keeper.loss
            kill_at = clock.boottime() if loss is None or loss.refused else loss.deadline
        elif why is OutcomeKind.FAILED:
            kill_at = clock.boottime()  # no grace: it could fill the memory meanwhile
        else:
            grace = self._with.stopping.grace if why is OutcomeKind.PREEMPTED else None
            kill_at = clock.boottime() + (self._with.settings.stop_grace.total_seconds() if grace is None else grace)
            hurry.append(keeper.lock_lost_event.future())
            self._save_by = kill_at + SAVE_SECONDS
        with racing(*hurry, clock.sleep_until(kill_at)) as waits:
            if kill_at > clock.boottime():
                running.terminate()
                await first_done(end, *waits)
            if not end.done():
                running.kill()
            return await running.ended()

    async def _conclude(self, task: Task, outcome: Outcome) -> DeliveryReport:
        outcome = fit_to_keep(outcome)
        if outcome.start_failed and outcome.kind is OutcomeKind.PREEMPTED and retry.may_wait(task):
            self._events.ended(outcome, self._keeper)
            again = self._backoff().delay(task.counters.given_back + 1)
            return replace(await self._go_back(Release(again)), outcome=outcome)
        verdict = self._with.judge(task, self._delivery.deliveries, outcome, self._backoff())
        if outcome.kind is OutcomeKind.SUCCEEDED:
            self._with.breaker.succeeded()
            report = await self._settle(verdict, outcome)
            if report.settled is Settled.YES:
                self._with.signatures.succeeded(task)
                self._events.ended(outcome, self._keeper)  # as done only once the backend has acknowledged it (S5)
            return report
        self._events.ended(outcome, self._keeper)
        could_not_start = outcome.start_failed and outcome.kind is OutcomeKind.CRASHED
        # A caller in front of it (`jobq run`) has a judge of his own, and would rather see it end.
        is_asked = could_not_start and self._with.judge is retry.verdict
        if is_asked and self._with.breaker.blames_for_start(task, outcome.detail.removeprefix(_NOT_STARTED)):
            again = self._backoff().delay(task.counters.given_back + 1)
            is_over = self._with.breaker.tripped.is_set()  # then it is for another worker, and at once
            return replace(await self._go_back(Release(timedelta(0) if is_over else again)), outcome=outcome)
        if could_not_start or outcome.kind in (OutcomeKind.FAILED, OutcomeKind.TIMED_OUT):
            verdict = await self._after_the_breaker(task, outcome.detail, verdict)
        return await self._settle(verdict, outcome)

    async def _after_the_breaker(self, task: Task, detail: str, verdict: Verdict) -> Verdict:
        failed = self._with.clock.boottime()
        waits = self._with.breaker.blames_machine(task), self._keeper.lock_lost_event.future()
        with racing(*waits, self._with.clock.sleep_until(failed + _SHOWN_AFTER_SECONDS)) as (judging, lost, shown):
            await first_done(judging, lost, shown)
            if not judging.done() and not lost.done():
                self._journal.held = f"failed ({detail}); kept until it is clear whether this machine is to blame"
                self._keeper.nudge()
                await first_done(judging, lost)
            if not judging.done():
                return Leave()
            if judging.result():
                return retry.unspent(task)
        if isinstance(verdict, Requeue):
            held = timedelta(seconds=self._with.clock.boottime() - failed)
            return Requeue(verdict.counters, max(timedelta(0), verdict.delay - held))
        return verdict

    async def _settle(self, verdict: Verdict, outcome: Outcome | None) -> DeliveryReport:
        verdict = self._journal.judged(verdict)
        settled = await self._settle_and_report(verdict, outcome)
        self._events.settled(verdict, settled)
        if settled is Settled.YES and isinstance(verdict, Complete | Cancel) and self._checkpoints is not None:
            await self._checkpoints.forget()
        return DeliveryReport(task_id=self._delivery.id, verdict=verdict, settled=settled, outcome=outcome)

    async def _settle_and_report(self, verdict: Verdict, outcome: Outcome | None) -> Settled:
        return await settle(
            self._delivery,
            self._keeper,
            verdict,
            outcome,
            capabilities=self._with.backend.capabilities,
            clock=self._with.clock,
            attempt=STOPPING_ATTEMPT_SECONDS if self._with.stopping.interrupted.is_set() else None,
            stopping=self._with.stopping,
            record=lambda settled: self._journal.record(settled, outcome),
            outage=self._with.outage,
        )

    async def _let_go(self) -> DeliveryReport:
        """Give an unstarted delivery back, if it is still ours; else it comes back by itself."""
        settled = await give_back(
            self._delivery,
            self._keeper,
            capabilities=self._with.backend.capabilities,
            clock=self._with.clock,
            stopping=self._with.stopping,
            outage=self._with.outage,
        )
        if settled is Settled.YES:
            self._events.released()
        return DeliveryReport(task_id=self._delivery.id, verdict=None, settled=settled)

    def _backoff(self) -> Backoff:
        settings = self._with.settings
        return Backoff(first=settings.backoff, longest=settings.backoff_max, jitter=self._with.chance)

    def _free_slot(self) -> None:
        if self._slot_taken:
            self._slot_taken = False
            if self._place.grant is not None:
                self._place.grant.over()
            self._with.on_slot_free()
