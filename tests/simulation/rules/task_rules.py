"""The rules of tasks and leases (S1 to S9), on a model of its own beside the broker, which it does not believe."""

from typing import Any, Final

from jobq.errors import MalformedTask
from jobq.journal.records import Canceled, TaskRecord, TaskState
from jobq.run.attempt.retry import Reason
from jobq.task import Task
from tests.simulation.loop import Loop, Machine, Node
from tests.simulation.rules.known import KnownTask
from tests.simulation.rules.trace import Trace

GRAIN_SECONDS: Final = 1e-6
# What one requeue may add to (failures, preemptions, ends): a failure, a preemption, given back uncharged, a crash.
_STEPS: Final = ((1, 0, 1), (0, 1, 1), (0, 0, 1), (0, 0, 0))
_STATES: Final = {
    "waiting": {TaskState.READY, TaskState.SCHEDULED, TaskState.EXPIRED},
    "leased": {TaskState.RUNNING},
    "done": {TaskState.SUCCEEDED, TaskState.CANCELED},
    "dead": {TaskState.DEAD},
}


class TaskRules(Trace):
    """Sees each request at the broker's door.

    Args:
        loop: the run's.
        server: the clocks of the broker.
        keeps_lines: see `Trace`.

    Attributes:
        tasks: the model, by id.
        lease_seconds: that were simulated, of all leases.
        leases: how many were granted.
    """

    def __init__(self, loop: Loop, server: Machine, *, keeps_lines: bool) -> None:
        super().__init__(loop, keeps_lines=keeps_lines)
        self.tasks: dict[str, KnownTask] = {}
        self.lease_seconds = 0.0
        self.leases = 0
        self._server = server
        self._served: set[str] = set()
        self._abandoned = 0  # receives

    # What producers and workers know

    def pushing(self, task: Task) -> None:
        """A push of this task is about to be sent."""
        self.tasks.setdefault(task.id, KnownTask(task.id, task))

    def acknowledged(self, task_id: str) -> None:
        """A producer knows that it was pushed."""
        self.tasks[task_id].is_acknowledged = True
        self.note("acknowledged", task_id)

    def checkpoint_acknowledged(self, task_id: str, value: str) -> None:
        """A worker knows that it was saved."""
        known = self.tasks[task_id]
        if known.saved is None or int(value) > int(known.saved):
            known.saved = value

    def extended(self, task_id: str, fencing: str, sent: float) -> None:
        """A worker knows that a request, sent at this true time, has extended a lease."""
        self.tasks[task_id].extended_at[fencing] = sent

    def served(self, node: Node) -> None:
        """A worker had an answer to a receive."""
        self._served.add(node.name)

    def was_served(self, node: Node) -> bool:
        """Return whether a worker ever had an answer to a receive."""
        return node.name in self._served

    def rotated(self, task_id: str, fencing: str) -> None:
        """A verb was refused since the receipt has rotated away."""
        self.tasks[task_id].refused.add(fencing)

    def all_ended(self) -> bool:
        """Return whether nothing that was acknowledged is left to do."""
        now = self._server.boottime()
        for known in self.tasks.values():
            self._end_if_expired(known, now)
        return all(known.has_ended for known in self.tasks.values() if known.is_acknowledged)

    def healed(self) -> None:
        """The last fault has ended."""
        self.note("heal")

    # The broker's answers

    def pushed(self, ids: list[str]) -> None:
        """The broker has added these, or has them already (S8)."""
        for task_id in ids:
            self.tasks[task_id].is_pushed = True
            self.note("pushed", task_id)

    def granted(self, delivery: Any) -> None:
        """The broker hands out a lease (S2, S3, S7, S9)."""
        self.checks += 1
        self.leases += 1
        now = self._server.boottime()
        self.note("leased", delivery.id, delivery.fencing)
        known = self.tasks.get(delivery.id)
        if known is None or not known.is_pushed:
            self.broken("S2", f"{delivery.id} is handed out, and nobody has pushed it")
            return
        self._end_if_expired(known, now)
        if known.state != "waiting":
            left = f", {known.expires - now:.3f} s before its lease is over" if known.state == "leased" else ""
            self.broken("S3", f"{known.id} is handed out while it is {known.state}{left}")
        if known.fencing is not None and not delivery.fencing > known.fencing:
            self.broken("S3", f"the fencing number of {known.id} went from {known.fencing} to {delivery.fencing}")
        if delivery.fencing.epoch < known.least_epoch:
            self.broken("S3", f"{known.id} was redriven, and its epoch is {delivery.fencing.epoch} as before")
        given_back = delivery.deliveries - known.deliveries - 1  # by the broker, of receives that were given up
        if not 0 <= given_back <= self._abandoned:
            self.broken("S7", f"{known.id}: delivery {delivery.deliveries} came after {known.deliveries}")
        found = delivery.checkpoint_value
        if known.saved is not None and (found is None or int(found) < int(known.saved)):
            self.broken("S9", f"{known.id} starts from {found}, and {known.saved} was acknowledged")
        known.deliveries, known.fencing, known.state = delivery.deliveries, delivery.fencing, "leased"
        known.granted_at, known.expires = now, now + delivery.lease.total_seconds()
        fencing = str(delivery.fencing)
        known.expires_of[fencing] = known.expires
        known.extended_at[fencing] = self._loop.now - delivery.lease.total_seconds() / 8  # rule 5; its answer says more
        try:
            crashes = max(0, delivery.deliveries - 1 - Task.decode(delivery.body).counters.ends)
        except MalformedTask:
            return
        if crashes != known.silent_ends:
            self.broken(
                "S7", f"{known.id}: {crashes} crashes are counted, {known.silent_ends} deliveries ended silently"
            )

    def abandoned(self) -> None:
        """A receive was given up; the broker gives back what it granted meanwhile, if it did (S7)."""
        self._abandoned += 1

    def cancel_asked(self, task_id: str) -> None:
        """Somebody's request to cancel it has arrived."""
        self.tasks[task_id].is_cancel_asked = True

    def canceled(self, task_id: str, answer: Canceled) -> None:
        """The broker has answered it (S1)."""
        self.note("cancel of", task_id, answer)
        known = self.tasks[task_id]
        self._end_if_expired(known, self._server.boottime())
        expected = {
            "waiting": {Canceled.CANCELED},
            "leased": {Canceled.STOPPING},
            "done": {Canceled.CANCELED, Canceled.ENDED} if known.is_cancel_repeated else {Canceled.ENDED},
            "dead": {Canceled.ENDED},
        }
        if answer not in (expected[known.state] if known.is_pushed else {Canceled.UNKNOWN}):
            self.broken("S1", f"a cancel of {task_id}, which is {known.state}, was answered with {answer}")
        if answer is Canceled.CANCELED:
            known.state = "done"
        elif answer is Canceled.STOPPING:
            known.is_stopping = True
        known.is_cancel_repeated = True

    def redriven(self, ids: list[str]) -> None:
        """The broker has put these dead letters back, in a new epoch."""
        for task_id in ids:
            self.note("redriven", task_id)
            known = self.tasks[task_id]
            if known.state != "dead":
                self.broken("S1", f"{task_id} was redriven while it is {known.state}")
            known.state = "waiting"
            known.least_epoch = 0 if known.fencing is None else known.fencing.epoch + 1
            known.silent_ends = known.starts = 0
            known.task = known.task.redriven(deliveries=known.deliveries)
            known.is_cancel_asked = known.is_stopping = known.is_cancel_repeated = False

    def expects(self, delivery: Any, verb: str, values: tuple[Any, ...]) -> str:
        """Return what must become of a verb that is about to be done: "yes", "no", or "again" for a repetition."""
        known, fencing = self.tasks[delivery.id], str(delivery.fencing)
        if known.settled.get(fencing) == (verb, *values):
            return "again"
        if verb == "checkpoint" and (delivery.deliveries, values[1]) < known.checkpoint_order:
            return "no"  # a newer one overtook it (S9)
        is_held = known.state == "leased" and known.fencing == delivery.fencing
        return "yes" if is_held and known.expires > self._server.boottime() else "no"

    def did(self, delivery: Any, verb: str, values: tuple[Any, ...], expected: str, *, is_accepted: bool) -> None:
        """The broker has done a verb of a delivery, or refused it (S4, S5, S9)."""
        self.checks += 1
        known, fencing = self.tasks[delivery.id], str(delivery.fencing)
        self.counts[f"{verb} {'accepted' if is_accepted else 'refused'}"] += 1
        self.note(verb, "accepted" if is_accepted else "refused", delivery.id, fencing)
        if is_accepted and expected == "no":
            self.broken("S4", f"a stale {verb} of {delivery.id} under {fencing} was accepted")
        if not is_accepted and expected == "yes":
            self.broken("S4", f"{verb} of {delivery.id} was refused under a valid lease")
        if not is_accepted and expected == "again" and fencing == list(known.settled)[-1]:
            self.broken("S5", f"the repetition of {verb} of {delivery.id} was refused")
        if not is_accepted or expected == "again":
            if expected == "again":
                self.counts["settle repeated"] += 1
            return
        now = self._server.boottime()
        if verb == "renew":
            (lease,) = values
            known.expires = known.expires_of[fencing] = now + lease.total_seconds()
        elif verb == "checkpoint":
            known.checkpoint_order = max(known.checkpoint_order, (delivery.deliveries, values[1]))
        else:
            if fencing in known.settled:
                self.broken("S5", f"{known.id} was settled twice under {fencing}: {known.settled[fencing][0]}, {verb}")
            known.settled[fencing] = (verb, *values)
            self.lease_seconds += now - known.granted_at
            known.expires_of[fencing] = now
            self._settled(known, verb, values, fencing)

    def _settled(self, known: KnownTask, verb: str, values: tuple[Any, ...], fencing: str) -> None:
        match verb:
            case "complete":
                if fencing not in known.succeeded and not known.is_cancel_asked:
                    self.broken("S5", f"{known.id} {fencing} is settled as done, and did not succeed")
                known.state = "done"
            case "dead_letter":
                self._check_burial(known, values[0].reason, fencing)
                known.state = "dead"
            case "release":
                known.task = known.task.released(misfits=values[0].misfits)
                known.state = "done" if known.is_stopping else "waiting"
            case "requeue":
                task = known.task.counted(values[0].counters)
                self._check_requeue(known, task, fencing)
                known.task = task
                known.state = "done" if known.is_stopping else "waiting"

    def _check_burial(self, known: KnownTask, reason: str, fencing: str) -> None:
        """Nothing is given up before its budget is spent (S7); what cannot be started is tried once more at most."""
        counters, budgets = known.task.counters, known.task.budgets
        crashes = min(1, budgets.crashes) if fencing in known.not_started else budgets.crashes
        is_spent = {
            Reason.FAILED: counters.failures >= budgets.retries,
            Reason.TIMED_OUT: counters.failures >= budgets.retries,
            Reason.PREEMPTED: counters.preemptions >= budgets.preemptions,
            Reason.CRASHED: known.silent_ends >= crashes,
        }
        if not is_spent.get(Reason(reason), False):
            self.broken("S7", f"{known.id} is given up as {reason}, with {counters} and {known.silent_ends} crashes")

    def _check_requeue(self, known: KnownTask, task: Task, fencing: str) -> None:
        """Exactly one counter moves, and the right one (S7); the generation rises (S3)."""
        now, former = task.counters, known.task.counters
        step = (now.failures - former.failures, now.preemptions - former.preemptions, now.ends - former.ends)
        is_given_up = step[2] == 1 and now.failures > task.budgets.retries  # it could not be buried; only that is left
        if step not in _STEPS and not is_given_up:
            self.broken("S7", f"a requeue of {known.id} changed (failures, preemptions, ends) by {step}")
        node = known.failed.get(fencing)
        if node is not None and step[0] != 1 and not self._may_be_forgiven(node):
            self.broken("S7", f"{known.id} {fencing} failed by itself, and no retry was counted")
        if node is None and step[0] == 1 and fencing not in known.overtime and not is_given_up:
            self.broken("S7", f"{known.id} {fencing} did not fail by itself, and costs a retry")
        if task.generation <= known.task.generation or task.epoch != known.task.epoch:
            self.broken("S3", f"generation of {known.id}: {known.task.generation} before, {task.generation} after")
        known.silent_ends += step[2] == 0

    def _may_be_forgiven(self, node: Node) -> bool:
        """Return whether a worker has a reason to give a failure back uncharged."""
        raise NotImplementedError

    def _end_if_expired(self, known: KnownTask, now: float) -> None:
        """Let time take effect: who did not settle has ended without a record."""
        if known.state == "leased" and known.expires <= now + GRAIN_SECONDS:
            known.state = "done" if known.is_stopping else "waiting"
            known.silent_ends += 1
            self.lease_seconds += known.expires - known.granted_at
            self.counts["expired"] += 1

    def check_store(self, records: list[TaskRecord]) -> None:
        """Compare what the broker has with the model: every acknowledged task is there, in the right state (S1)."""
        self.checks += 1
        found = {record.id: record.state for record in records}
        now = self._server.boottime()
        for known in self.tasks.values():
            if not known.is_acknowledged:
                continue
            self._end_if_expired(known, now)
            state = found.get(known.id)
            if state is None:
                self.broken("S1", f"{known.id} was acknowledged, and is gone")
            elif state not in _STATES[known.state] and not (known.is_stopping and state is TaskState.EXPIRED):
                self.broken("S1", f"{known.id} is {state}, and should be {known.state}")
