"""The work of `jobq run`: feed and worker side by side on one queue, until nothing is left of either."""

import asyncio
import time
from contextlib import nullcontext, suppress
from typing import Final

from jobq.backend import Backend, Delivery
from jobq.cli.display.live_view import LiveView, beside
from jobq.cli.display.passthrough_log import PassthroughLog
from jobq.cli.display.time_left import TimeLeft
from jobq.cli.localrun.input_feed import Feed, line_of
from jobq.cli.localrun.joblog import Finished, JobLog
from jobq.errors import BackendUnavailable, JobqError
from jobq.events import Events
from jobq.formats import durations
from jobq.run.attempt.retry import is_unspent, verdict_of_caller
from jobq.run.attempt.settle import Settled
from jobq.run.attempt.supervisor import DeliveryReport
from jobq.run.process.usage import UsageSampler
from jobq.run.stopping import Stopping
from jobq.run.worker.worker import Worker
from jobq.settings import Settings
from jobq.settlement import Complete, MoveToDeadLetters
from jobq.telemetry.setup import Adapt

LISTED: Final = 10  # how many failures are shown one by one
_LOOK_SECONDS: Final = 1.0  # how often the queue is counted, at least, when it should soon be done
_HURRIED_FLUSH_SECONDS: Final = 2.0
_CODE_OF: Final = {"SIGINT": 130, "SIGTERM": 143, "SIGHUP": 143}


class LocalRun:
    """Works a queue in this process and counts.

    Args:
        backend: an entered backend.
        settings: of the worker; its idle timeout must outlast any input.
        feed: brings in the input; None = all of it is queued.
        joblog: gets each finished task.

    Attributes:
        done: tasks that succeeded here.
        failed: tasks that were given up here, and those whose failures ended it early: these are left too.
        failed_earlier: dead letters that were there before.
        left: tasks that are not finished.
        failures: the first of the failed.
        error: what was wrong with the input.
        stopped_by: the signal that ended it early.
    """

    def __init__(self, backend: Backend, settings: Settings, feed: Feed | None, joblog: JobLog | None) -> None:
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
        self._stopping = Stopping()
        self._changed = asyncio.Event()
        self._left_at_start = 0
        self._time_left = TimeLeft()

    @property
    def input_is_queued(self) -> bool:
        """Whether nothing of the input is missing in the queue."""
        return self._feed is None or self._feed.is_done

    @property
    def exit_code(self) -> int:
        """Whether all of it was done, as architecture 12."""
        is_whole = not self.left and self.input_is_queued
        if self.stopped_by is not None and not is_whole:
            return _CODE_OF.get(self.stopped_by, 143)
        if self.error is not None:
            return self.error.exit_code
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
        sampler = UsageSampler(self._settings.memory_limit)
        worker = Worker(
            self._backend,
            self._settings,
            events=events,
            adapt=adapt,
            on_line=screen.on_line,
            stopping=self._stopping,
            judge=verdict_of_caller,
            on_report=self._on_report,
            sampler=sampler,
        )
        view = LiveView(screen.show, sampler=sampler, slots=self._settings.num_workers, below=lambda _: [self.status()])
        feeding = asyncio.create_task(self._bring_in(), name="feed")
        try:
            async with beside(view.run()) if screen.is_live else nullcontext():
                report = await worker.run()
        finally:
            feeding.cancel()
            await asyncio.wait([feeding])
        self.stopped_by = report.stopped_by
        self.left = await self._count()
        if self.stopped_by is not None:
            screen.flush_seconds = _HURRIED_FLUSH_SECONDS
        if not feeding.cancelled() and (fault := feeding.exception()) is not None:
            raise fault

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

    async def _count(self) -> int:
        stats = await self._backend.stats()
        return stats.unfinished

    def _on_report(self, delivery: Delivery, report: DeliveryReport) -> None:
        if report.settled is not Settled.YES:
            return
        # What tripped the breaker (--max-consecutive-failures) is left for --resume, and yet it is what went wrong.
        tripped = report.verdict is not None and is_unspent(delivery.task, report.outcome, report.verdict)
        if not tripped and not isinstance(report.verdict, Complete | MoveToDeadLetters):
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

    def _line(self, id_: str) -> int:
        own = self._feed.line_of_own.get(id_) if self._feed is not None else None
        return own or line_of(id_) or 0
