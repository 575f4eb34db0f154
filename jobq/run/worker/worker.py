"""The worker: receive no more than it can start, run each under its lease, stop when asked or when nothing is left."""

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import timedelta
from typing import Literal

from jobq.backend import UNKNOWN_ID, Backend, Delivery, Prepares, PutsOff, TellsMisplaced
from jobq.clock import Clock, Moment, clock_of
from jobq.events import Events
from jobq.flag import Flag
from jobq.formats import durations
from jobq.pausing import Pause
from jobq.racing import first_done, first_error, first_of, racing
from jobq.resources.offer import Offer
from jobq.run.attempt.allowed import MOST_REFUSED
from jobq.run.attempt.checkpoints import Archives, archives_of
from jobq.run.attempt.neighbours import Admission, Neighbours, Placement
from jobq.run.attempt.retry import Judge, verdict
from jobq.run.attempt.runner import CommandRunner, OnBytes, OnLine, Runner
from jobq.run.attempt.settle import Settled
from jobq.run.attempt.supervisor import DeliveryReport, Supervisor
from jobq.run.attempt.task_grants import IDLE_SHARE, TaskGrants
from jobq.run.circuit_breaker import Breaker
from jobq.run.process.environment import own_environment
from jobq.run.process.log_files import nowhere
from jobq.run.process.log_upload import LOG_SECONDS, LOG_STOPPING_SECONDS, Sinks, sinks_of
from jobq.run.process.spawner import Spawner
from jobq.run.process.usage import UsageSampler
from jobq.run.spawn.choose_spawner import keep_clock, spawner_for
from jobq.run.stopping import Stopping
from jobq.run.worker.empty_queue import EmptyQueue
from jobq.run.worker.host import WorkerHost
from jobq.run.worker.leftovers import Leftovers
from jobq.run.worker.offered import offered
from jobq.run.worker.preemption import PreemptionWatch
from jobq.run.worker.presence_reports import PresenceReports, WorkerLook
from jobq.run.worker.receive import Receiving
from jobq.run.worker.signals import SignalHeard, heard_by
from jobq.run.worker.start_gate import LOOK_SECONDS, StartGate
from jobq.run.worker.worker_report import ReportCounter, WorkerReport
from jobq.selecting import selecting
from jobq.settings import Settings
from jobq.settlement import Release, Requeue

_log = logging.getLogger(__name__)


