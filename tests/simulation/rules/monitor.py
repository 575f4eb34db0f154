"""The rules of processes (P1 to P6, S11, 1.3), seen from the kernel's side; and what workers claim."""

import math
from signal import SIGTERM
from typing import Any, Final, Protocol

from jobq.lease.keeper import FREEZE_SECONDS
from jobq.run.attempt.settle import Settled
from jobq.run.attempt.supervisor import DeliveryReport
from tests.simulation.loop import Loop, Machine, Node
from tests.simulation.machine.trees import TaskTree
from tests.simulation.rules.known import KnownTask
from tests.simulation.rules.task_rules import TaskRules

_CANCEL_SECONDS: Final = 2.0  # from the answer that says so to the task's end
_GRAIN_SECONDS: Final = 1e-3
_NEARLY: Final = 0.98  # of a time limit, by a clock that may be quick


class Circumstances(Protocol):
    """What excuses a worker, by name (rules.md 1.3 (8), (11)), and what it has heard."""

    lease: float
    hold: float
    slots: int

    def excuses(self, tree: TaskTree) -> bool:
        """Return whether a tree's machine stands still as a whole, or has just stood still: only fencing protects."""
        ...

    def has_clock_trouble(self, node: Node) -> bool:
        """Return whether a node's clocks may have looked as if its machine was frozen: it may give up what it holds."""
        ...

    def is_stopping(self, node: Node) -> bool:
        """Return whether a worker was asked to stop, for good or for now, or has lost its guardian."""
        ...

    def blames_its_machine(self, node: Node) -> bool:
        """Return whether a worker's breaker has tripped."""
        ...


