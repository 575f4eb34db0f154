"""The protocol that every queue backend speaks (architecture 4).

A backend is small: each verb is one request, asynchronous, one shot. No loops, no sleeping (but for the wait of
`receive`), no retry policy: the caller decides. A third party implements `Backend` and `Delivery`, registers an
entry point in the group `jobq.backends` and runs `jobq.testing.conformance`.

What every verb may raise, beside what its own docstring names:
    BackendUnavailable: repeating is safe. A push or a verb of a delivery did definitely not happen; of any other verb
        (receive, create, clear, redrive, purge_dead) the answer may merely be lost, which a backend that knows says
        by AnswerLost. Of a verb of a delivery AnswerLost says that it did not happen yet: its request may still land.
    QueueNotFound, AccessDenied, StoreUnusable: as they say.
"""

from collections.abc import AsyncGenerator, Mapping, Sequence
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Final, Literal, Protocol, Self, runtime_checkable

from jobq.batch_ids import IdInBatch
from jobq.errors import ConfigurationError
from jobq.fencing import FencingNumber as FencingNumber  # noqa: PLC0414 - part of the protocol
from jobq.formats.lazy_dataclass import dataclass
from jobq.pausing import Pause
from jobq.settlement import Settlement
from jobq.task import Task

if TYPE_CHECKING:
    from jobq.journal.records import Beat

MOST_CHECKPOINTS: Final = 2**32 - 1  # of one attempt: stores keep the delivery's number and this one in 64 bits


@dataclass(frozen=True, kw_only=True)
class Capabilities:
    """What differs between services; code and tests ask here, never for a backend's name.

    Attributes:
        default_lease, min_lease, max_lease: how long a delivery may be leased; max_lease None = no limit.
        chooses_lease: the caller says how long a lease lasts; else that is the queue's own matter, a delivery says what
            was granted, and `default_lease` is the most that it can be.
        max_message_bytes: the largest body of one task, as stored; None = no limit of the service's.
        max_delay: the longest delay of a requeue, a release or `not_before`; None = no limit.
        deduplicates: two pushes of one id inside `dedup_window` yield one task (S8).
        dedup_window: how long an id is remembered after its task ended; None = as long as its record exists.
        frees_ids: what `clear` and `purge_dead` delete may be pushed anew under its id; else the window alone decides,
            and a known id adds nothing, whatever its payload.
        idempotent_push: repeating a push whose answer was lost is safe.
        idempotent_settle: repeating the same settle answers as the first did, without a second effect (S5); at least
            until the task's next delivery is settled.
        fenced_settle: repeating a settle whose answer was lost has no second effect: a receipt that the first has used
            up is refused, as LockLost.
        atomic_requeue, atomic_dead_letter: one step, no crash between can repeat the task (S6).
        strict_expiry: an expired receipt is refused even before anyone else has taken the task.
        counts_deliveries: `Delivery.deliveries` is the service's own count, so crashes can be counted (S7).
        native_checkpoint: `checkpoint` saves beside the task; without it a checkpoint is refused.
        priorities: higher `Task.priority` is delivered first.
        max_peek: how many tasks `peek` can show; None = all.
        peeks_leased: `peek` shows leased tasks too, which the service does not distinguish.
        clears_leased: `clear` deletes leased tasks too; else those stay their workers'.
        named_leases: the backend is a `jobq.lease.store.KeepsLeases`.
        pauses: the backend is a `jobq.pausing.Pausable`.
        hastens: the backend is a `Hastens`.
        keeps_place: a task that is released without a delay waits where it waited before; else it is the youngest.
        selects: the backend is a `jobq.selecting.Selects`.
        batches: the backend is a `jobq.batches.KeepsBatches`, and a push keeps `Task.batch` and `Task.params`.
        views: the backend is a `jobq.journal.views.KeepsViews` that tells of tasks.
        whole_views: and of all queues of the place, in the order of delivery, as all of it is now.
        knows_batch_ids: an id is known again within its batch, whatever is known in the queue (`deduplicates`): a push
            of tasks of batches alone may be repeated with the same ids, and another batch may have the same.
        redelivers_at: where a redelivered task queues up.
        journal_lags: what the queue has done may be in its journal later, or never: the journal is beside it.
        shares_machine: all who use the queue are on one machine, and a look at its journal is a read of a file.
        counts: the fields of `QueueStats` that this service can give.
        finds_at_once: "no such queue" is true when it is said; else a service may say so for a moment of one it has.
    """

    default_lease: timedelta
    min_lease: timedelta = timedelta(seconds=1)
    max_lease: timedelta | None = None
    chooses_lease: bool = True
    max_message_bytes: int | None = None
    max_delay: timedelta | None = None
    deduplicates: bool = False
    dedup_window: timedelta | None = None
    frees_ids: bool = True
    idempotent_push: bool = False
    idempotent_settle: bool = False
    fenced_settle: bool = False
    atomic_requeue: bool = False
    atomic_dead_letter: bool = False
    strict_expiry: bool = False
    counts_deliveries: bool = False
    native_checkpoint: bool = False
    priorities: bool = False
    max_peek: int | None = None
    peeks_leased: bool = False
    clears_leased: bool = True
    named_leases: bool = False
    pauses: bool = False
    hastens: bool = False
    keeps_place: bool = False
    selects: bool = False
    batches: bool = False
    views: bool = False
    whole_views: bool = False
    knows_batch_ids: bool = False
    redelivers_at: Literal["front", "back"] = "back"
    journal_lags: bool = False
    shares_machine: bool = False
    counts: frozenset[Literal["visible", "leased", "scheduled", "dead", "total"]] = frozenset()
    finds_at_once: bool = True

    @property
    def record_lag(self) -> float:
        """For how many seconds a record may be missing of a task that goes on: two leases, for one is the worker's.

        A journal beside its queue (`journal_lags`) is written later: a `clear` may take a task for one that waits, and
        delete its record, though a worker has it already and has not written so yet.
        """
        return 2 * self.default_lease.total_seconds() if self.journal_lags else 0.0

    def longest_lease(self, asked: timedelta) -> timedelta:
        """Return for how long what was received with this lease may be hidden, should nobody end it."""
        return asked if self.chooses_lease else max(asked, self.default_lease)


