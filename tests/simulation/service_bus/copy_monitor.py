"""What processes know and do where what goes back is a copy (Service Bus): the other half of `copy_rules`."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from jobq.errors import MalformedTask
from jobq.run.attempt.retry import Cancel
from jobq.run.attempt.settle import Settled
from jobq.run.attempt.supervisor import DeliveryReport
from jobq.settlement import Complete, MoveToDeadLetters
from jobq.task import Task
from tests.simulation.loop import Node
from tests.simulation.rules.known import KnownTask
from tests.simulation.service_bus.copies import Lock
from tests.simulation.service_bus.copy_rules import BEFORE, EPOCH, CopyRules

if TYPE_CHECKING:
    from tests.simulation.machine.trees import TaskTree


class CopyMonitor(CopyRules):
    """Sees all of a run on a Service Bus."""

    def leaves(self, node: Node, properties: Mapping[str, str], body: bytes) -> None:
        """A message is about to be sent: who has lost the lock sends no copy (S4)."""
        if EPOCH not in properties:
            return
        try:
            task = Task.decode(body)
        except MalformedTask:
            return
        lock = self._parent(self.tasks[task.id], task, int(properties[BEFORE]))
        if lock is None or self._has_twin(lock) or self._around.has_clock_trouble(node):
            return
        if lock.expires <= self._server.wall():
            self.broken("S4", f"{task.id} {lock.fencing}: a copy is sent though the lock is gone")

    def reached(self, lock: Lock, node: Node, sent: float) -> None:
        """The answer to a request of this true time gives a lock to a process."""
        lock.reached(node, sent, is_troubled=self._around.has_clock_trouble(node))

    def received(self, task_id: str, fencing: str, asked: float) -> None:
        """A worker has a delivery, for which it asked at this true time."""
        lock = self._granted.get((task_id, fencing))
        if lock is None:
            self.broken("S3", f"{task_id} shows the fencing number {fencing}, which was not given")
            return
        self.counts["abandoned poll handed over"] += lock.asked < asked
        lock.is_received = True
        self.extended(task_id, fencing, lock.extended)

    def healed(self) -> None:
        """The last fault has ended."""
        super().healed()
        self.healed_at = self._loop.now

    def acknowledged(self, task_id: str) -> None:
        """A producer knows that it was pushed (S1)."""
        super().acknowledged(task_id)
        if not self.tasks[task_id].is_pushed:
            self.broken("S1", f"{task_id} is acknowledged, and was not taken")

    def reported(self, delivery: Any, report: DeliveryReport) -> None:
        """A worker claims nothing that was not accepted (S5)."""
        self.counts[f"reported {report.settled.name.lower()}"] += 1
        if report.settled is Settled.UNKNOWN or (delivery.id, str(delivery.fencing)) in self._twins:
            return
        match report.verdict:
            case Complete() | Cancel():
                verb = "complete"
            case MoveToDeadLetters():
                verb = "dead_letter"
            case _:
                verb = "copy"
        found = self.tasks[delivery.id].settled.get(str(delivery.fencing), ("nothing",))[0]
        if report.settled is Settled.LOST:
            if found != "nothing" and not self.doubles:
                self.broken("S5", f"{verb} of {delivery.id} is reported as lost, and the broker knows of {found}")
        elif found != verb:
            self.broken("S5", f"{verb} of {delivery.id} is reported as settled, and the broker knows of {found}")

    def all_ended(self) -> bool:
        """Return whether nothing is left to do: the queue is empty, and what was acknowledged done or dead."""
        self._expire()
        if any(copy.place == "queue" for copy in self._copies.values()):
            return False
        return all(known.has_ended for known in self.tasks.values() if known.is_acknowledged)

    def _may_live_beside(self, tree: "TaskTree", other: "TaskTree") -> bool:
        """An original that was not completed runs beside its copy; never twice under one lock."""
        self.counts["trees side by side"] += 1
        here, there = (self._granted.get((each.task, each.fencing)) for each in (tree, other))
        if here is None or there is None:
            return False
        return here.copy is not there.copy or self._has_twin(here)

    def _check_starts(self, known: KnownTask, tree: "TaskTree") -> None:
        lock = self._granted.get((tree.task, tree.fencing))
        if lock is None or not self.deduplicates:
            return
        if (tree.task, tree.fencing) in self._shown:
            self.broken("S3", f"{known.id} starts twice with the fencing number {tree.fencing}")
        self._shown.add((tree.task, tree.fencing))
        key = known.id, lock.copy.task.epoch
        self._started[key] += 1
        budgets = known.task.budgets
        most = 1 + budgets.retries + budgets.preemptions + self._unrecorded[key]
        if self._started[key] > most:
            self.broken("S7", f"{known.id} started {self._started[key]} times, at most {most} are allowed")
