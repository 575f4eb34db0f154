"""The rules of a queue whose messages cannot be changed (Service Bus), looked at with each change of the queue.

A lease is a message's there: what goes back is a copy, and an original that was not completed runs beside it. So P1, S4
and S5 hold for each message, and for each task what docs/guarantees.md and `tests/models/copy_model.py` say:

    S1  a task that has not ended has a message in the queue or among the dead letters; one is completed when its
        attempt succeeded, or when a copy of it was taken
    S3  with duplicate detection, no fencing number is given twice
    S5  one delivery sends one copy; with duplicate detection one message does
    S7  starts <= 1 + retries + preemptions + deliveries that ended without a record; a copy's counters are its
        original's, with one step
    L2  no lock of a worker that lives runs out, unless a fault has struck since it was granted or before all healed
"""

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from jobq.fencing import FencingNumber
from jobq.task import Task
from tests.emulators.service_bus.message import Content, Message
from tests.simulation.rules.known import KnownTask
from tests.simulation.rules.monitor import Monitor
from tests.simulation.service_bus.copies import Copy, Lock

if TYPE_CHECKING:
    from collections.abc import Callable

BEFORE: Final = "jobq-before"  # the wire format, as docs/wire-format.md has it
EPOCH: Final = "jobq-epoch"