@dataclass(frozen=True, kw_only=True)
class QueueStats:
    """How many tasks are where; None where the service cannot say.

    `total` is for a service that counts visible, leased and scheduled ones only together, and perhaps about: None
    where the three are known. `paused` is the mark by which none of them is handed out; None where there is none.
    """

    visible: int | None
    leased: int | None
    scheduled: int | None
    dead: int | None
    total: int | None = None
    paused: Pause | None = None

    @property
    def is_known(self) -> bool:
        """Whether the service counted anything of what is not done; else `unfinished` is 0 for want of an answer."""
        return any(count is not None for count in (self.visible, self.leased, self.scheduled, self.total))

    @property
    def unfinished(self) -> int:
        """How many are not done and not dead, as far as the service can say."""
        known = (self.visible or 0) + (self.leased or 0) + (self.scheduled or 0)
        return known if self.total is None else self.total


@dataclass(frozen=True, kw_only=True)
class Peeked:
    """A waiting task, seen without leasing it.

    Attributes:
        id: the task's id, or the service's id of a message that is not a task.
        body: the bytes as stored; `Task.decode` reads them or raises MalformedTask.
        deliveries: how often it has been handed out so far.
    """

    id: str
    body: bytes
    deliveries: int


@dataclass(frozen=True, kw_only=True)
class DeadLetter:
    """A task that jobq gave up on, or a message that is none.

    Attributes:
        id: the task's id, or the service's id of a message that is not a task; `redrive` and `purge_dead` take it.
        reason: one word from `jobq.run.attempt.retry.Reason`.
        description: what happened, for people; ends with the tail of the output where there is one.
        body: the original bytes.
        deliveries: how often it was handed out.
        died: wall time, seconds since the epoch.
        batch: the name of the batch that it is of; None = of none, or that is not told.
        work: tells it from letters of other work that have the same id, where a queue may hold such; else empty.
    """

    id: str
    reason: str
    description: str
    body: bytes
    deliveries: int
    died: float
    batch: str | None = None
    work: str = ""


@dataclass(frozen=True, kw_only=True)
class Renewed:
    """The answer to a renewal.

    Attributes:
        cancel: somebody wants the task to end.
        lease: the length that was granted, where that is less: a queue that says itself for how long was changed.
    """

    cancel: bool = False
    lease: timedelta | None = None


