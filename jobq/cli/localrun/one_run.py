"""One `jobq run`, from its options to its exit code: what is opened, in which order, and what is said at the end."""

import os
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack, nullcontext
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from jobq.backend import Backend
from jobq.cli.display import live_view, terminal
from jobq.cli.display.passthrough_log import PassthroughLog
from jobq.cli.localrun.input_feed import Feed, LineInput, RunInput
from jobq.cli.localrun.job_handling import JobHandling
from jobq.cli.localrun.joblog import JobLog, check_place
from jobq.cli.localrun.local_run import LocalRun
from jobq.cli.localrun.run_store import NamedRun, temporary_queue
from jobq.clock import SystemClock
from jobq.errors import ConfigurationError
from jobq.events import Events
from jobq.formats import durations
from jobq.formats.user_paths import user_path, working_folder
from jobq.resources.offer import Offer
from jobq.run.worker.leftovers import Leftovers
from jobq.run.worker.offered import offered
from jobq.settings import Settings
from jobq.submit.input_lines import TaskOptions, budgets_of
from jobq.telemetry.push_tracing import traced_push
from jobq.telemetry.setup import traced


def options_of(
    settings: Settings, timeout: timedelta | None, queue_file: str | None, asked: Mapping[str, str]
) -> TaskOptions:
    """Return what all tasks have."""
    return TaskOptions(
        cpus=asked.get("cpus"),
        gpus=asked.get("gpus"),
        mem=asked.get("mem"),
        timeout=timeout.total_seconds() if timeout is not None else None,
        cwd=str(working_folder()) if queue_file is not None else None,  # it may be resumed from elsewhere
        budgets=budgets_of(settings),
    )


