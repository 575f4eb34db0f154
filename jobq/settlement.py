"""The four ways in which a delivery ends, as values: what `Delivery.settle` is given.

No settlement replaces the work: it says what becomes of the task that the store holds, and raises its counters. Each
takes along what the journal is to record of the attempt, so the journal costs no request of its own, and is never ahead
of the queue (S5).
"""

from dataclasses import field
from datetime import timedelta
from typing import TYPE_CHECKING, ClassVar, Final

from jobq.formats.lazy_dataclass import dataclass
from jobq.formats.task_ids import digest
from jobq.task import Counters, TaskResult

if TYPE_CHECKING:
    from jobq.journal.records import Attempt

TAIL_CHARACTERS: Final = 4096  # of an output, where only its end is kept: beside a result, or in a dead letter
_NO_DELAY: Final = timedelta(0)


@dataclass(frozen=True)
class Record:
    """What the journal is to record of an attempt that ends.

    Attributes:
        attempt: what it came to.
        output: the end of what it printed.
    """

    attempt: "Attempt"
    output: str = ""


@dataclass(frozen=True)
class Complete:
    """End the task: it is done, or ends for good in another way.

    Attributes:
        result: what it came to.
        then: `done` or `canceled`.
        record: for the journal; None = nothing is known of the attempt.
    """

    verb: ClassVar = "complete"
    result: TaskResult = field(default=TaskResult(), repr=False)
    then: str = field(default="done", repr=False, kw_only=True)
    record: Record | None = field(default=None, compare=False, repr=False, kw_only=True)

    @property
    def final(self) -> str | None:
        """What it has come to where that is not success: `canceled`."""
        return None if self.then == "done" else self.then

    @property
    def key(self) -> str:
        """What distinguishes this settlement from another one of the same delivery (S5)."""
        return key_of(self.verb, self.result, *([] if self.final is None else [self.final]))


@dataclass(frozen=True)
class Requeue:
    """Put the task back in its next generation (S3, S6).

    Attributes:
        counters: the task's, from now on (S7).
        delay: until it is visible.
        record: as of `Complete`.
    """

    verb: ClassVar = "requeue"
    counters: Counters
    delay: timedelta = _NO_DELAY
    record: Record | None = field(default=None, compare=False, repr=False, kw_only=True)

    @property
    def key(self) -> str:
        """As of `Complete`."""
        return key_of(self.verb, self.counters, self.delay)


@dataclass(frozen=True)
class Release:
    """Put back what was never started: untouched but for one recorded end, so that it costs no budget (S7).

    The backend knows what the journal is to record of it. A copy that may run beside its original is of the next
    generation (S3).

    Attributes:
        delay: until it is visible; then it waits as of that moment. Without one it waits where it waited before, where
            the backend `keeps_place`.
        misfits: by how much this raises the task's count of workers that could never run it: 0 or 1.
    """

    verb: ClassVar = "release"
    delay: timedelta = _NO_DELAY
    misfits: int = field(default=0, kw_only=True)

    @property
    def key(self) -> str:
        """As of `Complete`."""
        if self.misfits:
            return key_of(self.verb, self.delay, self.misfits)
        return key_of(self.verb, self.delay) if self.delay else self.verb


@dataclass(frozen=True)
class MoveToDeadLetters:
    """Move the task to the dead-letter place, with its original bytes (S6).

    Attributes:
        reason: one word from `jobq.run.attempt.retry.Reason`.
        description: what happened, for people.
        record: as of `Complete`.
    """

    verb: ClassVar = "dead_letter"
    reason: str
    description: str = ""
    record: Record | None = field(default=None, compare=False, repr=False, kw_only=True)

    @property
    def key(self) -> str:
        """As of `Complete`."""
        return key_of("dead", str(self.reason), self.description)


Settlement = Complete | Requeue | Release | MoveToDeadLetters


def key_of(verb: str, *values: object) -> str:
    """Return what distinguishes a verb with these values from one with others."""
    return f"{verb} {digest(repr(values), 8)}"