class CopyRules(Monitor):
    """Sees each change of one queue.

    Attributes:
        deduplicates: whether the queue drops names that it knows.
        doubles: whether requests are doubled: the answer may be that of the second then.
        healed_at: the true time at which the last fault ended.
        struck: returns how many faults have struck.
    """

    deduplicates = True
    doubles = False
    healed_at = float("inf")

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.struck: Callable[[], int] = lambda: 0
        self._copies: dict[Message, Copy] = {}
        self._live: dict[Copy, Lock] = {}
        self._granted: dict[tuple[str, str], Lock] = {}  # by task and fencing number
        self._tokens: dict[str, Lock] = {}  # by the lock's
        self._twins: set[tuple[str, str]] = set()  # that two messages have: without duplicate detection
        self._started: Counter[tuple[str, int]] = Counter()  # of a task in an epoch, like the next
        self._unrecorded: Counter[tuple[str, int]] = Counter()
        self._shown: set[tuple[str, str]] = set()

    # The queue's changes

    def sent(self, content: Content, message: Message | None) -> None:
        """It was sent a message; None = it has dropped it, since it knows the name."""
        self._expire()
        self.checks += 1
        task = Task.decode(content.body)
        known = self.tasks.get(task.id)
        if known is None:
            self.broken("S2", f"{task.id} is sent, and nobody has pushed it")
            return
        self.note("sent" if message else "dropped", content.message_id, task.id, task.epoch, task.generation)
        if BEFORE not in content.properties:
            self._pushed(known, task, message)
        elif EPOCH in content.properties:
            self._put_back(known, task, int(content.properties[BEFORE]), message)
        else:
            self._redriven(known, task, int(content.properties[BEFORE]), message)

    def _pushed(self, known: KnownTask, task: Task, message: Message | None) -> None:
        if message is None:
            self.counts["push dropped by name"] += 1
            if not known.is_pushed:
                self.broken("S1", f"the push of {known.id} is dropped, and nothing of it was ever in the queue")
        elif known.is_pushed and self.deduplicates:
            self.broken("S8", f"{known.id} is added a second time")
        else:
            self._copies[message] = Copy(known, task.in_epoch(int(message.enqueued)), 0, 0)
        known.is_pushed = True

    def _put_back(self, known: KnownTask, task: Task, before: int, message: Message | None) -> None:
        lock = self._parent(known, task, before)
        if lock is None:
            self.broken("S7", f"a copy of {known.id} in generation {task.generation} is of no delivery {before}")
            return
        lock.is_put_back = True
        self.counts["abandoned poll given back"] += not lock.is_received
        if message is None:
            self.counts["copy dropped by name"] += 1
            return
        self._is_dead_already(known, lock, "is put back")
        if self._copied_before(lock) and not self._has_twin(lock):
            self.broken("S5", f"{known.id} {lock.fencing} is put back twice")
        silent = before - task.counters.ends
        if not self._has_twin(lock):  # rules of one requeue, looked at on the message that it replaces
            view = replace(known, task=lock.copy.task, silent_ends=lock.silent)
            self._check_requeue(view, task, lock.fencing)
            silent = view.silent_ends
        if silent > lock.silent:
            self._unrecorded[known.id, task.epoch] += 1
        lock.copies += 1
        lock.copy.copies += 1
        self._copies[message] = Copy(known, task, before, silent)

    def _copied_before(self, lock: Lock) -> bool:
        return bool(lock.copy.copies if self.deduplicates else lock.copies)

    def _redriven(self, known: KnownTask, task: Task, before: int, message: Message | None) -> None:
        letters = [each for each in self._of(known) if each.place == "dead"]
        letter = next(
            (each for each in letters if (each.deliveries, each.task.epoch + 1) == (before, task.epoch)), None
        )
        if letter is None:
            self.broken("S3", f"{known.id} is redriven to epoch {task.epoch}, and no letter asks for that")
        elif message is None:
            self.counts["redrive dropped by name"] += 1
            if not letter.is_redriven:
                self.broken("S1", f"the redriven {known.id} is dropped, and nothing of it is in the queue")
        else:
            letter.is_redriven = True
            self.counts["redriven"] += 1
            fresh = task.in_epoch(max(task.epoch, int(message.enqueued)))
            self._copies[message] = Copy(known, fresh, before, 0)
            known.state = "waiting"

    def locked(self, message: Message) -> Lock:
        """It hands out a message (S2, S3, S7)."""
        self._expire()
        self.checks += 1
        self.leases += 1
        copy = self._copies[message]
        known, number = copy.known, copy.before + message.delivery_count + 1
        fencing = str(FencingNumber(copy.task.epoch, copy.task.generation, number))
        self.note("locked", known.id, fencing)
        lock = Lock(copy, number, fencing, copy.silent, message.locked_until, self._server.boottime())
        lock.struck = self.struck()
        if copy in self._live:
            self.broken("S3", f"{known.id} {fencing} is handed out while its message is locked")
        if number != copy.before + len(copy.locks) + 1:
            self.broken("S7", f"delivery {number} of {known.id} came after {copy.before + len(copy.locks)}")
        if max(0, number - 1 - copy.task.counters.ends) != copy.silent:
            self.broken(
                "S7", f"{known.id} {fencing}: {copy.silent} deliveries ended silently, another count is recorded"
            )
        if (known.id, fencing) in self._granted:
            self._twins.add((known.id, fencing))
            if self.deduplicates:
                self.broken("S3", f"the fencing number {fencing} of {known.id} is given twice")
        self.counts["original beside its copy"] += bool(copy.copies)
        copy.locks.append(lock)
        self._live[copy] = self._granted[known.id, fencing] = self._tokens[str(message.lock)] = lock
        known.fencing = FencingNumber(copy.task.epoch, copy.task.generation, number)
        self._moved(lock, message)
        return lock

    def renewed(self, message: Message) -> Lock:
        """It has extended a lock."""
        lock = self._held(message, "renewal")
        lock.expires = message.locked_until
        self._moved(lock, message)
        return lock

    def refused(self, token: str) -> None:
        """It has refused what was asked under a lock that is gone."""
        lock = self._tokens.get(token)
        self.counts["request on a lock that is gone"] += 1
        if lock is not None and lock.is_put_back and lock.copy.known.settled.get(lock.fencing) is None:
            self.counts["lock gone between the steps"] += 1

    def completed(self, message: Message) -> None:
        """It has deleted a message whose lock stood (S1, S4, S5)."""
        lock = self._held(message, "completion")
        known = lock.copy.known
        if (lock.is_put_back and lock.copy.copies) or self._has_twin(lock):
            self._end(lock, "copy")
        elif lock.fencing in known.succeeded:
            self._end(lock, "complete")
            known.state = "done"
        else:
            self.broken("S1", f"{known.id} {lock.fencing} is deleted, did not succeed, and has no copy")
        lock.copy.place = "gone"
        self._check_place(known)

    def buried(self, message: Message, reason: str) -> None:
        """It has moved a message to the dead letters (S7)."""
        lock = self._held(message, "burial")
        known = lock.copy.known
        self._check_burial(replace(known, task=lock.copy.task, silent_ends=lock.silent), reason, lock.fencing)
        self._end(lock, "dead_letter")
        lock.copy.place, lock.copy.deliveries = "dead", lock.number
        self._check_place(known)

    def unlocked(self, message: Message) -> None:
        """It has put a message back as it is, which counts as an end without a record."""
        self._ended_silently(self._held(message, "unlock"))

    def letter_deleted(self, message: Message) -> None:
        """It has deleted a dead letter: the task was redriven (S1)."""
        copy = self._copies[message]
        copy.place = "gone"
        self.note("letter deleted", copy.known.id)
        if not any(each.task.epoch > copy.task.epoch for each in self._of(copy.known)):
            self.broken("S1", f"a dead letter of {copy.known.id} is deleted before it is back")
        self._check_place(copy.known)

    # What it comes to

    def _held(self, message: Message, verb: str) -> Lock:
        """Return the lock under which something was done; it must stand (S4)."""
        self.checks += 1
        copy, now = self._copies[message], self._server.wall()
        lock = copy.locks[-1]
        self.counts[f"{verb} accepted"] += 1
        self.note(verb, copy.known.id, lock.fencing)
        if copy not in self._live or lock.expires <= now:
            self.broken("S4", f"a stale {verb} of {copy.known.id} {lock.fencing} was accepted")
        self._expire()
        return lock

    def _moved(self, lock: Lock, message: Message) -> None:
        known, expires = lock.copy.known, self._server.boottime() + message.locked_until - self._server.wall()
        known.expires_of[lock.fencing] = max(expires, known.expires_of.get(lock.fencing, 0.0))

    def _end(self, lock: Lock, verb: str) -> None:
        known = lock.copy.known
        self._is_dead_already(known, lock, f"{verb} is accepted")
        known.settled[lock.fencing] = (verb,)
        del self._live[lock.copy]
        self.lease_seconds += self._server.boottime() - lock.granted_at

    def _has_twin(self, lock: Lock) -> bool:
        return (lock.copy.known.id, lock.fencing) in self._twins

    def _is_dead_already(self, known: KnownTask, lock: Lock, what: str) -> None:
        if self._has_twin(lock):
            return
        for tree in self.trees:  # it may start elsewhere at once
            if (tree.task, tree.fencing) == (known.id, lock.fencing) and tree.lives:
                self.broken("P1", f"{known.id} {lock.fencing}: {what} while its tree lives")

    def _expire(self) -> None:
        now = self._server.wall()
        for lock in [each for each in self._live.values() if each.expires <= now]:
            self.counts["expired"] += 1
            self.note("lock over", lock.copy.known.id, lock.fencing)
            node = lock.node
            is_calm = lock.asked > self.healed_at or lock.struck == self.struck()
            if is_calm and node and not node.dead and not lock.is_troubled and not self._around.has_clock_trouble(node):
                what = f"{lock.copy.known.id} {lock.fencing} ran out though no fault struck and {node.name} lives"
                self.broken("L2", what)
            self._ended_silently(lock)

    def _ended_silently(self, lock: Lock) -> None:
        del self._live[lock.copy]
        lock.copy.silent += 1
        self._unrecorded[lock.copy.known.id, lock.copy.task.epoch] += 1
        self.lease_seconds += self._server.boottime() - lock.granted_at

    def _check_place(self, known: KnownTask) -> None:
        places = {each.place for each in self._of(known)}
        if known.state == "done":
            return
        if "queue" in places:
            known.state = "waiting"
        elif "dead" in places:
            known.state = "dead"
        elif any((known.id, fencing) in self._twins for fencing in known.succeeded):
            known.state = "done"  # which of the two succeeded nobody can say; the other has failed, or was lost
        else:
            self.broken("S1", f"nothing of {known.id} is left, and it has not ended")

    def _of(self, known: KnownTask) -> list[Copy]:
        return [each for each in self._copies.values() if each.known is known]

    def _parent(self, known: KnownTask, task: Task, before: int) -> Lock | None:
        """Return the delivery that a copy is of, by what stands in it, whatever its name is."""
        found = [
            lock
            for copy in self._of(known)
            for lock in copy.locks
            if lock.number == before and copy.task.epoch == task.epoch
        ]
        exact = [lock for lock in found if lock.copy.task.generation + 1 == task.generation]
        return next(iter(sorted(exact, key=self._copied_before) or found), None)
