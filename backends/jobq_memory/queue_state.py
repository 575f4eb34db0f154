"""One queue of the router: every verb as one step, to be called under the router's lock."""

import secrets
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Final, assert_never

from jobq.backend import DeadLetter, FencingNumber, Hastened, Peeked, QueueStats
from jobq.clock import Clock
from jobq.errors import DuplicateTask, LockLost, MalformedTask
from jobq.journal.records import Attempt, this_holder
from jobq.resources.room import Room
from jobq.selecting import WaitingShape
from jobq.settlement import TAIL_CHARACTERS, Complete, MoveToDeadLetters, Release, Requeue, Settlement
from jobq.task import Task
from jobq_memory.batch_book import BatchBook
from jobq_memory.entry import Entry, State
from jobq_memory.schedule import Schedule
from jobq_memory.selecting import ShapeSelection, check_shapes, waiting_shapes

if TYPE_CHECKING:
    from jobq.pausing import Pause

_MOST_OUTPUT_CHARACTERS: Final = 256 * 1024 * 1024  # of a queue; what ended first loses its output
_RECEIPTS_REMEMBERED: Final = 8  # per task, for repeats of a settle (S5)
_NOT_PUT_OFF: Final = {State.READY: Hastened.WAITING, State.LEASED: Hastened.RUNNING}


@dataclass(frozen=True, kw_only=True)
class DeliveryGrant:
    """What one delivery was given.

    Attributes:
        entry: the task itself; the other fields are as they were at the time of the grant.
        lease: the length that was granted.
        receipt: the secret that fences every verb (S4).
    """

    entry: Entry
    id: str
    body: bytes
    lease: timedelta
    deliveries: int
    fencing: FencingNumber
    checkpoint: str | None
    receipt: str
    cancel_requested: bool