class OneRun:
    """One run.

    Args:
        settings: of the worker.
        source: what is read; None = nothing is.
        options: what all tasks have.
        queue_file: where the queue stays; None = it goes.
        joblog: gets a line for each finished task.
        again: the command line that resumes, for messages.
        handling: what is done with jobs beyond running them.
        echo: where the output of tasks goes.
    """

    def __init__(
        self,
        settings: Settings,
        source: RunInput | None,
        options: TaskOptions,
        *,
        queue_file: str | None,
        joblog: str | None,
        again: str,
        handling: JobHandling,
        echo: Any,
    ) -> None:
        self._settings = settings
        self._source = source
        self._options = options
        self._queue_file = user_path(queue_file, "--queue-file") if queue_file else None
        self._joblog = Path(joblog) if joblog else None
        self._again = again
        self._handling = handling
        self._echo = echo

    async def work(self, *, resume: bool, resume_failed: bool, as_json: bool) -> int:
        """Do it and say how it went."""
        began = time.monotonic()
        self._settings, offer = await offered(self._settings, os.environ)
        self._check(offer)
        async with AsyncExitStack() as stack:
            source = self._source
            named = NamedRun(self._queue_file, self._settings) if self._queue_file is not None else None
            if self._joblog is not None:
                check_place(self._joblog, None if source is None else source.path, named)
            entered = (
                temporary_queue(self._settings)
                if named is None
                else named.opened(
                    resume=resume,
                    reads_input=source is not None,
                    may_begin=partial(_may_begin, source, resume=resume, resume_failed=resume_failed),
                    on_resume=partial(_prepare, offer=offer, resume_failed=resume_failed),
                    again=self._again,
                )
            )
            backend = await stack.enter_async_context(entered)
            joblog = stack.enter_context(JobLog(self._joblog, append=resume) if self._joblog else nullcontext())
            feed = None
            if source is not None:
                on_end = None if named is None else named.input_is_queued
                context = stack.enter_context(traced_push(backend.name, "sqlite", self._settings.telemetry))
                options = replace(self._options, trace_context=context)
                feed = Feed(backend, source, options, keeps_known=resume, on_end=on_end)
            here = LocalRun(backend, self._settings, feed, joblog, self._handling, offer)
            is_live = not as_json and live_view.is_wanted(self._settings.view)
            with PassthroughLog(echo=self._echo, is_live=is_live) as screen:
                events = Events(screen.on_event)
                with traced(events, self._settings, backend.name, "sqlite") as adapt:
                    await here.run(screen, events, adapt)
        if feed is not None and feed.kept:
            terminal.warn(
                f"{feed.kept} {feed.source.what} were queued before with other options or content; they stay as they"
                " were then"
            )
        exit_code = here.exit_code or int(screen.lost_output)
        self._say(here, time.monotonic() - began)
        return terminal.put_report([_summary(here, time.monotonic() - began)], exit_code) if as_json else exit_code

    def _check(self, offer: Offer) -> None:
        """Raise ConfigurationError where no job could ever run here."""
        if lacks := offer.misfit(self._options.task(command="true").resources, None):
            raise ConfigurationError(f"each job asks for {lacks}, and this machine has less (`jobq config` says why)")
        if isinstance(self._source, LineInput):
            self._source.offer = offer

    def _say(self, here: LocalRun, seconds: float) -> None:
        for task in here.failures:
            where = f"task {task.id}"
            if task.line:
                where = self._source.part(task.line) if self._source is not None else f"line {task.line}"
            terminal.say(f"failed: {where} ({task.detail}): {terminal.shortened(task.command, 200)}", is_error=True)
            if task.last_line:
                terminal.say(f"        {terminal.shortened(task.last_line, 200)}", is_error=True)
        if here.failed > len(here.failures):
            terminal.say(f"        ... and {here.failed - len(here.failures)} more", is_error=True)
        counts = [f"{here.done} done", f"{here.failed} failed"]
        counts += [f"{here.failed_earlier} failed earlier (--resume-failed)"] if here.failed_earlier else []
        counts += [f"{here.left} left"] if here.left else []
        kept = f"; the queue is kept: sqlite://{self._queue_file}/run" if self._queue_file is not None else ""
        terminal.say(f"{', '.join(counts)} in {durations.show(round(seconds, 1))}{kept}")
        if here.lost_bytes:
            terminal.complain(
                f"{here.lost_bytes} bytes of output were lost: they could not be kept, for the disk is full"
            )
        resume = self._how_to_resume(here)
        if here.error is not None:
            terminal.complain(str(here.error))
        if resume is not None:
            terminal.say(resume, is_error=True)

    def _how_to_resume(self, here: LocalRun) -> str | None:
        if not here.left and here.input_is_queued:
            return None
        if here.reader_gone and self._queue_file is None:
            return "ended: nobody reads its output any more"
        if here.halted_by is not None and self._queue_file is None:
            return f"ended by {here.halted_by}"
        if self._queue_file is None:
            return "what is left went with the temporary queue; with --queue-file PATH it could be resumed"
        given = "" if here.input_is_queued or self._source is None else f" {self._source.again}"
        return f"go on with: {self._again}{given}"


async def _may_begin(source: RunInput | None, *, resume: bool, resume_failed: bool) -> bool:
    """Return whether a queue file that holds no run yet is no mistyped one."""
    if resume_failed or source is None:
        return False
    return not resume or not await source.is_empty()


async def _prepare(backend: Backend, *, offer: Offer, resume_failed: bool) -> None:
    """See to what an earlier run has left; raises ConfigurationError where some of it could never run."""
    while resume_failed and (dead := await backend.dead_letters(500)):
        await backend.redrive([letter.id for letter in dead])
    if lacks := await Leftovers(backend, SystemClock()).misfits(offer):
        raise ConfigurationError(f"{lacks}; go on with the options --cpus, --gpus and --mem that it began with")


def _summary(here: LocalRun, seconds: float) -> dict[str, Any]:
    return {
        "done": here.done, "failed": here.failed, "failed_earlier": here.failed_earlier, "left": here.left,
        "input_is_queued": here.input_is_queued, "seconds": round(seconds, 3), "exit_code": here.exit_code,
        "failures": [
            {
                "line": task.line, "id": task.id, "exit_value": task.exit_value, "signal": task.signal,
                "detail": task.detail, "command": task.command, "last_line": task.last_line,
            }
            for task in here.failures
        ],
    }  # fmt: skip