class Monitor(TaskRules):
    """Sees all of a run.

    Args:
        loop: the run's.
        server: the clocks of the broker.
        around: what excuses.
        keeps_lines: see `Trace`.

    Attributes:
        trees: those that live, or have lived and are not reaped.
    """

    def __init__(self, loop: Loop, server: Machine, around: Circumstances, *, keeps_lines: bool = False) -> None:
        super().__init__(loop, server, keeps_lines=keeps_lines)
        self.trees: list[TaskTree] = []
        self.interrupted = 0  # starts that did not end by themselves
        self._around = around
        self._cancels: dict[tuple[str, str], float] = {}  # true times at which workers heard

    # Processes

    def tree_started(self, tree: TaskTree) -> None:
        """A task's first process was forked."""
        known, around = self.tasks[tree.task], self._around
        self.note("tree", tree.task, tree.fencing, "starts on", tree.node.name)
        self.counts["starts"] += 1
        known.starts += 1
        for other in self.trees:
            is_excused = around.excuses(other) or around.excuses(tree)
            if other.task == tree.task and other.lives and not is_excused and not self._may_live_beside(tree, other):
                places = f"{other.fencing} on {other.node.name}, {tree.fencing} on {tree.node.name}"
                self.broken("P1", f"{tree.task} runs twice: {places}")
        self.trees.append(tree)
        here = sum(each.node is tree.node for each in self.trees)
        if here > around.slots:
            self.broken("slots", f"{here} trees live on {tree.node.name}, which has {around.slots} slots")
        self._check_starts(known, tree)

    def start_fails(self, tree: TaskTree) -> None:
        """A program will not be executed."""
        self.tasks[tree.task].not_started.add(tree.fencing)

    def _may_live_beside(self, tree: TaskTree, other: TaskTree) -> bool:
        """Return whether two trees of one task may live at once."""
        return False

    def _check_starts(self, known: KnownTask, tree: TaskTree) -> None:
        budgets = known.task.budgets
        most = 1 + budgets.retries + budgets.preemptions + budgets.crashes
        if known.starts > most:
            self.broken("S7", f"{known.id} started {known.starts} times, at most {most} are allowed")

    def deadline_sent(self, tree: TaskTree) -> None:
        """A worker sent its guardian the time by which the tree must be dead: counted from what extended the lease."""
        kept = self.tasks[tree.task].extended_at.get(tree.fencing)
        if kept is None or tree.deadline is None or self._around.excuses(tree):
            return
        # The margins make up for freezes that are too short to be seen (rule 8); then P1 shows whether they do.
        unseen = tree.machine.lost_since(kept, math.inf if tree.machine.is_stores else FREEZE_SECONDS)
        most = tree.machine.boottime_at(kept) + unseen + self._around.hold
        if tree.deadline > most + _GRAIN_SECONDS:
            over = tree.deadline - most
            self.broken("1.3", f"{tree.task} {tree.fencing} may live {over:.3f} s longer than its lease lets it")

    def tree_ended(self, tree: TaskTree) -> None:
        """Nothing of it is left, and all of it is reaped."""
        known = self.tasks[tree.task]
        if tree.ended_by_itself and tree.plan.code and not tree.plan.signal:
            known.failed[tree.fencing] = tree.node
        if tree.ended_by_itself and not tree.plan.code and not tree.plan.signal:
            known.succeeded.add(tree.fencing)
        if known.task.timeout is not None and self._loop.now - tree.started >= _NEARLY * known.task.timeout:
            known.overtime.add(tree.fencing)
        self.interrupted += not tree.ended_by_itself
        self.note("tree", tree.task, tree.fencing, "is gone")
        if tree in self.trees:
            self.trees.remove(tree)

    def signaled(self, tree: TaskTree, number: int) -> None:
        """A signal is sent to its group."""
        self.note("signal", number, tree.task, tree.fencing)
        if number != SIGTERM:
            return
        expires = self.tasks[tree.task].expires_of.get(tree.fencing, 0.0)
        if expires <= self._server.boottime() and not self._around.excuses(tree):
            self.broken("P6", f"SIGTERM to {tree.task} {tree.fencing} after its lease was gone")
        tree.is_ending = self._check_cause(tree)

    def killed(self, tree: TaskTree, why: str) -> None:
        """All of it is killed."""
        self.note("kill", tree.task, tree.fencing, why)
        self.counts[f"killed: {why}"] += 1
        self._check_cause(tree)

    def cancel_known(self, task_id: str, fencing: str) -> None:
        """A worker has heard that a task is to be canceled."""
        self._cancels.setdefault((task_id, fencing), self._loop.now)

    def ends_by_itself(self, tree: TaskTree) -> None:
        """Its leader exits; what is to be canceled does not run so long (S11)."""
        known_at = self._cancels.get((tree.task, tree.fencing))
        if known_at is None or self._around.has_clock_trouble(tree.node) or self._around.excuses(tree):
            return
        if self._loop.now - max(known_at, tree.started) > _CANCEL_SECONDS:
            late = self._loop.now - known_at
            self.broken("cancel", f"{tree.task} {tree.fencing} ran on for {late:.1f} s after its worker heard")

    def _check_cause(self, tree: TaskTree) -> bool:
        """What is ended has a reason of its own, nothing that befell a neighbour (S11). Return whether it has."""
        known, around, fencing = self.tasks[tree.task], self._around, tree.fencing
        left = around.lease - (self._loop.now - known.extended_at.get(fencing, 0.0))
        limit = known.task.timeout
        has_reason = (
            tree.is_ending
            or known.is_cancel_asked
            or known.has_ended
            or tree.node.dead
            or fencing in known.refused
            or around.is_stopping(tree.node)
            or left < 0.5 * around.lease
            or str(known.fencing) != fencing
            or (limit is not None and self._loop.now - tree.started >= _NEARLY * limit)
            or around.has_clock_trouble(tree.node)
            or not tree.is_seen
            or not tree.leader
        )
        if not has_reason:
            self.broken("S11", f"{tree.task} {fencing} is ended {left:.1f} s before its lease, and nobody asked for it")
        return has_reason

    # The worker's words

    def reported(self, delivery: Any, report: DeliveryReport) -> None:
        """A worker says what became of a delivery: it must not claim what was not accepted (S5)."""
        self.counts[f"reported {report.settled.name.lower()}"] += 1
        if report.settled is not Settled.YES:
            return
        verb = "release" if report.verdict is None else getattr(report.verdict, "verb", "complete")
        found = self.tasks[delivery.id].settled.get(str(delivery.fencing), ("nothing",))[0]
        if found != verb:
            self.broken("S5", f"{verb} of {delivery.id} is reported as settled, and the broker knows of {found}")

    def worker_ended(self, node: Node) -> None:
        """A worker has ended by itself: nothing that it ran lives (P5)."""
        for tree in self.trees:
            if tree.node is node and tree.lives and not self._around.excuses(tree):
                self.broken("P5", f"{node.name} has ended, and {tree.task} {tree.fencing} lives")

    # Each instant

    def instant(self) -> None:
        """All callbacks of this instant have run: no tree lives at its lease's end (P1)."""
        self.checks += 1
        if not self.trees:
            return
        now = self._server.boottime()
        for tree in self.trees:
            expires = self.tasks[tree.task].expires_of.get(tree.fencing)
            if expires is not None and expires <= now and tree.lives and not self._around.excuses(tree):
                late = now - expires
                self.broken("P1", f"{tree.task} {tree.fencing} lives on {tree.node.name} {late:.3f} s after its lease")
                del self.tasks[tree.task].expires_of[tree.fencing]

    def _settled(self, known: KnownTask, verb: str, values: tuple[Any, ...], fencing: str) -> None:
        super()._settled(known, verb, values, fencing)
        for tree in self.trees:  # it may start elsewhere at once
            if tree.task == known.id and tree.fencing == fencing and tree.lives:
                self.broken(
                    "P1", f"{verb} of {known.id} {fencing} while its tree lives ({tree.others} beside its leader)"
                )

    def _may_be_forgiven(self, node: Node) -> bool:
        return self._around.blames_its_machine(node) or self._around.is_stopping(node)
