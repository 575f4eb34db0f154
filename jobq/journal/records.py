"""What a journal holds, as values, with their caps and their JSON."""

import json
import math
import os
from collections.abc import Mapping
from enum import StrEnum
from functools import cache
from typing import Final

from jobq.formats.lazy_dataclass import dataclass
from jobq.task import JsonValue, OutcomeKind, TaskResult, Usage

MAX_OUTPUT_BYTES: Final = 64 * 1024  # of one attempt
MAX_VALUE_BYTES: Final = 64 * 1024
MAX_DETAIL_CHARACTERS: Final = 2000
MAX_TEXT_CHARACTERS: Final = 200  # what `jobq progress` says
MAX_BEAT_OUTPUT_BYTES: Final = 4 * 1024  # of a running attempt


class TaskState(StrEnum):
    """Where a task is (S1: at every instant in exactly one).

    `expired` is a delivery whose lease ran out: nothing of it lives, and it starts again when a worker asks.
    """

    READY = "ready"
    SCHEDULED = "scheduled"
    RUNNING = "running"
    EXPIRED = "expired"
    SUCCEEDED = "succeeded"
    DEAD = "dead"
    CANCELED = "canceled"

    @property
    def is_final(self) -> bool:
        """Whether it stays so unless somebody puts the task back."""
        return self in _FINAL


