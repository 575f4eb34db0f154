"""One task in the router: its state, and the ways a delivery of it can be settled, as values."""

from dataclasses import dataclass, field
from enum import StrEnum

from jobq.backend import FencingNumber
from jobq.journal.records import Attempt, host_of
from jobq.resources.room import ResourceRequest
from jobq.task import OutcomeKind, Task, TaskResult


class State(StrEnum):
    """Where a task is (S1: at every instant in exactly one)."""

    READY = "ready"
    SCHEDULED = "scheduled"
    LEASED = "leased"
    DONE = "done"
    DEAD = "dead"
    GONE = "gone"  # cleared or purged; only old deliveries still refer to it


@dataclass(eq=False, slots=True, kw_only=True)
class Entry:
    """One task, mutable, guarded by the router's lock.

    Attributes:
        id: the task's id, or the router's id of a message that is not a task.
        body: the bytes as stored.
        order: position among all pushes of this queue.
        fingerprint: of the submission (S8); None for a message that is not a task.
        request: what it asks for.
        scheduled: boottime from which it may be delivered, as far as `delay` says; its rank among equal priorities.
        not_before: wall time from which it may be delivered; None = at once.
        stamp: changes with each change of state, so that older items of the heaps are known to be stale.
        checkpoint_order: the delivery that saved it, and its number there.
        expires: boottime at which the lease ends.
        ended: wall time at which it was done or canceled; leased_at: of the grant.
        holder, beat: what the journal knows of the running attempt.
        final: what it came to where that is not success: `canceled`.
        batch, params: as it was pushed with.
        attempts: those that have ended, each with the end of its output.
        settled: the key of the settlement that was accepted for each recent receipt (S5).
    """

    id: str
    body: bytes
    order: int
    fingerprint: bytes | None = None
    priority: int = 0
    request: ResourceRequest = field(default_factory=ResourceRequest)
    epoch: int = 0
    generation: int = 0
    state: State = State.SCHEDULED
    scheduled: float = 0.0
    not_before: float | None = None
    stamp: int = 0
    deliveries: int = 0
    receipt: str = ""
    expires: float = 0.0
    checkpoint: str | None = None
    checkpoint_order: tuple[int, int] = (0, 0)
    settled: dict[str, str] = field(default_factory=dict)
    result: TaskResult | None = None
    reason: str = ""
    description: str = ""
    died: float = 0.0
    ended: float = 0.0
    leased_at: float = 0.0
    holder: str = ""
    beat: str | None = None
    cancel_requested: bool = False
    final: str | None = None
    batch: str | None = None
    params: dict[str, str | int | float] = field(default_factory=dict)
    attempts: list[tuple[Attempt, str]] = field(default_factory=list)

    @property
    def fencing(self) -> FencingNumber:
        """The number of the latest delivery (S3)."""
        return FencingNumber(self.epoch, self.generation, self.deliveries)

    @property
    def rank(self) -> tuple[int, float, int]:
        """Delivered in ascending order: higher priority, then earlier schedule, then push order."""
        return -self.priority, self.scheduled, self.order

    def lost(self, wall: float) -> None:
        """Record, for the journal, an end that nobody could record."""
        host, pid = host_of(self.holder)
        attempt = Attempt(
            attempt=self.deliveries,
            outcome=OutcomeKind.LOCK_LOST,
            then="lost",
            started=self.leased_at,
            ended=wall,
            host=host,
            pid=pid,
            detail="its lease ran out without a word: the worker died, or lost it",
        )
        self.attempts.append((attempt, ""))

    def hold(self, task: Task, body: bytes) -> None:
        """Store another form of the task: its bytes and what the router reads from them."""
        self.body = body
        self.priority = task.priority
        self.request = ResourceRequest(task.resources, task.needs)
        self.epoch = task.epoch
        self.generation = task.generation
        self.not_before = task.not_before