@runtime_checkable
class Delivery(Protocol):
    """One task handed to one worker under one lease.

    All verbs are fenced by the receipt, one atomic compare each (S4). All raise LockLost when the receipt is stale
    and nothing was changed, and SettlementUnknown when no one can say. Verbs of one delivery are not called
    concurrently: the keeper serialises them, because receipts rotate; a backend keeps S5 all the same.
    """

    @property
    def id(self) -> str:
        """The task's id; for a message that is not a task, the service's id of it."""
        ...

    @property
    def body(self) -> bytes:
        """The message as stored."""
        ...

    @property
    def task(self) -> Task:
        """The task in the body. Raises MalformedTask, each time, for a body that is none."""
        ...

    @property
    def lease(self) -> timedelta:
        """The length that was granted; counts from before `receive` was called (rules.md 1.3 rule 5)."""
        ...

    @property
    def deliveries(self) -> int:
        """How often the service has handed this task out, this time included; >= 1. Never reset (S3, S7)."""
        ...

    @property
    def fencing(self) -> FencingNumber:
        """The number that the task may show to others; (0, 0, deliveries) for a message that is not a task."""
        ...

    @property
    def checkpoint_value(self) -> str | None:
        """The last accepted checkpoint of this task, by whichever attempt (S9)."""
        ...

    @property
    def journaled(self) -> bool:
        """Whether the queue keeps a journal: then a renewal takes a beat along, and a settlement its record."""
        ...

    @property
    def cancel_requested(self) -> bool:
        """Whether somebody wanted the task to end when it was handed out; later a renewal says so."""
        ...

    async def renew(self, lease: timedelta, beat: "Beat | None" = None) -> Renewed:
        """Extend the lease to this length from now; the caller counts from before the call.

        A lost answer is SettlementUnknown: the lease may be longer than the caller knows, never shorter.

        Args:
            lease: how long it lasts from now.
            beat: how the attempt is, for the journal; None = leave what was said last.

        Returns:
            What is asked of the task, and what was granted.
        """
        ...

    async def settle(self, settlement: Settlement) -> None:
        """End the delivery as the value says, in one step with what the journal records of it (S5, S6).

        Raises:
            MalformedTask: the message has outgrown what the service takes, or is no task whose counters could rise.
        """
        ...

    async def checkpoint(self, value: str, number: int = 0) -> None:
        """Durably save the task's progress beside it (S9); the next attempt finds it.

        Args:
            value: the progress.
            number: rises within the attempt, at most MOST_CHECKPOINTS: a request that was given up may arrive after
                a later one, and is refused with LockLost when its number is lower than one that was accepted. An
                equal one is a repetition.
        """
        ...


@runtime_checkable
class Prepares(Protocol):
    """A backend that a worker's start gives something to see to, beside its work."""

    async def prepare(self) -> None:
        """Make what is missing, or warn with what to do about it; raises nothing for what can wait."""
        ...


UNKNOWN_ID: Final = ""  # of what may be leased to nobody


@runtime_checkable
class TellsMisplaced(Protocol):
    """A backend that puts back what its settings do not let it hand out: a worker of such settings ends with 3."""

    @property
    def misplaced(self) -> str:
        """Why it did; empty = it has met no such task."""
        ...


@runtime_checkable
class WalksDead(Protocol):
    """A backend that looks through all its dead letters to find one of them, so that many are found in one walk."""

    def walk_dead(self) -> AsyncGenerator[list[IdInBatch]]:
        """Yield the ids of all dead letters, each once, some hundred at a time.

        Until the next are asked for, a `redrive` or `purge_dead` of these is done to what the walk holds. To be closed.
        """
        ...


@runtime_checkable
class PutsOff(Protocol):
    """A backend that has received what it does not hand out, and that comes again.

    It has put it back for later, since a service is away; or it may have been granted what a lost answer held, or could
    not give back what nobody waited for, so that leases run for nobody.
    """

    def take_put_off(self) -> Mapping[str, float]:
        """Return what was put off since the last call, and comes by itself: seconds until then, by the task's id.

        UNKNOWN_ID stands for any number of tasks.
        """
        ...