class Worker:
    """Works a queue with N slots.

    Args:
        backend: an entered backend.
        settings: slots, leases, limits.
        events: where each transition is published.
        on_line: receives the tasks' output: task id, stream, line.
        on_bytes: for a stream that is named here, receives its bytes in place of `on_line`: task id, whole lines.
        spawner: starts commands; through a guardian by default, where there can be one.
        runner: runs something else than processes; then `spawner` and `on_line` are not used.
        adapt: makes the runner of something else that is run as processes from the runner of commands.
        clock: for leases.
        stopping: to stop it by other means than signals.
        environment: what tasks inherit; os.environ by default.
        max_tasks: how many deliveries to take before it ends; None = no limit.
        judge: decides what becomes of a task after an attempt.
        on_report: called with what became of each delivery, once that is settled; must not block.
        sampler: measures what commands use.
        host: the machine that it runs on.
        gate: holds new tasks back; as the settings say by default.
        offer: what it offers of its machine; as the settings say by default.
        idle_share: of its life, that the machine may idle to make room for a task that has none.
    """

    def __init__(
        self,
        backend: Backend,
        settings: Settings,
        *,
        events: Events | None = None,
        on_line: OnLine = lambda _task, _stream, _line: None,
        on_bytes: Mapping[str, OnBytes] | None = None,
        spawner: Spawner | None = None,
        runner: Runner | None = None,
        adapt: Callable[[CommandRunner], Runner] = lambda commands: commands,
        clock: Clock | None = None,
        stopping: Stopping | None = None,
        environment: Mapping[str, str] | None = None,
        max_tasks: int | None = None,
        judge: Judge = verdict,
        on_report: Callable[[Delivery, DeliveryReport], None] = lambda _delivery, _report: None,
        sampler: UsageSampler | None = None,
        host: WorkerHost | None = None,
        gate: StartGate | None = None,
        offer: Offer | None = None,
        idle_share: float = IDLE_SHARE,
    ) -> None:
        self._backend = backend
        self._settings = settings
        self._events = events or Events()
        self._clock = clock or clock_of(shares_machine=backend.capabilities.shares_machine)
        self._stopping = stopping or Stopping()
        self._breaker = Breaker(settings.max_consecutive_failures, self._clock)
        self._sampler = sampler or UsageSampler(settings.memory_limit)
        self._host = host or WorkerHost()
        self._folder = self._host.task_folder()
        self._line = self._host.task_line(self._folder)
        self._archives: Archives | None = None
        self._gate = gate or StartGate.of(settings)
        self._held_back = False
        self._sinks: Sinks = lambda _id, _attempt: nowhere()
        self._spawner = spawner
        self._own_runner = runner
        self._adapt = adapt
        self._on_line = on_line
        self._on_bytes = on_bytes
        self._environment = dict(own_environment() if environment is None else environment)  # read once
        self._left = math.inf if max_tasks is None else max_tasks
        self._judge = judge
        self._on_report = on_report
        self._busy = 0
        self._offer = offer
        self._slot_freed = Flag()
        self._idle_share = idle_share
        self._grants = self._grants_of(offer or Offer())
        self._attempts: set[asyncio.Task[None]] = set()
        self._neighbours = Neighbours(self._clock)
        self._alone: asyncio.Task[None] | None = None  # nothing is taken beside it
        self._unguarded = False
        self._has_started = False
        self._tally = ReportCounter()
        self._leftovers = Leftovers(backend, self._clock)
        self._empty = EmptyQueue(settings.idle_timeout, self._clock, self._leftovers, self._attempts, self._say_paused)

    async def run(self) -> WorkerReport:
        """Work until asked to stop, until nothing is left, or until the time limit.

        Raises:
            ConfigurationError, QueueNotFound, BackendUnavailable: the queue cannot be used at all.
        """
        async with AsyncExitStack() as stack:
            stack.callback(self._folder.close)
            stack.callback(self._line.close)
            if self._offer is None:
                self._settings, self._offer = await offered(self._settings, self._environment)
            self._grants = self._grants_of(self._offer)
            if self._own_runner is None:
                self._archives = await stack.enter_async_context(archives_of(self._backend, self._settings))
                self._spawner = await stack.enter_async_context(self._spawner or spawner_for(self._settings))
                keep_clock(self._spawner, self._clock)
            heard = stack.enter_context(heard_by(self._stopping))
            if self._own_runner is None:
                # Left before the signals are: a stop is heard while logs are sent.
                self._sinks = await stack.enter_async_context(
                    sinks_of(self._backend.name, self._settings, self._patience_for_logs)
                )
            return await self._run(heard)

    def _grants_of(self, offer: Offer) -> TaskGrants:
        return TaskGrants(offer, self._clock, self._idle_share, chance=self._host.chance, on_freed=self._slot_freed.set)

    async def _run(self, heard: SignalHeard) -> WorkerReport:
        supervisor = self._supervisor()
        supervisor.check()
        if self._settings.guardian_restarted:
            # What the predecessor left leased comes back by then: until it has, an empty queue is not finished.
            longest = self._backend.capabilities.longest_lease(supervisor.lease)
            self._empty.expect(UNKNOWN_ID, longest.total_seconds())
        presence = PresenceReports(self._backend, self._clock, self._looked_at)
        try:
            async with asyncio.TaskGroup() as group:
                helpers = self._helpers(group, presence)
                try:
                    await self._work(supervisor, group)
                finally:
                    for helper in helpers:
                        helper.cancel()
        except BaseExceptionGroup as errors:
            # One fault ends the worker, with a plain error; its tasks were stopped by leaving the group.
            raise first_error(errors) from errors
        finally:
            supervisor.close()
            if not self._stopping.at_once.is_set():
                await presence.stop()
        tripped = self._breaker.tripped.is_set()
        misplaced = self._backend.misplaced if isinstance(self._backend, TellsMisplaced) else ""
        report = self._tally.report(
            stopped_by=heard.stopped_by, tripped=tripped, unguarded=self._unguarded, misplaced=bool(misplaced)
        )
        asks = not self._stopping.interrupted.is_set()
        left = await self._leftovers.described() if asks else ""  # which who may only claim is not told
        if misfits := self._grants.told_misfits() or (asks and await self._leftovers.misfits(self._grants.offer)):
            self._emit("worker.misfits", logging.WARNING, detail=misfits)
        counts = {name: getattr(report, name) for name in WorkerReport.__annotations__}
        ends = [f"left in the queue: {left}" if left else "", misplaced]
        self._emit("worker.stopped", **counts, detail="; ".join(filter(None, ends)) or None)
        return report

    def _helpers(self, group: asyncio.TaskGroup, presence: PresenceReports) -> "list[asyncio.Task[None]]":
        """Start what goes on beside the work, for as long as that does."""
        helpers = [
            group.create_task(self._stop_when_tripped(), name="breaker"),
            group.create_task(self._sampler.run(), name="usage"),
        ]
        if hasattr(self._backend, "observations"):  # jobq.journal.observations.Observed
            helpers.append(group.create_task(presence.run(), name="presence"))
        if isinstance(self._backend, Prepares):
            helpers.append(group.create_task(self._prepare(self._backend), name="prepare"))
        if self._leftovers.hold_as(getattr(self._spawner, "holder", None)):
            helpers.append(group.create_task(self._leftovers.take_from_the_dead(), name="dead workers"))
        if (lost := getattr(self._spawner, "lost", None)) is not None:
            helpers.append(group.create_task(self._stop_without_guardian(lost), name="guardian"))
        if self._settings.time_limit is not None:
            helpers.append(group.create_task(self._drain_at(self._settings.time_limit), name="time limit"))
        if self._settings.scheduled_events != "off":
            helpers.append(group.create_task(self._watch_preemption(), name="preemption"))
        return helpers

    def _supervisor(self) -> Supervisor:
        return Supervisor(
            backend=self._backend,
            runner=self._own_runner or self._process_runner(),
            settings=self._settings,
            clock=self._clock,
            events=self._events,
            stopping=self._stopping,
            breaker=self._breaker,
            on_slot_free=self._free_slot,
            judge=self._judge,
            chance=self._host.chance,
        )

    def _patience_told(self) -> str | None:
        stopping = self._stopping
        if not self._attempts or stopping.at_once.is_set() or not stopping.working.is_set():
            return None
        told = f"what runs has {durations.show(self._settings.stop_grace)} to end, and is given back"
        return told + ("; a second Ctrl-C ends it at once" if stopping.cause.endswith("SIGINT") else "")

    def _patience_for_logs(self) -> float:
        return LOG_STOPPING_SECONDS if self._stopping.interrupted.is_set() else LOG_SECONDS

    def _process_runner(self) -> Runner:
        assert self._spawner is not None
        commands = CommandRunner(
            self._spawner,
            queue_name=self._backend.name,
            settings=self._settings,
            environment=self._environment,
            on_line=self._on_line,
            on_bytes=self._on_bytes,
            sampler=self._sampler,
            folder=self._folder,
            line=self._line,
            archives=self._archives,
            sinks=self._sinks,
            oom=self._host.oom_counter(),
            grants=self._grants,
            output_reader=self._host.output_reader,
        )
        return self._adapt(commands)

    async def _work(self, supervisor: Supervisor, group: asyncio.TaskGroup) -> None:
        """Receive and start until asked to stop or nothing is left; then see the attempts to their end."""
        receiving = Receiving(
            self._backend,
            self._receive,
            clock=self._clock,
            stopping=self._stopping,
            events=self._events,
            free=lambda: int(min(self._free(), self._left, self._gate.most_at_once or math.inf)),
            attempts=self._attempts,
            expected_until=lambda: self._empty.expected_until,
            chance=self._host.chance,
            on_lost=self._empty.doubt,
            outage=supervisor.outage,
            outdated=lambda: self._grants.room_grows() if selecting(self._backend) else None,
        )
        try:
            while self._left and not self._stopping.receiving.is_set():
                if await self._had_to_wait():
                    continue
                since = Moment.of(self._clock)  # rule 1: before the request that grants the leases
                deliveries = await receiving.receive(supervisor.lease, self._empty.wait())
                self._expect_what_was_put_off()
                if deliveries is None:
                    continue  # the wait was cut short, so nothing is known of the queue
                self._say_started(supervisor)
                is_idle = not self._busy
                for delivery, place in self._neighbours.places(deliveries, is_idle=is_idle):
                    self._start(supervisor, delivery, since, group, place)
                is_paused = bool(self._attempts and not deliveries and await receiving.paused(None))
                self._breaker.queue_is_empty(empty=not (deliveries or is_paused))
                is_over = await self._empty.is_worked_off(receiving, empty=not deliveries, looked_at=since.boottime)
                if is_over and not await self._has_more_room():
                    break
            self._breaker.queue_is_empty(empty=True)  # nothing more is taken: no failure has to wait for company
            if self._attempts:  # the last of max_tasks: only what has started is not given back
                await first_of(asyncio.wait(self._attempts), self._stopping.receiving.future())
        except asyncio.CancelledError:
            # The caller wants it to end, and must not have to wait for tasks that run for days.
            self._stopping.now("the worker was cancelled")
            raise
        finally:
            was_asked = self._stopping.receiving.is_set()
            self._stopping.drain("nothing is left to do")
            self._breaker.queue_is_empty(empty=True)  # also when an error ended the loop
            if self._attempts or was_asked:
                await self._see_to_the_end()

    def _expect_what_was_put_off(self) -> None:
        """Wait for what the queue has put off: one where a service is away is not worked off."""
        if isinstance(self._backend, PutsOff):
            for task_id, seconds in self._backend.take_put_off().items():
                self._empty.expect(task_id, seconds)

    def _say_started(self, supervisor: Supervisor) -> None:
        """Say so once the queue has answered: one that is missing ends a worker that has never started."""
        if self._has_started:
            return
        self._has_started = True
        self._emit(
            "worker.started",
            slots=self._settings.num_workers,
            offers=str(self._grants.offer) or None,
            lease_s=supervisor.lease.total_seconds(),
            containment=getattr(self._spawner, "contained_by", "off"),
        )

    def _looked_at(self) -> WorkerLook:
        slots, stopping = self._settings.num_workers, self._stopping
        state = "draining" if stopping.receiving.is_set() else "paused" if stopping.paused else "working"
        return WorkerLook(state, slots, self._busy, self._tally.counts("succeeded", "failed", "lost", "given_back"))

    def _say_paused(self, mark: Pause | None) -> None:
        if mark is None:
            self._emit("queue.resumed")
        else:
            self._emit("queue.paused", by=mark.by, detail=str(mark))

    async def _receive(self, max_tasks: int, lease: timedelta, wait: timedelta) -> list[Delivery]:
        room = self._grants.room(may_reserve=math.isinf(self._left))
        return await self._leftovers.receive(max_tasks, lease, wait, room)

    async def _had_to_wait(self) -> bool:
        """Wait where nothing can be taken now, for whatever may change that; return whether it was so."""
        if self._stopping.paused:
            self._breaker.queue_is_empty(empty=True)  # nothing is taken for now: what is held is settled
            await first_of(self._stopping.resumed.future(), self._stopping.receiving.future())
        elif self._alone is not None:
            self._breaker.queue_is_empty(empty=True)  # as above
            await self._or_stop(asyncio.wait([self._alone]))
        elif not self._free():
            self._slot_freed.clear()
            await self._or_stop(self._slot_freed.future())
        elif (room := self._grants.room_to_come()) is not None:
            self._breaker.queue_is_empty(empty=True)  # as above
            await self._or_stop(room)
        elif self._breaker.pause_until > (now := self._clock.boottime()):
            self._say_held_back(self._breaker.shortage)
            self._breaker.queue_is_empty(empty=True)  # as above
            await self._or_stop(self._clock.sleep_until(self._breaker.pause_until))
        elif why := self._gate.closed_by():
            self._say_held_back(why)
            self._breaker.queue_is_empty(empty=True)  # as above
            await self._or_stop(self._clock.sleep_until(now + LOOK_SECONDS))
        else:
            self._held_back = False
            return False
        return True

    def _say_held_back(self, why: str) -> None:
        """Say so once each time, louder where nothing runs at all."""
        if not self._held_back:
            self._held_back = True
            self._emit("worker.held_back", logging.INFO if self._attempts else logging.WARNING, detail=why)

    async def _see_to_the_end(self) -> None:
        self._emit(
            "worker.draining", cause=self._stopping.cause, running=len(self._attempts), detail=self._patience_told()
        )
        if not self._attempts:
            return
        try:
            await asyncio.wait(self._attempts)
        except asyncio.CancelledError:  # while it drains or stops: as above
            self._stopping.now("the worker was cancelled")
            if self._attempts:
                await asyncio.wait(self._attempts)
            raise

    def _start(
        self, supervisor: Supervisor, delivery: Delivery, since: Moment, group: asyncio.TaskGroup, place: Placement
    ) -> None:
        place = self._grants.place(delivery, place, may_reserve=math.isinf(self._left))
        self._busy += 1
        self._left -= place.admission in (Admission.START, Admission.ALONE)
        self._empty.came(delivery.id)
        place = replace(place, others=frozenset(self._attempts))
        attempt = group.create_task(self._carry_through(supervisor, delivery, since, place), name=f"task {delivery.id}")
        if place.admission is Admission.ALONE:
            self._alone = attempt
        self._attempts.add(attempt)
        attempt.add_done_callback(self._ended)

    def _ended(self, attempt: "asyncio.Task[None]") -> None:
        self._attempts.discard(attempt)
        if attempt is self._alone:
            self._alone = None
            self._neighbours.have_room()
        self._empty.attempt_ended()

    async def _carry_through(self, supervisor: Supervisor, delivery: Delivery, since: Moment, place: Placement) -> None:
        # What nobody settled comes back; it may be the only task.
        back_in = self._backend.capabilities.longest_lease(supervisor.lease).total_seconds()
        try:
            report = await supervisor.execute(delivery, since, place)
        except Exception:  # noqa: BLE001 - logged with its traceback
            # A fault of ours in one attempt harms no other (S11); its lease runs out, and its crash is counted.
            _log.exception("task %s: internal error; it will be delivered again", delivery.id)
            self._tally.fault()
            self._empty.expect(delivery.id, back_in)
        else:
            self._tally.count(report)
            self._on_report(delivery, report)
            if isinstance(report.verdict, Requeue | Release):
                delay = report.verdict.delay.total_seconds()
                # What was lost may have been the answer, and the task is hidden for its delay all the same.
                back_in = {Settled.YES: delay, Settled.UNKNOWN: max(back_in, delay)}.get(report.settled, back_in)
            if self._tally.is_misplaced:
                self._stopping.drain(  # what runs is allowed, and is not to pay for what waits
                    f"{MOST_REFUSED} different tasks in a row were none that it may run (task.not_allowed says why of"
                    " each): they wait for another worker (one with a callback, or JOBQ_ALLOW_COMMANDS,"
                    " JOBQ_ALLOW_CALLS, JOBQ_TRUSTED_KEYS)"
                )
            is_others = report.not_allowed or report.misfit  # not waited for: it would come again for ever
            if report.settled is not Settled.YES or (isinstance(report.verdict, Requeue | Release) and not is_others):
                self._empty.expect(report.task_id, back_in)

    async def _has_more_room(self) -> bool:
        """Return whether there is room for more than was asked for last, or soon, unless it is to stop by then."""
        if selecting(self._backend) is None:
            return False
        with racing(self._grants.is_freed(), self._stopping.receiving.future()) as futures:
            await first_done(*futures)
            return futures[0].done() and bool(futures[0].result())

    def _free_slot(self) -> None:
        self._busy -= 1
        self._slot_freed.set()

    def _free(self) -> int:
        """Return how many tasks may be taken."""
        if self._grants.offer.counts_slots:
            return max(0, self._grants.free_slots - (self._busy - self._grants.held))  # what goes back is not back yet
        return self._settings.num_workers - self._busy

    async def _or_stop(self, wait: Awaitable[object]) -> None:
        reasons = (self._stopping.receiving, self._stopping.interrupted)  # a pause does not wait for a slot either
        await first_of(wait, *(reason.future() for reason in reasons))

    async def _stop_when_tripped(self) -> None:
        await self._breaker.tripped.wait()
        breaker = self._breaker
        self._emit("worker.breaker_tripped", logging.ERROR, failures=breaker.failures, detail=breaker.cause)
        self._stopping.stop(breaker.cause)

    async def _stop_without_guardian(self, lost: asyncio.Event) -> None:
        """Take nothing more: it could not be started, and below a watcher this process is killed in a moment (S11)."""
        await lost.wait()
        self._unguarded = True
        self._stopping.stop("the guardian is gone")

    async def _prepare(self, backend: Prepares) -> None:
        try:
            await backend.prepare()
        except Exception:  # noqa: BLE001 - what is missing is no reason to end the worker, nor what runs there (S11, L4)
            _log.exception("whether the queue has all that it needs is not known")

    async def _watch_preemption(self) -> None:
        mode: Literal["auto", "on"] = "on" if self._settings.scheduled_events == "on" else "auto"
        try:
            await PreemptionWatch(self._stopping, self._events, url=self._settings.imds_url, mode=mode).run()
        except Exception:  # noqa: BLE001 - a notice less is no reason to end the worker (L4); SIGTERM still comes
            _log.exception("notices of preemption are no longer watched")

    async def _drain_at(self, limit: timedelta) -> None:
        await self._clock.sleep_until(self._clock.boottime() + limit.total_seconds())
        self._stopping.drain("the time limit was reached")

    def _emit(self, name: str, level: int = logging.INFO, **fields: object) -> None:
        self._events.emit(name, level, queue=self._backend.name, **fields)
