"""The reference model of the protocol: what a queue holds and what each verb must do, in plain dictionaries.

It knows no service. `jobq.testing.stateful` plays the same moves on the model and on a backend and compares.
"""

from dataclasses import dataclass, field
from typing import Literal

from jobq.backend import Delivery, FencingNumber
from jobq.settlement import Complete, MoveToDeadLetters, Release, Requeue, Settlement
from jobq.task import Task


@dataclass(eq=False)
class ModelTask:
    """One task as it should be; `task` is None for a message that is none.

    The epoch that it was pushed in is the store's matter, as long as it is above that of every earlier task of its id;
    the model learns it from the first look at the task.
    """

    id: str
    body: bytes
    task: Task | None
    state: Literal["waiting", "leased", "done", "dead", "gone"] = "waiting"
    visible_at: float = 0.0
    deliveries: int = 0
    expires: float = 0.0
    checkpoint: str | None = None
    holder: "ModelDelivery | None" = None
    reason: str = ""
    is_seen: bool = False

    @property
    def priority(self) -> int:
        """As pushed; 0 for a message that is no task."""
        return self.task.priority if self.task else 0

    @property
    def fencing(self) -> FencingNumber:
        """What the latest delivery must show (S3)."""
        epoch, generation = (self.task.epoch, self.task.generation) if self.task else (0, 0)
        return FencingNumber(epoch, generation, self.deliveries)

    def store(self, task: Task | None) -> None:
        """Hold another form of the task."""
        if task is not None:
            self.task, self.body = task, task.encode()

    def see(self, body: bytes) -> None:
        """Learn the epoch from what the store shows first."""
        if not self.is_seen and self.task is not None:
            self.store(self.task.in_epoch(Task.decode(body).epoch))
        self.is_seen = True

    def leave(self, state: Literal["waiting", "done", "dead", "gone"]) -> None:
        """End the lease, if there is one."""
        self.state, self.holder = state, None


@dataclass(eq=False)
class ModelDelivery:
    """A delivery that was received at some time, valid or stale.

    Attributes:
        delivery: the backend's.
        of: what the model holds of its task.
        task: as it was delivered; None for a message that is no task.
        settled: the settle that was accepted under its receipt.
        doubtful: whether a repeat of that settle may also be refused: too much has happened since (S5).
    """

    delivery: Delivery
    of: ModelTask
    task: Task | None
    settled: Settlement | None = None
    doubtful: bool = False
    followers: int = 0


@dataclass(eq=False)
class ModelBatch:
    """A batch as it should be; `members` are all that were pushed to it, those that are gone, too."""

    state: Literal["open", "sealed", "finished"] = "open"
    round: int = 1
    rounds: int = 0
    members: list[ModelTask] = field(default_factory=list)

    def look(self) -> None:
        """See whether it has finished."""
        if self.state == "sealed" and all(each.state in ("done", "dead", "gone") for each in self.members):
            self.state, self.rounds = "finished", self.rounds + 1

    def go_on(self, state: Literal["open", "sealed"]) -> None:
        """Begin the next round of one that has finished; else let it be so."""
        if self.state == "finished":
            self.state, self.round = state, self.round + 1


@dataclass
class Model:
    """One queue as it should be."""

    tasks: dict[str, ModelTask] = field(default_factory=dict)
    held: list[ModelDelivery] = field(default_factory=list)
    dead: list[ModelTask] = field(default_factory=list)
    fencing_seen: dict[str, FencingNumber] = field(default_factory=dict)
    forgotten: dict[str, Task] = field(default_factory=dict)
    batches: dict[str, ModelBatch] = field(default_factory=dict)

    def add(self, id_: str, body: bytes, task: Task | None, now: float) -> None:
        """A push of a new task, or of one that was forgotten, or of a message that is none."""
        self.forgotten.pop(id_, None)
        self.tasks[id_] = ModelTask(id=id_, body=body, task=task, visible_at=now)
        if task is not None and task.batch is not None:
            self.batches[task.batch].members.append(self.tasks[id_])

    def _look(self, each: ModelTask) -> None:
        if each.task is not None and each.task.batch is not None:
            self.batches[each.task.batch].look()

    def lapse(self, now: float) -> None:
        """Leases that have run out are gone (strict_expiry)."""
        for each in self.tasks.values():
            if each.state == "leased" and each.expires <= now:
                each.leave("waiting")

    def visible(self, now: float, wall: float) -> dict[str, ModelTask]:
        """What can be received now."""
        return {id_: each for id_, each in self.tasks.items() if each.state == "waiting" and _due(each, now, wall)}

    def grant(self, each: ModelTask, delivery: Delivery, expires: float) -> None:
        """A delivery of this task was received."""
        each.deliveries += 1
        each.state, each.expires = "leased", expires
        for earlier in self.held:
            if earlier.of is each and earlier.settled:
                earlier.followers += 1
                earlier.doubtful |= earlier.followers > 1
        each.holder = ModelDelivery(delivery, each, each.task)
        self.held.append(each.holder)
        before = self.fencing_seen.get(each.id)
        assert before is None or each.fencing > before, f"{each.fencing} of {each.id} came after {before} (S3)"
        self.fencing_seen[each.id] = each.fencing

    def settle(self, held: ModelDelivery, what: Settlement, now: float) -> None:
        """A settle that was accepted for the first time."""
        each = held.of
        held.settled = what
        match what:
            case Complete():
                each.leave("done")
            case Requeue(counters, delay):
                each.store(each.task.counted(counters) if each.task else None)
                each.leave("waiting")
                each.visible_at = now + delay.total_seconds()
            case Release(delay):
                each.store(each.task.released(misfits=what.misfits) if each.task else None)
                each.leave("waiting")
                each.visible_at = now + delay.total_seconds()
            case MoveToDeadLetters(reason):
                each.reason = reason
                each.leave("dead")
                self.dead.append(each)
        self._look(each)

    def redrive(self, id_: str, now: float) -> None:
        """A dead letter goes back in a new epoch."""
        each = self.tasks[id_]
        self.dead.remove(each)
        each.store(each.task.redriven(deliveries=each.deliveries) if each.task else None)
        each.leave("waiting")
        each.visible_at = now
        if each.task is not None and each.task.batch is not None:
            self.batches[each.task.batch].go_on("sealed")
        self._doubt(each)

    def purge(self, id_: str) -> None:
        """A dead letter is deleted."""
        self.dead.remove(self.tasks[id_])
        self._forget(self.tasks[id_])

    def clear(self) -> int:
        """All that waits or is leased is deleted."""
        found = [each for each in self.tasks.values() if each.state in ("waiting", "leased")]
        for each in found:
            self._forget(each)
        return len(found)

    def _forget(self, each: ModelTask) -> None:
        del self.tasks[each.id]
        if each.task is not None:
            self.forgotten[each.id] = each.task
        each.leave("gone")
        self._look(each)
        self._doubt(each)

    def _doubt(self, each: ModelTask) -> None:
        for held in self.held:
            held.doubtful |= held.of is each


def _due(each: ModelTask, now: float, wall: float) -> bool:
    not_before = each.task.not_before if each.task else None
    return each.visible_at <= now and (not_before is None or not_before <= wall)
