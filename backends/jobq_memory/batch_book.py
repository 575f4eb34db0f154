"""The batches of one queue of the router: which entries are whose; every verb is called under the router's lock."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from jobq.batch_plan import Plan, under_another_id
from jobq.batches import (
    PACE_SECONDS,
    PACE_TASKS,
    Batch,
    BatchState,
    Member,
    Round,
    check_too_late,
    counts_of,
    missing,
    pace,
    sealed,
)
from jobq.clock import Clock
from jobq.task import Task
from jobq_memory.entry import Entry, State

_WAITING = {State.READY, State.SCHEDULED, State.LEASED}
_NAMES = {State.READY: "ready", State.SCHEDULED: "scheduled", State.DONE: "succeeded", State.DEAD: "dead"}


@dataclass(eq=False, kw_only=True)
class HeldBatch:
    """One batch, mutable.

    Attributes:
        entries: its tasks, by id; each without those that are gone.
        unfinished: of these, all that have not ended, and some that have: those are taken out where they are met.
    """

    name: str
    plan: Plan
    created: float
    state: BatchState = BatchState.OPEN
    round: int = 1
    is_canceled: bool = False
    sealed: float | None = None
    finished: float | None = None
    gone: int = 0
    rounds: list[Round] = field(default_factory=list)
    entries: dict[str, Entry] = field(default_factory=dict)
    unfinished: list[Entry] = field(default_factory=list)

    def has_ended(self) -> bool:
        """Return whether no more tasks come, and none is left."""
        while self.unfinished and self.unfinished[-1].state not in _WAITING:
            self.unfinished.pop()
        return self.state is BatchState.SEALED and not self.unfinished


class BatchBook:
    """All batches of a queue.

    Args:
        clock: for times, and for which leases have run out.
        push: adds tasks to the queue.
        is_known: whether an id is that of a task of the queue.
        cancel: ends an entry that waits, and asks one that runs to end.
    """

    def __init__(
        self,
        clock: Clock,
        push: Callable[[Sequence[Task]], object],
        is_known: Callable[[str], bool],
        cancel: Callable[[Entry], object],
    ) -> None:
        self._clock = clock
        self._push = push
        self._is_known = is_known
        self._cancel = cancel
        self._held: dict[str, HeldBatch] = {}

    def open_for(self, name: str) -> HeldBatch:
        """Return a batch to which a task is to be added; raises BatchNotFound, BatchSealed."""
        held = self._found(name)
        if held.state is not BatchState.OPEN:
            raise sealed(name, held.state)
        return held

    def add(self, held: HeldBatch, entry: Entry) -> None:
        """Take a new entry in."""
        entry.batch = held.name
        held.entries[entry.id] = entry
        held.unfinished.append(entry)

    def ended(self, entry: Entry) -> None:
        """See to what follows from the end of a task."""
        if entry.batch is not None and (held := self._held[entry.batch]).entries.get(entry.id) is entry:
            if entry.state is State.GONE:
                held.gone += 1
                del held.entries[entry.id]
            self._look(held)

    def revived(self, entry: Entry) -> None:
        """See to what follows from putting a dead letter back."""
        if entry.batch is not None:
            held = self._held[entry.batch]
            held.unfinished.append(entry)
            if held.state is BatchState.FINISHED:
                self._next_round(held, BatchState.SEALED)
                held.is_canceled = False
            if held.is_canceled:
                self._cancel(entry)

    def begin(self, name: str, plan: Plan) -> Batch:
        """Open one, or say more of one that is open."""
        held = self._held.setdefault(name, HeldBatch(name=name, plan=plan, created=self._clock.wall()))
        check_too_late(name, held.state, plan, held.plan)
        if held.state is BatchState.OPEN:
            held.plan = held.plan.with_later(plan)
        return self._seen(held)

    def seal(self, name: str, *, canceled: bool = False) -> Batch:
        """Let it take no more tasks; or end all that it has, too."""
        held = self._found(name)
        if held.state is BatchState.OPEN:
            held.state, held.sealed = BatchState.SEALED, self._clock.wall()
        if canceled and held.state is BatchState.SEALED:
            held.is_canceled = True
            for entry in list(held.unfinished):
                self._cancel(entry)
        self._look(held)
        return self._seen(held)

    def reopen(self, name: str) -> Batch:
        """Let it take tasks again."""
        held = self._found(name)
        if held.state is BatchState.FINISHED:
            self._next_round(held, BatchState.OPEN)
        held.state, held.sealed, held.is_canceled = BatchState.OPEN, None, False
        return self._seen(held)

    def find(self, name: str) -> Batch:
        """Return it, counted, with its rate."""
        held = self._found(name)
        return replace(self._seen(held), rate=self._rate(held))

    def list(self, after: str, limit: int, *, unfinished: bool) -> Sequence[Batch]:
        """Return some, by name."""
        names = sorted(
            name
            for name, held in self._held.items()
            if name > after and not (unfinished and held.state is BatchState.FINISHED)
        )
        return [self._seen(self._held[name]) for name in names[:limit]]

    def members(self, name: str, after: str, limit: int, state: str | None) -> Sequence[Member]:
        """Return some of its tasks, by id."""
        entries = self._found(name).entries
        members = (
            Member(id=id_, state=self._state(entries[id_]), params=entries[id_].params) for id_ in sorted(entries)
        )
        return [each for each in members if each.id > after and state in (None, each.state)][:limit]

    def _found(self, name: str) -> HeldBatch:
        if name not in self._held:
            raise missing(name)
        return self._held[name]

    def _look(self, held: HeldBatch) -> None:
        if held.has_ended():
            held.state, held.finished = BatchState.FINISHED, self._clock.wall()
            counts = self._counts(held)
            held.rounds.append(Round(number=held.round, finished=held.finished, counts=counts))
            for task in held.plan.tasks(held.name, held.round):
                free = task
                while self._is_known(free.id):  # somebody has given another task such an id
                    free = under_another_id(task)
                self._push([free])

    @staticmethod
    def _next_round(held: HeldBatch, state: BatchState) -> None:
        if held.state is BatchState.FINISHED:
            held.state, held.finished = state, None
            held.round += 1

    def _counts(self, held: HeldBatch) -> dict[str, int]:
        return counts_of(Counter(map(self._state, held.entries.values())) | Counter(gone=held.gone))

    def _rate(self, held: HeldBatch) -> float | None:
        now = self._clock.wall()
        since = max([now - PACE_SECONDS, *(each.finished for each in held.rounds[-1:])])
        ends = sorted(
            entry.died if entry.state is State.DEAD else entry.ended
            for entry in held.entries.values()
            if entry.state is State.DEAD or (entry.state is State.DONE and entry.final is None)
        )
        ends = [at for at in ends[-PACE_TASKS:] if at > since]
        return pace(len(ends), now - ends[0] if ends else None)

    def _state(self, entry: Entry) -> str:
        if entry.state is State.LEASED:
            return "running" if entry.expires > self._clock.boottime() else "expired"
        return entry.final or _NAMES[entry.state]

    def _seen(self, held: HeldBatch) -> Batch:
        return Batch(
            name=held.name,
            state=held.state,
            round=held.round,
            is_canceled=held.is_canceled,
            template=held.plan.template,
            created=held.created,
            sealed=held.sealed,
            finished=held.finished,
            counts=self._counts(held),
            rounds=tuple(held.rounds),
        )