class QueueState:
    """The tasks of one queue.

    Args:
        clock: leases and delays run on its boottime, `not_before` on its wall time.
        note: called for each event, with its name; the router counts and traces them.
        max_message_bytes: the largest body taken; None = no limit beside `Task.encode`'s.
    """

    def __init__(self, clock: Clock, note: Callable[[str, Entry], None], max_message_bytes: int | None) -> None:
        self._clock = clock
        self._note = note
        self._max_message_bytes = max_message_bytes
        self._schedule = Schedule()
        self._dead: dict[str, Entry] = {}  # oldest first
        self._added = 0
        self._epoch = 0  # of what is pushed: above that of all that was forgotten, since its id may come again (S3)
        self._outputs: deque[tuple[Entry, int, int]] = deque()  # entry, number and length, in the order of their ends
        self._output_characters = 0
        self.entries: dict[str, Entry] = {}
        self.notes: dict[tuple[str, str], tuple[str, float]] = {}  # value and wall time, by kind and key
        self.paused: Pause | None = None
        self._selection = ShapeSelection()
        self._batches = BatchBook(clock, self._push, self.entries.__contains__, self._to_cancel)

    @property
    def batches(self) -> BatchBook:
        """The batches, as of now."""
        self._ripen()
        return self._batches

    def push(self, tasks: Sequence[Task]) -> list[str]:
        """Add all tasks that are new, or none (S1, S8)."""
        check_shapes(self.entries.values(), tasks)
        return self._push(tasks)

    def _push(self, tasks: Sequence[Task]) -> list[str]:
        new: dict[str, Entry] = {}
        held = {}
        for each in tasks:
            task = each.in_epoch(self._epoch)
            body, fingerprint = self._encoded(task), task.fingerprint()
            known = self.entries.get(task.id) or new.get(task.id)
            if known is None:
                if task.batch is not None:
                    held[task.id] = self._batches.open_for(task.batch)
                new[task.id] = self._entry(task.id, body, task, fingerprint)
                new[task.id].params = task.params or {}
            elif known.fingerprint != fingerprint:
                raise DuplicateTask(f"task {task.id} is known with another payload; give the new one another id")
        for entry in new.values():
            self._add(entry)
            if entry.id in held:
                self._batches.add(held[entry.id], entry)
        return [task.id for task in tasks]

    def inject(self, body: bytes) -> str:
        """Add any bytes as a message, as a foreign sender could; return the id it is known by."""
        message_id = f"message-{self._added + 1}"
        try:
            task: Task | None = Task.decode(body)
        except MalformedTask:
            task = None
        if task is not None and task.id not in self.entries:
            entry = self._entry(task.id, body, task, task.fingerprint())
        else:
            entry = self._entry(message_id, body, None, None)
        self._add(entry)
        return entry.id

    def take(self, count: int, lease: timedelta, room: Room | None = None) -> list[DeliveryGrant]:
        """Lease at most `count` ready tasks, of those that there is room for; none while the queue is paused."""
        self._ripen()
        if self.paused is not None:
            return []
        grants: list[DeliveryGrant] = []
        for entry in self._next(count, room):
            entry.deliveries += 1
            entry.receipt = secrets.token_hex(16)
            entry.leased_at, entry.holder, entry.beat = self._clock.wall(), this_holder(), None
            entry.expires = self._clock.boottime() + lease.total_seconds()
            self._schedule.lease(entry)
            self._note("leased", entry)
            grants.append(
                DeliveryGrant(
                    entry=entry,
                    id=entry.id,
                    body=entry.body,
                    lease=lease,
                    deliveries=entry.deliveries,
                    fencing=entry.fencing,
                    checkpoint=entry.checkpoint,
                    receipt=entry.receipt,
                    cancel_requested=entry.cancel_requested,
                )
            )
        return grants

    def _next(self, count: int, room: Room | None) -> Iterator[Entry]:
        if room is not None:
            yield from self._selection.fitting(self._waiting, room, count, self._clock.wall())
            return
        while count and (entry := self._schedule.pop()) is not None:
            count -= 1
            yield entry

    @property
    def _waiting(self) -> list[Entry]:
        return self._schedule.ready(len(self.entries))

    def waiting_shapes(self) -> list[WaitingShape]:
        """Count what waits by what it asks for."""
        self._ripen()
        return waiting_shapes(self._waiting)

    def next_due(self) -> float:
        """Return the boottime at which a task can next become ready by itself; infinity for never."""
        return self._schedule.next_due(self._clock.boottime(), self._clock.wall())

    def renew(self, grant: DeliveryGrant, lease: timedelta, beat: str | None = None) -> bool:
        """Let the lease end this long from now (S4); return whether the task is to be canceled."""
        self._fence(grant, "renew")
        grant.entry.expires = self._clock.boottime() + lease.total_seconds()
        self._schedule.lease(grant.entry)
        self._note("renewed", grant.entry)
        grant.entry.beat = beat or grant.entry.beat
        return grant.entry.cancel_requested

    def checkpoint(self, grant: DeliveryGrant, value: str, number: int) -> None:
        """Save the progress beside the task, unless a newer one was saved (S9)."""
        self._fence(grant, "checkpoint")
        order = grant.entry.deliveries, number
        if order < grant.entry.checkpoint_order:
            raise LockLost(f"a newer checkpoint of task {grant.entry.id} was saved before this one arrived")
        grant.entry.checkpoint, grant.entry.checkpoint_order = value, order
        self._note("checkpointed", grant.entry)

    def settle(self, grant: DeliveryGrant, settlement: Settlement) -> None:
        """Apply a settlement once; an equal one under the same receipt answers again, without effect (S5)."""
        entry = grant.entry
        if entry.settled.get(grant.receipt) == settlement.key:
            self._note("settle_repeated", entry)
            return
        self._fence(grant, settlement.verb)
        self._apply(entry, settlement)
        if isinstance(settlement, Release):
            self._remember(entry, Attempt.released(entry.deliveries, self._clock.wall()), "")
        elif settlement.record is not None:
            self._remember(entry, settlement.record.attempt, settlement.record.output[-TAIL_CHARACTERS:])
        if entry.cancel_requested and entry.state in (State.READY, State.SCHEDULED):
            self._cancel(entry)
        entry.settled[grant.receipt] = settlement.key
        if len(entry.settled) > _RECEIPTS_REMEMBERED:
            del entry.settled[next(iter(entry.settled))]

    def _remember(self, entry: Entry, attempt: Attempt, output: str) -> None:
        """Keep what an attempt came to; the oldest outputs go where there are too many (JOBQ_JOURNAL_MAX elsewhere)."""
        entry.attempts.append((attempt, output))
        self._outputs.append((entry, len(entry.attempts) - 1, len(output)))
        self._output_characters += len(output)
        while self._output_characters > _MOST_OUTPUT_CHARACTERS:
            oldest, number, length = self._outputs.popleft()
            oldest.attempts[number] = oldest.attempts[number][0], ""
            self._output_characters -= length

    def cancel(self, task_id: str) -> Entry | None:
        """End a task that waits, ask for the end of one that runs; return it, None for one that is not known."""
        self._ripen()
        entry = self.entries.get(task_id)
        if entry is not None:
            self._to_cancel(entry)
        return entry

    def _to_cancel(self, entry: Entry) -> None:
        if entry.state is State.LEASED:
            entry.cancel_requested = True
        elif entry.state in (State.READY, State.SCHEDULED):
            self._cancel(entry)

    def hasten(self, task_id: str) -> Hastened:
        """Let a task that is put off be due now."""
        self._ripen()
        entry = self.entries.get(task_id)
        if entry is None:
            return Hastened.UNKNOWN
        if entry.state is not State.SCHEDULED:
            return _NOT_PUT_OFF.get(entry.state, Hastened.ENDED)
        entry.not_before = None
        self._place(entry, timedelta(0))
        self._note("hastened", entry)
        return Hastened.DUE

    def _cancel(self, entry: Entry) -> None:
        entry.final, entry.ended = "canceled", self._clock.wall()
        self._end(entry, State.DONE)
        self._note("canceled", entry)

    def _end(self, entry: Entry, state: State) -> None:
        self._schedule.remove(entry, state)
        self._batches.ended(entry)

    def peek(self, limit: int) -> list[Peeked]:
        """Show the ready tasks, next first."""
        self._ripen()
        return [
            Peeked(id=entry.id, body=entry.body, deliveries=entry.deliveries)
            for entry in self._schedule.ready(max(0, limit))
        ]

    def stats(self) -> QueueStats:
        """Count by state."""
        self._ripen()
        states = [entry.state for entry in self.entries.values()]
        return QueueStats(
            visible=states.count(State.READY),
            leased=states.count(State.LEASED),
            scheduled=states.count(State.SCHEDULED),
            dead=len(self._dead),
            paused=self.paused,
        )

    def clear(self) -> int:
        """Forget every task that waits or is leased."""
        waiting = {State.READY, State.SCHEDULED, State.LEASED}
        found = [entry for entry in self.entries.values() if entry.state in waiting]
        for entry in found:
            self._forget(entry, "cleared")
        self._schedule.compact()
        return len(found)

    def dead_letters(self, limit: int) -> list[DeadLetter]:
        """Show the dead letters, oldest first."""
        return [
            DeadLetter(
                id=entry.id,
                reason=entry.reason,
                description=entry.description,
                body=entry.body,
                deliveries=entry.deliveries,
                died=entry.died,
                batch=entry.batch,
            )
            for entry in list(self._dead.values())[: max(0, limit)]
        ]

    def redrive(self, ids: Sequence[str]) -> list[str]:
        """Put dead letters back in a new epoch (S3); a body that is no task goes back as it is."""
        found = [id_ for id_ in dict.fromkeys(ids) if id_ in self._dead]
        for id_ in found:
            entry = self._dead.pop(id_)
            try:
                task = Task.decode(entry.body).redriven(deliveries=entry.deliveries)
                entry.hold(task, task.encode())
            except MalformedTask:
                pass
            self._place(entry, timedelta(0))
            self._note("redriven", entry)
            self._batches.revived(entry)
        return found

    def purge_dead(self, ids: Sequence[str]) -> list[str]:
        """Forget dead letters."""
        found = [id_ for id_ in dict.fromkeys(ids) if id_ in self._dead]
        for id_ in found:
            self._forget(self._dead.pop(id_), "purged")
        return found

    def _apply(self, entry: Entry, settlement: Settlement) -> None:
        match settlement:
            case Complete(result):
                entry.result, entry.final, entry.ended = result, settlement.final, self._clock.wall()
                self._end(entry, State.DONE)
                self._note("completed", entry)
            case Requeue(counters, delay):
                task = Task.decode(entry.body).counted(counters)
                entry.hold(task, self._encoded(task))
                self._place(entry, delay)
                self._note("requeued", entry)
            case Release():
                self._release(entry, settlement)
            case MoveToDeadLetters(reason, description):
                entry.reason, entry.description, entry.died = reason, description, self._clock.wall()
                self._dead[entry.id] = entry
                entry.cancel_requested = False
                self._end(entry, State.DEAD)
                self._note("dead_lettered", entry)
            case _:
                assert_never(settlement)

    def _release(self, entry: Entry, release: Release) -> None:
        try:
            task = Task.decode(entry.body).released(misfits=release.misfits)
            entry.hold(task, task.encode())
        except MalformedTask:
            pass  # a message that is not a task has no counters to keep
        entry.not_before = None  # it was due already: a wall clock that stepped back must not hide it again
        if release.delay > timedelta(0):
            entry.scheduled = self._clock.boottime() + release.delay.total_seconds()
        self._schedule.place(entry, self._clock.boottime(), self._clock.wall())
        self._note("released", entry)

    def _entry(self, id_: str, body: bytes, task: Task | None, fingerprint: bytes | None) -> Entry:
        entry = Entry(id=id_, body=body, order=0, fingerprint=fingerprint)
        if task is not None:
            entry.hold(task, body)
        return entry

    def _add(self, entry: Entry) -> None:
        self._added += 1
        entry.order = self._added
        self.entries[entry.id] = entry
        self._place(entry, timedelta(0))
        self._note("pushed", entry)

    def _place(self, entry: Entry, delay: timedelta) -> None:
        now, wall = self._clock.boottime(), self._clock.wall()
        entry.scheduled = now + max(0.0, delay.total_seconds())
        if entry.not_before is None or entry.not_before <= wall:
            entry.not_before = None
        elif entry.scheduled < now + entry.not_before - wall:
            entry.scheduled = now + entry.not_before - wall  # for the rank; the wall clock alone decides when
        self._schedule.place(entry, now, wall)

    def _forget(self, entry: Entry, event: str) -> None:
        self._epoch = max(self._epoch, entry.epoch + 1)
        del self.entries[entry.id]
        self._end(entry, State.GONE)
        self._note(event, entry)

    def _ripen(self) -> None:
        for entry in self._schedule.ripen(self._clock.boottime(), self._clock.wall()):
            self._note("expired", entry)
            entry.lost(self._clock.wall())
            if entry.cancel_requested and entry.state in (State.READY, State.SCHEDULED):
                self._cancel(entry)

    def _fence(self, grant: DeliveryGrant, verb: str) -> None:
        entry = grant.entry
        held = entry.state is State.LEASED and secrets.compare_digest(entry.receipt, grant.receipt)
        if held and entry.expires > self._clock.boottime():
            return
        self._note(f"late_{verb}", entry)
        why = "its lease has expired" if held else "it was settled, cleared, or handed out again after its lease"
        raise LockLost(f"{verb} of task {entry.id} under {grant.fencing} is refused: {why}")

    def _encoded(self, task: Task) -> bytes:
        body = task.encode()
        if self._max_message_bytes is not None and len(body) > self._max_message_bytes:
            raise MalformedTask(f"{len(body)} bytes, this queue takes {self._max_message_bytes}")
        return body
