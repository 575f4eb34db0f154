"""The journal of one queue of the router: what its entries know, read under the router's lock."""

from collections.abc import Sequence

from jobq.clock import Clock
from jobq.journal.records import Attempt, Beat, Canceled, JournalStats, TaskRecord, TaskState
from jobq.servable import Bodies
from jobq_memory.entry import Entry, State
from jobq_memory.queue_state import QueueState
from jobq_memory.router import Router

_STATES = {
    State.READY: TaskState.READY,
    State.SCHEDULED: TaskState.SCHEDULED,
    State.LEASED: TaskState.RUNNING,
    State.DONE: TaskState.SUCCEEDED,
    State.DEAD: TaskState.DEAD,
}


class MemoryJournal:
    """What is known of the tasks of one queue, for as long as the process lives.

    Args:
        router: holds the tasks.
        queue: the queue's name.
    """

    def __init__(self, router: Router, queue: str) -> None:
        self._router = router
        self._queue = queue

    async def find(self, ids: Sequence[str]) -> list[TaskRecord]:
        """Look up by id."""
        with self._router.opened(self._queue) as store:
            return [self._record(store.entries[id_]) for id_ in dict.fromkeys(ids) if id_ in store.entries]

    async def running(self, limit: int, batch: str | None = None) -> list[TaskRecord]:
        """List what is leased."""
        with self._router.opened(self._queue) as store:
            leased = [
                entry
                for entry in store.entries.values()
                if entry.state is State.LEASED and batch in (None, entry.batch)
            ]
            return [self._record(entry) for entry in sorted(leased, key=lambda entry: entry.leased_at)[:limit]]

    async def unfinished(self, after: str, limit: int) -> list[TaskRecord]:
        """List what has not ended."""
        with self._router.opened(self._queue) as store:
            waiting = {State.READY, State.SCHEDULED, State.LEASED}
            found = sorted(id_ for id_, entry in store.entries.items() if id_ > after and entry.state in waiting)
            bodies, records = Bodies(), list[TaskRecord]()
            for id_ in found[:limit]:
                records.append(bodies.with_room(self._record(store.entries[id_])))
                if bodies.are_many:
                    break
            return records

    async def ids_with(self, part: str, limit: int) -> list[str]:
        """Look through all ids."""
        with self._router.opened(self._queue) as store:
            return sorted(id_ for id_ in store.entries if part in id_)[:limit]

    async def attempts(self, task_id: str) -> list[Attempt]:
        """Return those that were recorded."""
        with self._router.opened(self._queue) as store:
            entry = store.entries.get(task_id)
            return [] if entry is None else [attempt for attempt, _ in entry.attempts]

    async def output(self, task_id: str, attempt: int | None = None) -> tuple[int, str] | None:
        """Return the end of an attempt's output."""
        with self._router.opened(self._queue) as store:
            entry = store.entries.get(task_id)
            ended = [] if entry is None else entry.attempts
            found = [(one.attempt, text) for one, text in ended if attempt in (None, one.attempt)]
            return found[-1] if found else None

    async def stats(self, window_seconds: float) -> JournalStats:
        """Count."""
        with self._router.opened(self._queue) as store:
            now = self._router.clock.wall()
            records = [self._record(entry) for entry in store.entries.values()]
            states = [record.state for record in records]
            waiting = [record.at for record in records if record.state is TaskState.READY and record.at is not None]
            recent = [
                attempt
                for entry in store.entries.values()
                for attempt, _ in entry.attempts
                if attempt.ended > now - window_seconds
            ]
            ended = [attempt.outcome for attempt in recent]
            return JournalStats(
                states={str(state): states.count(state) for state in TaskState},
                oldest_ready_seconds=max(0.0, now - min(waiting)) if waiting else None,
                ended={outcome: ended.count(outcome) for outcome in dict.fromkeys(ended)},
                window_seconds=window_seconds,
                first_ended_seconds=max(0.0, now - min(each.ended for each in recent)) if recent else None,
            )

    async def cancel(self, ids: Sequence[str]) -> list[Canceled]:
        """End what waits, and ask for the end of what runs."""
        with self._router.opened(self._queue) as store:
            answers = [_cancel(store, id_) for id_ in ids]
        self._router.wake(self._queue)
        return answers

    def _record(self, entry: Entry) -> TaskRecord:
        return record_of(entry, self._router.clock)


def record_of(entry: Entry, clock: Clock) -> TaskRecord:
    """Return where a task is now, whether or not time has taken effect on it."""
    is_leased = entry.state is State.LEASED
    now, wall = clock.boottime(), clock.wall()
    left = entry.expires - now
    since = wall - (now - entry.scheduled)  # `scheduled` is boottime
    state = TaskState(entry.final) if entry.final else _STATES[entry.state]
    if is_leased and left <= 0:
        state = TaskState.EXPIRED
    elif entry.state is State.SCHEDULED and _is_due(entry, now, wall):
        state = TaskState.READY
    return TaskRecord(
        id=entry.id,
        state=state,
        attempt=entry.deliveries,
        body=entry.body if state not in (TaskState.SUCCEEDED, TaskState.CANCELED) else b"",
        at=entry.died or entry.ended or (entry.leased_at if is_leased else since),
        holder=entry.holder if is_leased else None,
        leased_at=entry.leased_at if is_leased else None,
        lease_left=left if is_leased else None,
        beat=None if entry.beat is None or not is_leased else Beat.decode(entry.beat),
        checkpoint=entry.checkpoint,
        cancel_requested=entry.cancel_requested,
        reason=entry.reason or None,
        description=entry.description or None,
        last=entry.attempts[-1][0] if entry.attempts else None,
        batch=entry.batch,
    )


def _is_due(entry: Entry, now: float, wall: float) -> bool:
    return entry.scheduled <= now if entry.not_before is None else entry.not_before <= wall


def _cancel(store: QueueState, task_id: str) -> Canceled:
    entry = store.cancel(task_id)
    if entry is None:
        return Canceled.UNKNOWN
    if entry.final == "canceled":
        return Canceled.CANCELED
    return Canceled.STOPPING if entry.state is State.LEASED else Canceled.ENDED