@runtime_checkable
class SharesMachine(Protocol):
    """A backend whose workers are all on one machine, so that one can see that another is dead, and all that it ran.

    Its leases need not run out then: its tasks come back at once, each charged with a crash.
    """

    async def receive_as(
        self, worker_id: str, max_tasks: int, lease: timedelta | None, wait: timedelta
    ) -> "list[Delivery]":
        """Receive; the leases carry the id of the worker, by which others can judge it.

        A program may have several workers on one queue, and pull from it itself: so each receive says whose it is.

        Args:
            worker_id: names all whose death ends what is received.
            max_tasks: as for `Backend.receive`.
            lease: as there.
            wait: as there.
        """
        ...

    async def holders(self) -> list[str]:
        """Return the ids of the workers that hold leases of this queue."""
        ...

    async def end_leases(self, worker_ids: Sequence[str]) -> int:
        """Let all leases of these workers run out now; return how many.

        Args:
            worker_ids: of those of which nothing lives any more, surely.
        """
        ...


class Hastened(StrEnum):
    """What became of the wish that one task run now."""

    DUE = "due"  # it was put off, and is to be had now
    WAITING = "waiting"  # it was to be had already
    RUNNING = "running"  # a worker has it
    ENDED = "ended"
    UNKNOWN = "unknown"  # there is no such task


@runtime_checkable
class Hastens(Protocol):
    """A backend in which a task that is put off, until a time or for a retry, can be made due."""

    async def hasten(self, ids: Sequence[str]) -> list[Hastened]:
        """Let these tasks be due now, in the place that one pushed now would have; answer for each, in order.

        What is not put off is not touched. Repeating it is safe; of many a call that fails may have hastened some.
        """
        ...


def hastening(backend: object) -> Hastens:
    """Return a backend that hastens.

    Raises:
        ConfigurationError: it does not; says what else there is.
    """
    if isinstance(backend, Hastens):
        return backend
    raise ConfigurationError(
        "a task of this kind of queue cannot be hastened: its service alone decides when what is put off comes. Cancel"
        " it, and push it anew"
    )


@runtime_checkable
class Backend(Protocol):
    """One queue of one service. An asynchronous context manager; entering connects, leaving frees everything."""

    @property
    def name(self) -> str:
        """The queue's name."""
        ...

    @property
    def capabilities(self) -> Capabilities:
        """What this service can and cannot do."""
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *exc_info: object) -> None: ...

    async def create(self, *, exist_ok: bool = True) -> None:
        """Make the queue and its dead-letter place; a worker never needs this right.

        Raises:
            ConfigurationError: it exists and `exist_ok` is false.
        """
        ...

    async def push(self, tasks: Sequence[Task]) -> list[str]:
        """Durably add all tasks and return their ids in order (S1); all of a call or, on an error, none.

        Raises:
            DuplicateTask: an id is known with another payload (S8).
            BatchNotFound, BatchSealed: of a new task whose batch takes none.
            MalformedTask: a task is larger than the service takes.
            PushUnknown: the answer was lost.
        """
        ...

    async def receive(self, max_tasks: int, lease: timedelta | None, wait: timedelta) -> list[Delivery]:
        """Lease at most `max_tasks`, or none after `wait`.

        Args:
            max_tasks: >= 1; never more than the caller can start now.
            lease: the length to ask for; None = the service's own.
            wait: how long to stay for a first task; zero = look once.

        A cancelled call gives back what it had been granted, or lets the lease run out; it loses nothing.
        """
        ...

    async def peek(self, limit: int) -> list[Peeked]:
        """Return up to `limit` tasks that could be received now, next first, without leasing them."""
        ...

    async def stats(self) -> QueueStats:
        """Count."""
        ...

    async def clear(self) -> int:
        """Delete every task that waits or is leased (its worker loses the lock), not dead letters; return how many."""
        ...

    async def dead_letters(self, limit: int) -> list[DeadLetter]:
        """Return up to `limit` dead letters, oldest first."""
        ...

    async def redrive(self, ids: Sequence[str]) -> list[str]:
        """Put dead letters back with a raised epoch and fresh budgets; send first, delete after. Return those found.

        Many at once may take several steps: a call that fails may have put back some. So with `purge_dead`.
        """
        ...

    async def purge_dead(self, ids: Sequence[str]) -> list[str]:
        """Delete dead letters for good. Return those found."""
        ...
