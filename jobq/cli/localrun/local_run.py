"""The work of `jobq run`: feed and worker side by side on one queue, until nothing is left of either."""

import asyncio
import time
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from jobq.backend import Backend, Delivery
from jobq.cli.display.live_view import LiveView, beside
from jobq.cli.display.passthrough_log import PassthroughLog
from jobq.cli.display.time_left import TimeLeft
from jobq.cli.localrun.input_feed import Feed, line_of
from jobq.cli.localrun.job_handling import JobHandling
from jobq.cli.localrun.job_output import JobOutput
from jobq.cli.localrun.job_runner import JobRunner
from jobq.cli.localrun.joblog import Finished, JobLog
from jobq.errors import BackendUnavailable, JobqError
from jobq.events import Events
from jobq.formats import durations
from jobq.resources.offer import Offer
from jobq.run.attempt.retry import Backoff, Verdict, is_unspent, verdict_of_caller
from jobq.run.attempt.settle import Settled
from jobq.run.attempt.supervisor import DeliveryReport
from jobq.run.process.usage import UsageSampler
from jobq.run.stopping import Stopping
from jobq.run.worker.start_gate import StartGate
from jobq.run.worker.worker import Worker
from jobq.settings import Settings
from jobq.settlement import Complete, MoveToDeadLetters
from jobq.task import Outcome, Task
from jobq.telemetry.setup import Adapt

if TYPE_CHECKING:
    from jobq.cli.localrun.halting import Halt

LISTED: Final = 10  # how many failures are shown one by one
_LOOK_SECONDS: Final = 1.0  # how often the queue is counted, at least, when it should soon be done
_HURRIED_FLUSH_SECONDS: Final = 2.0
_READER_GONE: Final = 141  # what a shell says of a program that SIGPIPE ended
_CODE_OF: Final = {"SIGINT": 130, "SIGTERM": 143, "SIGHUP": 143}