_FINAL: Final = frozenset({TaskState.SUCCEEDED, TaskState.DEAD, TaskState.CANCELED})
_THEN: Final = {
    TaskState.SUCCEEDED: "done",
    TaskState.DEAD: "dead",
    TaskState.CANCELED: "canceled",
}
RELEASED: Final = "released"  # an attempt that was given back unstarted


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One attempt that has ended.

    Attributes:
        attempt: its number, counted from 1: the delivery's; 0 = the queue's row knows it.
        outcome: an OutcomeKind, or `released`.
        then: what became of the task: `done`, `retry`, `dead`, `canceled`, or `lost` when its lease ran out.
        ended: wall time in seconds since the epoch.
        started: likewise; None = it was never started.
        host, pid: of the worker.
        detail, exit_code, signal, usage, value: as in `jobq.task.Outcome`.
        program: the first word of what ran (A5: no arguments, which the queue forgets with the task).
        waited: seconds from when the task could start to when it did, of its first delivery; None = that is not known.
    """

    attempt: int
    outcome: str
    then: str
    ended: float
    started: float | None = None
    host: str = ""
    pid: int = 0
    detail: str = ""
    exit_code: int | None = None
    signal: int | None = None
    usage: Usage | None = None
    value: JsonValue = None
    program: str = ""
    waited: float | None = None

    def encode(self) -> str:
        """Return it as JSON, without what is not known."""
        # Once for each attempt, so not by `asdict`, which takes three times as long as all the rest.
        held = {name: value for name, value in vars(self).items() if value not in (None, "")}
        if self.usage is not None:
            held["usage"] = vars(self.usage)
        return json.dumps(held)

    @classmethod
    def released(cls, attempt: int, ended: float) -> "Attempt":
        """Return that of a delivery that was given back unstarted."""
        return cls(attempt=attempt, outcome=RELEASED, then="retry", ended=ended)

    @classmethod
    def decode(cls, text: str, attempt: int) -> "Attempt":
        """Return what was encoded, under its number; what a newer jobq has added is left out."""
        held = {name: value for name, value in json.loads(text).items() if name in _ATTEMPT} | {"attempt": attempt}
        if "usage" in held:
            held["usage"] = Usage(**held["usage"])
        return cls(**held)

    def result(self, output: str = "") -> TaskResult:
        """Return it as the result of its task."""
        return TaskResult(
            outcome=self.outcome,
            exit_code=self.exit_code,
            signal=self.signal,
            value=self.value,
            started=self.started,
            ended=self.ended,
            duration=0.0 if self.started is None else max(0.0, self.ended - self.started),
            host=self.host,
            attempt=self.attempt,
            usage=self.usage,
            detail=self.detail,
            output_tail=output,
        )


_ATTEMPT: Final = tuple(Attempt.__annotations__)


@dataclass(frozen=True, kw_only=True)
class Beat:
    """How a running attempt is, as of its last heartbeat.

    Attributes:
        at: wall time in seconds since the epoch.
        started: likewise; when its process was started.
        progress: from 0 to 1; None = unknown.
        text: what the task says of its progress.
        cpu_seconds, cores, rss_bytes, processes: what its tree uses.
        output: the end of what it has printed.
    """

    at: float
    started: float | None = None
    progress: float | None = None
    text: str = ""
    cpu_seconds: float | None = None
    cores: float | None = None
    rss_bytes: int | None = None
    processes: int | None = None
    output: str = ""

    def encode(self) -> str:
        """Return it as JSON, without what is not known."""
        return json.dumps({name: value for name, value in vars(self).items() if value not in (None, "")})

    @classmethod
    def decode(cls, text: str) -> "Beat":
        """Return what was encoded; what a newer jobq has added is left out."""
        return cls(**{name: value for name, value in json.loads(text).items() if name in _BEAT})


_BEAT: Final = tuple(Beat.__annotations__)


@dataclass(frozen=True, kw_only=True)
class TaskRecord:
    """Where one task is now.

    Attributes:
        id: the task's.
        state: where it is.
        attempt: how often it has been handed out.
        body: the task as stored; empty once it has ended, but for a dead letter.
        at: wall time in seconds since the epoch: since when it is so; of a scheduled one, when it is due.
        holder: HOST:PID of the worker that leased it last; None = none did, or it has ended.
        leased_at: wall time of that.
        lease_left: seconds until its lease runs out; negative = ran out so long ago; None = it is not leased.
        beat: how the running attempt is.
        checkpoint: what was saved last (S9).
        cancel_requested: whether it is to end.
        reason, description: of a dead letter.
        last: the last attempt that was recorded.
        batch: the name of the batch that it is of; None = of none, or that is not told.
    """

    id: str
    state: TaskState
    attempt: int
    body: bytes = b""
    at: float | None = None
    holder: str | None = None
    leased_at: float | None = None
    lease_left: float | None = None
    beat: Beat | None = None
    checkpoint: str | None = None
    cancel_requested: bool = False
    reason: str | None = None
    description: str | None = None
    last: Attempt | None = None
    batch: str | None = None

    def result(self, output: str = "") -> TaskResult:
        """Return what a task that has ended came to."""
        if self.state is TaskState.CANCELED and (self.last is None or self.last.outcome != OutcomeKind.CANCELED):
            return TaskResult(outcome=OutcomeKind.CANCELED, ended=self.at, attempt=self.attempt)
        # Only the attempt that ended it: a later end may be one that nobody recorded.
        if self.last is not None and self.last.attempt == self.attempt and self.last.then == _THEN.get(self.state):
            return self.last.result(output)
        if self.state is TaskState.DEAD:
            kind = self.reason if self.reason in set(OutcomeKind) else OutcomeKind.FAILED
            return TaskResult(
                outcome=str(kind),
                ended=self.at,
                attempt=self.attempt,
                detail=self.description or "",
            )
        return TaskResult(outcome=OutcomeKind.SUCCEEDED, ended=self.at, attempt=self.attempt)


@dataclass(frozen=True, kw_only=True)
class JournalStats:
    """Counts of one queue.

    Attributes:
        states: how many tasks are in each state; all states are named.
        oldest_ready_seconds: for how long the oldest ready task has waited; None = none waits.
        ended: how many attempts ended within `window_seconds`, by outcome.
        window_seconds: how far back was counted.
        first_ended_seconds: how long ago the first of those ended; None = none did.
    """

    states: Mapping[str, int]
    oldest_ready_seconds: float | None
    ended: Mapping[str, int]
    window_seconds: float
    first_ended_seconds: float | None = None

    @property
    def rate(self) -> float:
        """How many attempts ended in a second, since the first of them: work may have begun within the window."""
        seconds = max(1.0, self.first_ended_seconds or self.window_seconds)
        return sum(self.ended.values()) / seconds

    @property
    def seconds_left(self) -> float | None:
        """About how long what is unfinished takes at this rate; None = nothing is, or nothing has come to anything."""
        if not self.states.get("running") and not self.ended.get("succeeded"):
            return None  # no worker is here, or it ends nothing but attempts
        unfinished = sum(count for state, count in self.states.items() if not TaskState(state).is_final)
        return unfinished / self.rate if unfinished and self.rate else None


class Canceled(StrEnum):
    """What became of the request to cancel one task."""

    CANCELED = "canceled"  # it waited, and will not run
    STOPPING = "stopping"  # it runs, and is stopped with its next heartbeat
    ENDED = "ended"  # too late
    UNKNOWN = "unknown"  # there is no such task


@cache
def this_holder() -> str:
    """Return HOST:PID of this process, for display; not cached over a fork that runs tasks."""
    return f"{os.uname().nodename}:{os.getpid()}"


def host_of(holder: str) -> tuple[str, int]:
    """Return what `this_holder` was made of."""
    host, _, pid = holder.rpartition(":")
    return host, int(pid) if pid.isdecimal() else 0


def end_of(text: str, max_bytes: int) -> str:
    """Return the end of a text, of so many bytes in UTF-8 at most."""
    if len(text) <= max_bytes // 4:  # what no character can make longer
        return text
    written = text.encode("utf-8", "surrogatepass")
    if len(written) <= max_bytes:
        return text
    end = written[-max_bytes:]
    while end and end[0] & 0xC0 == 0x80:  # noqa: PLR2004 - the rest of a character that was cut
        end = end[1:]
    return end.decode("utf-8", "surrogatepass")


def checked_progress(value: float) -> float:
    """Return a share from 0 to 1; raises ValueError."""
    if not (math.isfinite(value) and 0 <= value <= 1):
        raise ValueError(f"{value:g} is no share of the whole: from 0 to 1")
    return value
