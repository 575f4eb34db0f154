"""What the journal of a queue, if there is one, is to know of an attempt: while it runs, and what it came to."""

import time
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

from jobq.backend import Delivery
from jobq.flag import Flag
from jobq.journal.records import (
    MAX_BEAT_OUTPUT_BYTES,
    MAX_DETAIL_CHARACTERS,
    MAX_OUTPUT_BYTES,
    MAX_TEXT_CHARACTERS,
    Attempt,
    Beat,
    end_of,
    host_of,
    this_holder,
)
from jobq.run.attempt.retry import Cancel, Leave, Reason, Verdict
from jobq.run.attempt.time_to_start import waited_seconds
from jobq.run.process.usage import UsageReading
from jobq.settlement import Complete, MoveToDeadLetters, Record, Release, Requeue
from jobq.task import Outcome, OutcomeKind, Task

if TYPE_CHECKING:
    import asyncio

    from jobq.run.attempt.checkpoints import AttemptCheckpoints

_THEN: Final = {Complete: "done", Requeue: "retry", MoveToDeadLetters: "dead", Cancel: "canceled"}


@runtime_checkable
class Glimpsed(Protocol):
    """A running attempt that can be looked at."""

    def reading(self) -> UsageReading | None:
        """Return the last sample of what its tree uses; None before the first."""
        ...

    def output_end(self, max_bytes: int) -> str:
        """Return the end of what it has printed."""
        ...


class AttemptJournal:
    """One attempt's. The keeper renews through it, so that each renewal says how it is, and hears what is asked of it.

    Args:
        delivery: whose.

    Attributes:
        held: why it is kept though it has ended, shown in place of its progress; empty = it is not.
    """

    def __init__(self, delivery: Delivery) -> None:
        self._delivery = delivery
        self._started: float | None = None
        self._running: object = None
        self._checkpoints: AttemptCheckpoints | None = None
        self._told = ""  # the end of its output that was sent last
        self.held = ""
        self._cancel = Flag()
        if delivery.cancel_requested:
            self._cancel.set()

    @property
    def id(self) -> str:
        """The task's."""
        return self._delivery.id

    @property
    def is_canceled(self) -> bool:
        """Whether somebody wants the task to end."""
        return self._cancel.is_set()

    @property
    def has_news(self) -> bool:
        """Whether it has printed what no renewal has told yet."""
        return self._output_end() != self._told

    def canceled(self) -> "asyncio.Future[None]":
        """Return a future that is done once somebody wants the task to end; it may never be."""
        return self._cancel.future()

    def started(self, running: object, checkpoints: "AttemptCheckpoints | None") -> None:
        """Take in that it runs: from now on each renewal has a beat of it."""
        self._started, self._running, self._checkpoints = time.time(), running, checkpoints

    async def renew(self, lease: timedelta) -> timedelta | None:
        """Extend the lease; return the length that was granted, if that is less."""
        renewed = await self._delivery.renew(lease, self._beat())
        if renewed.cancel:
            self._cancel.set()
        return renewed.lease

    async def checkpoint(self, value: str, number: int) -> None:
        """Save the task's progress, as the delivery does."""
        await self._delivery.checkpoint(value, number)

    def _beat(self) -> Beat | None:
        if self._started is None or not self._delivery.journaled:
            return None
        share, text = (None, "") if self._checkpoints is None else self._checkpoints.progress
        if self.held:
            share, text = None, self.held[:MAX_TEXT_CHARACTERS]
        beat = Beat(at=time.time(), started=self._started, progress=share, text=text)
        if not isinstance(self._running, Glimpsed):
            return beat
        reading = self._running.reading()
        if reading is not None:
            beat = replace(
                beat,
                cpu_seconds=round(reading.cpu_seconds, 2),
                cores=round(reading.cores, 2),
                rss_bytes=reading.rss_bytes,
                processes=reading.processes,
            )
        self._told = self._output_end()
        return replace(beat, output=self._told)

    def _output_end(self) -> str:
        if not self._delivery.journaled or not isinstance(self._running, Glimpsed):
            return ""
        return end_of(self._running.output_end(MAX_BEAT_OUTPUT_BYTES), MAX_BEAT_OUTPUT_BYTES)

    def judged(self, verdict: Verdict) -> Verdict:
        """Return the verdict to settle with: a task that is to be canceled has ended, and is no dead letter (S1)."""
        if self.is_canceled and (isinstance(verdict, Requeue) or _is_canceled(verdict)):
            return Cancel()
        return verdict

    def record(self, verdict: Verdict, outcome: Outcome | None) -> Record | None:
        """Return what the journal is to record of it; None where it keeps none, or the backend knows.

        Args:
            verdict: as it is settled.
            outcome: how it ended; None when there was no attempt.
        """
        if not self._delivery.journaled or isinstance(verdict, Leave | Release):
            return None
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
            detail = verdict.description if isinstance(verdict, MoveToDeadLetters) else ""
            return Record(replace(attempt, detail=detail[:MAX_DETAIL_CHARACTERS]))
        lost = f"; its result is not kept: {outcome.value_lost}" if outcome.value_lost else ""
        task = self._delivery.task
        attempt = replace(
            attempt,
            started=self._started,
            detail=(outcome.detail + lost)[:MAX_DETAIL_CHARACTERS],
            exit_code=outcome.exit_code,
            signal=outcome.signal,
            usage=outcome.usage,
            value=None if outcome.value_lost else outcome.value,
            program=_program(task),
            waited=None if self._started is None else waited_seconds(task, self._delivery.deliveries, self._started),
        )
        return Record(attempt, end_of(outcome.output or outcome.output_tail, MAX_OUTPUT_BYTES))


def _is_canceled(verdict: Verdict) -> bool:
    return isinstance(verdict, MoveToDeadLetters) and verdict.reason == Reason.CANCELED


def _outcome_of(verdict: Verdict, outcome: Outcome | None) -> str:
    if outcome is not None:
        return outcome.kind
    return str(verdict.reason) if isinstance(verdict, MoveToDeadLetters) else OutcomeKind.CANCELED


def _program(task: Task) -> str:
    """Return the first word of what runs, without assignments: they may be secrets (A5)."""
    if task.call is not None:
        return task.call[:100]
    words = task.argv if task.argv is not None else (task.command or "").split(maxsplit=8)
    return next((word for word in words if "=" not in word), "")[:100]
