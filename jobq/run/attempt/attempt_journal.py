"""What one attempt tells the journal of its queue, where it keeps one: while it runs, and what it came to."""

import asyncio
import time
from dataclasses import replace
from typing import Final, Protocol, runtime_checkable

from jobq.backend import Delivery
from jobq.journal.page import page_of
from jobq.journal.records import (
    MAX_BEAT_OUTPUT_BYTES,
    MAX_DETAIL_CHARACTERS,
    MAX_OUTPUT_BYTES,
    MOVED,
    RELEASED,
    Attempt,
    Beat,
    end_of,
    host_of,
    this_holder,
)
from jobq.run.attempt.retry import Cancel, Complete, DeadLetter, Leave, Reason, Requeue, SendOn, Verdict
from jobq.run.process.usage import Reading
from jobq.task import Outcome, OutcomeKind, Task

_THEN: Final = {Complete: "done", Requeue: "retry", DeadLetter: "dead", Cancel: "canceled", SendOn: MOVED}


@runtime_checkable
class Glimpsed(Protocol):
    """A running attempt that can be looked at."""

    def reading(self) -> Reading | None:
        """Return the last sample of what its tree uses; None before the first."""
        ...

    def output_end(self, max_bytes: int) -> str:
        """Return the end of what it has printed."""
        ...


class Journaling:
    """One attempt's; does nothing where the queue keeps no journal.

    Args:
        delivery: whose.
    """

    def __init__(self, delivery: Delivery) -> None:
        self._delivery = delivery
        self._page = page_of(delivery)
        self._started: float | None = None

    @property
    def is_kept(self) -> bool:
        """Whether there is a journal."""
        return self._page is not None

    @property
    def is_canceled(self) -> bool:
        """Whether somebody wants the task to end."""
        return self._page is not None and self._page.cancel.is_set()

    async def canceled(self) -> None:
        """Wait until somebody wants the task to end; may never return."""
        await (asyncio.Event() if self._page is None else self._page.cancel).wait()

    def started(self, running: object) -> None:
        """Take in that it runs: from now on each renewal tells of it."""
        self._started = time.time()
        if self._page is not None:
            self._page.beat = lambda: self._beat(running)

    def _beat(self, running: object) -> Beat:
        share, text = (None, "") if self._page is None else self._page.progress
        beat = Beat(at=time.time(), started=self._started, progress=share, text=text)
        if not isinstance(running, Glimpsed):
            return beat
        reading = running.reading()
        if reading is not None:
            beat = replace(
                beat,
                cpu_seconds=round(reading.cpu_seconds, 2),
                cores=round(reading.cores, 2),
                rss_bytes=reading.rss_bytes,
                processes=reading.processes,
            )
        return replace(beat, output=end_of(running.output_end(MAX_BEAT_OUTPUT_BYTES), MAX_BEAT_OUTPUT_BYTES))

    def given_back(self) -> None:
        """Take in that it goes back unstarted, by a requeue: no word would be told as none, or as a failure."""
        if self._page is not None:
            self._page.attempt = Attempt(
                attempt=self._delivery.deliveries, outcome=RELEASED, then="retry", ended=time.time()
            )

    def judged(self, verdict: Verdict, outcome: Outcome | None) -> Verdict:
        """Return the verdict to settle with, after what the attempt came to is on its way into the journal.

        A task that is to be canceled does not come back, and is no dead letter (S1).
        """
        if self._page is None or isinstance(verdict, Leave):
            return verdict
        if self.is_canceled and (isinstance(verdict, Requeue) or _is_canceled(verdict)):
            verdict = Cancel()
        ended, (host, pid) = time.time(), host_of(this_holder())
        attempt = Attempt(
            attempt=self._delivery.deliveries,
            outcome=_outcome_of(verdict, outcome),
            then=_THEN[type(verdict)],
            ended=ended,
            host=host,
            pid=pid,
        )
        if outcome is None:
            detail = verdict.description if isinstance(verdict, DeadLetter) else ""
            self._page.attempt = replace(attempt, detail=detail[:MAX_DETAIL_CHARACTERS])
            return verdict
        lost = f"; its result is not kept: {outcome.value_lost}" if outcome.value_lost else ""
        if isinstance(verdict, SendOn):
            lost += f"; sent on to queue {verdict.queue} as {verdict.task.id}"
        self._page.attempt = replace(
            attempt,
            started=self._started,
            detail=(outcome.detail + lost)[:MAX_DETAIL_CHARACTERS],
            exit_code=outcome.exit_code,
            signal=outcome.signal,
            usage=outcome.usage,
            value=None if outcome.value_lost else outcome.value,
            program=_program(self._delivery.task),
        )
        self._page.output = end_of(outcome.output or outcome.output_tail, MAX_OUTPUT_BYTES)
        return verdict


def _is_canceled(verdict: Verdict) -> bool:
    return isinstance(verdict, DeadLetter) and verdict.reason is Reason.CANCELED


def _outcome_of(verdict: Verdict, outcome: Outcome | None) -> str:
    if outcome is not None:
        return outcome.kind
    return str(verdict.reason) if isinstance(verdict, DeadLetter) else OutcomeKind.CANCELED


def _program(task: Task) -> str:
    """Return the first word of what runs, without assignments: they may be secrets (A5)."""
    if task.call is not None:
        return task.call[:100]
    words = task.argv if task.argv is not None else (task.command or "").split(maxsplit=8)
    return next((word for word in words if "=" not in word), "")[:100]