class LocalRun:
    """Works a queue in this process and counts.

    Args:
        backend: an entered backend.
        settings: of the worker; its idle timeout must outlast any input.
        feed: brings in the input; None = all of it is queued.
        joblog: gets each finished task.
        handling: what is done with what they print, and when it ends early.
        offer: what its tasks can have of the machine.

    Attributes:
        done: tasks that succeeded here.
        failed: tasks that were given up here, and those whose failures ended it early: these are left too.
        failed_earlier: dead letters that were there before.
        left: tasks that are not finished.
        failures: the first of the failed.
        error: what was wrong with the input.
        stopped_by: the signal that ended it early.
        halted_by: the condition that ended it early.
        reader_gone: whether it ended early since nobody reads its output any more.
    """

    def __init__(
        self,
        backend: Backend,
        settings: Settings,
        feed: Feed | None,
        joblog: JobLog | None,
        handling: JobHandling,
        offer: Offer,
    ) -> None:
        self._offer = offer
        self.done = 0
        self.failed = 0
        self.failed_earlier = 0
        self.left = 0
        self.failures: list[Finished] = []
        self.error: JobqError | None = None
        self.stopped_by: str | None = None
        self._backend = backend
        # The lists say what comes out of queues; these commands are the caller's own.
        self._settings = settings.copied({"allow_commands": (), "allow_calls": (), "require_signed": "off"})
        self._feed = feed
        self._joblog = joblog
        self._handling = handling
        self.halted_by: Halt | None = None
        self.reader_gone = False
        self._judged = Counter[type[Verdict]]()
        self._output: JobOutput | None = None
        self._stopping = Stopping()
        self._changed = asyncio.Event()
        self._left_at_start = 0
        self._time_left = TimeLeft()

    @property
    def input_is_queued(self) -> bool:
        """Whether nothing of the input is missing in the queue."""
        return self._feed is None or self._feed.is_done

    @property
    def lost_bytes(self) -> int:
        """How many bytes of output were lost, since they could not be kept until they were to be printed."""
        return 0 if self._output is None else self._output.lost

    @property
    def exit_code(self) -> int:
        """Whether all of it was done, as architecture 12."""
        is_whole = not self.left and self.input_is_queued
        if self.stopped_by is not None and not is_whole:
            return _CODE_OF.get(self.stopped_by, 143)
        if self.reader_gone and not is_whole:
            return _READER_GONE
        if self.error is not None:
            return self.error.exit_code
        if self.lost_bytes:
            return 1
        if self.halted_by is not None and self.halted_by.why == "success":
            return 0  # as it was asked for, whatever else had failed or is left
        return 1 if self.failed or self.failed_earlier or not is_whole else 0

    def status(self) -> str:
        """Return one line of progress."""
        ended = self.done + self.failed
        total = max(self._left_at_start + (self._feed.queued if self._feed else 0), ended)
        more, left = "+", ""
        if self.input_is_queued:
            self._time_left.note(time.monotonic(), total - ended)
            more, left = "", self._time_left.text()
        return f"{ended} of {total}{more}" + (f", {self.failed} failed" if self.failed else "") + left

    async def run(self, screen: PassthroughLog, events: Events, adapt: Adapt) -> None:
        """Work until all is done, or until asked to stop.

        Args:
            screen: shows it.
            events: gets each transition.
            adapt: makes the worker's runner of something else from the runner of commands.
        """
        stats = await self._backend.stats()
        self.failed_earlier = stats.dead or 0
        self._left_at_start = await self._count()
        if stats.leased:
            lease = self._settings.visibility_timeout or self._backend.capabilities.default_lease
            screen.say(
                f"{stats.leased} tasks are leased to an interrupted run, or to one that works on this file now; they"
                f" start again as soon as that is seen to be dead, or in {durations.show(lease)}, unless it renews"
            )
        loop = asyncio.get_running_loop()
        screen.on_reader_gone = lambda: loop.call_soon_threadsafe(self._end_unread)
        sampler = UsageSampler(self._settings.memory_limit)
        output = self._output = self._handling.output_of(screen, self._line)
        if self._feed is not None and output is not None:
            self._feed.on_numbers = output.expect
        worker = Worker(
            self._backend,
            self._settings,
            events=events,
            adapt=lambda commands: JobRunner(adapt(commands)),
            on_line=screen.on_line,
            on_bytes=screen.on_bytes if output is None else output.on_bytes,
            stopping=self._stopping,
            judge=self._judge,
            on_report=self._on_report,
            sampler=sampler,
            gate=StartGate.of(
                self._settings, () if output is None else (lambda: output.too_full(is_busy=bool(sampler.watched)),)
            ),
            offer=self._offer,
            idle_share=0.0,  # all of the input is to be run, and here: nothing that fits is kept waiting
        )
        slots = max(0, self._settings.num_workers)
        view = LiveView(screen.show, sampler=sampler, slots=slots, below=lambda _: [self.status()])
        feeding = asyncio.create_task(self._bring_in(), name="feed")
        try:
            async with beside(*([view.run()] if screen.is_live else []), *([output.run()] if output else [])):
                report = await worker.run()
        finally:
            screen.on_reader_gone = lambda: None  # the loop will be gone, too
            feeding.cancel()
            await asyncio.wait([feeding])
        self.stopped_by = report.stopped_by
        self.left = await self._count()
        if self.stopped_by is not None:
            screen.flush_seconds = _HURRIED_FLUSH_SECONDS
        if output is not None:
            await self._print_rest(output, screen)
        if not feeding.cancelled() and (fault := feeding.exception()) is not None:
            raise fault

    def _end_unread(self) -> None:
        self.reader_gone = True
        self._stopping.stop("nobody reads its output any more")

    async def _bring_in(self) -> None:
        try:
            if self._feed is not None:
                await self._feed.run()
            await self._until_done()
        except JobqError as error:
            self.error = error
        finally:
            self._stopping.drain("all is done" if self.input_is_queued else "the input cannot be read on")

    async def _until_done(self) -> None:
        while True:
            seen, left = self.done + self.failed, 1
            with suppress(BackendUnavailable):
                left = await self._count()
            if not left:
                return
            with suppress(TimeoutError):  # then somebody else has finished some, or nobody knows
                async with asyncio.timeout(_LOOK_SECONDS):
                    while self.done + self.failed < seen + left:
                        self._changed.clear()
                        await self._changed.wait()

    async def _print_rest(self, output: JobOutput, screen: PassthroughLog) -> None:
        try:
            async with asyncio.timeout(screen.flush_seconds if self.stopped_by is not None else None):
                await output.finish()
        except TimeoutError:
            screen.say("what jobs have printed is not all shown: the reader of this output is too slow")

    async def _count(self) -> int:
        stats = await self._backend.stats()
        return stats.unfinished

    def _on_report(self, delivery: Delivery, report: DeliveryReport) -> None:
        is_last = report.settled is Settled.YES and isinstance(report.verdict, Complete | MoveToDeadLetters)
        if self._output is not None:
            self._output.ended(report.task_id, is_last=is_last)
        if report.settled is not Settled.YES:
            return
        # What tripped the breaker (--max-consecutive-failures) is left for --resume, and yet it is what went wrong.
        tripped = report.verdict is not None and is_unspent(delivery.task, report.outcome, report.verdict)
        if not tripped and not is_last:
            return
        failed = tripped or isinstance(report.verdict, MoveToDeadLetters)
        self.failed += failed
        self.done += not failed
        self._changed.set()
        if self._joblog is not None or (failed and len(self.failures) < LISTED):
            finished = Finished.of(delivery, report, failed=failed, line=self._line(delivery.id), now=time.time())
            if self._joblog is not None:
                self._joblog.add(finished)
            if failed and len(self.failures) < LISTED:
                self.failures.append(finished)

    def _judge(self, task: Task, attempt: int, outcome: Outcome, backoff: Backoff) -> Verdict:
        """Decide what becomes of a job, and whether the run ends early."""
        verdict = verdict_of_caller(task, attempt, outcome, backoff)
        if self._handling.halt is not None:
            self._judged[type(verdict)] += 1
            self._halt(self._handling.halt)  # before the next one starts in its slot
        return verdict

    def _halt(self, halt: "Halt") -> None:
        done, failed = self._judged[Complete], self._judged[MoveToDeadLetters]
        if self.halted_by is not None or not halt.is_reached(done, failed):
            return
        self.halted_by = halt
        if halt.when == "now":
            self._stopping.stop(str(halt))
        else:
            self._stopping.drain(str(halt))

    def _line(self, id_: str) -> int:
        own = self._feed.line_of_own.get(id_) if self._feed is not None else None
        return own or line_of(id_) or 0
