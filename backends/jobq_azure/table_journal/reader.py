"""The journal of one Azure queue, read from its table; and cancel requests, recorded there.

It knows what was pushed and run with the journal on, as far as it could be recorded. What it says of the end of
a task is true: that was written after the queue had confirmed it (S5). What it has not heard of it does not claim: a
worker that dies between a settle and its note leaves a task `expired`, which says only that nothing of it runs.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Final

from jobq.formats import task_ids
from jobq.journal.records import Attempt, Canceled, JournalStats, TaskRecord, TaskState
from jobq_azure.table_journal import entities as rows
from jobq_azure.table_journal.cancel_requests import CancelRequest, CancelRequests, meant
from jobq_azure.table_journal.client import MOST_ROWS, Row, TableWire
from jobq_azure.table_journal.lookup import Life, Lookup, answered, for_each
from jobq_azure.table_journal.pushed_tasks import PushedTasks

_MOST_LIVE: Final = 1_000_000
_MOST_KEYS: Final = 100_000  # that a part of an id is looked for in
_MOST_COUNTED: Final = 1_000_000  # attempts that `stats` counts
_UNENDED: Final = f"State ne '{rows.DONE}'"
_log: Final = logging.getLogger(__name__)


class TableJournal:
    """What is known of the tasks of one queue.

    Args:
        wire: to the table.
        cancel_requests: of the queue.
        pushed: to it, by this process.
        dead: counts its dead letters; returns None where the service does not say.
    """

    def __init__(
        self,
        wire: TableWire,
        cancel_requests: CancelRequests,
        pushed: PushedTasks,
        dead: Callable[[], Awaitable[int | None]],
    ) -> None:
        self._wire = wire
        self._queue = wire.place.queue
        self._lookup = Lookup(wire)
        self._cancel_requests = cancel_requests
        self._pushed = pushed
        self._dead = dead

    async def find(self, ids: Sequence[str]) -> list[TaskRecord]:
        """Look up by id."""
        found = await answered(self._find(ids))
        return [record for record in found.values() if record is not None]

    async def _find(self, ids: Sequence[str]) -> dict[Life, TaskRecord | None]:
        """Return what is known of the life that each of these means."""
        lives = list(dict.fromkeys(map(self._meant, ids)))
        # Before the look: the word of a push may be written meanwhile.
        known = {life for life in lives if (ours := self._pushed.get(*life)) is not None and ours.is_known}
        where, requests = await asyncio.gather(
            self._lookup.meant(lives), self._cancel_requests.among(id_ for id_, _ in lives)
        )

        async def record(life: Life) -> TaskRecord | None:
            return await self._record(life, where[life], requests[life[0]], is_known=life in known)

        return dict(zip(lives, await for_each(lives, record), strict=True))

    def _meant(self, id_: str) -> Life:
        return str(id_), self._pushed.birth_of(id_)

    async def _record(
        self, life: Life, row: Row | None, requests: Sequence[CancelRequest], *, is_known: bool
    ) -> TaskRecord | None:
        ours = self._pushed.get(*life)
        if row is not None:
            if ours is not None:
                ours.is_known = ours.was_found = True
            return await self._record_of_row(row, requests)
        own = await self._own_attempts(*life)
        if own and rows.is_final(str(own[-1].get("Then", ""))):
            return rows.ended_record(own[-1])
        if ours is None or (ours.was_found and (is_known or own)):
            return None
        ours.was_found = True
        return replace(ours.record, cancel_requested=meant(requests, life[1] or 0) is not None)

    async def _record_of_row(self, row: Row, requests: Sequence[CancelRequest]) -> TaskRecord:
        fencing = rows.fencing_in(row["Fencing"])
        if row["State"] == rows.DONE:
            ended = await self._wire.get(self._queue, f"{rows.beside('a', row)}!{rows.order(fencing)}")
            return rows.done_record(row) if ended is None else rows.ended_record(ended)
        record = self._live_record(row, requests)
        has_ended = fencing.delivery - (record.state is TaskState.RUNNING)  # so many attempts, or fewer
        own = await self._own_attempts(record.id, rows.birth_in(row)) if has_ended > 0 else []
        if not own:
            return record
        is_over = record.state is TaskState.EXPIRED or rows.is_final(str(own[-1].get("Then", "")))
        if is_over and rows.fencing_of(own[-1]) >= fencing:
            return rows.ended_record(own[-1])  # the row is a late word of an attempt that has ended
        return replace(record, last=rows.decoded(own[-1]))

    def _live_record(self, row: Row, requests: Sequence[CancelRequest]) -> TaskRecord:
        is_meant = meant(requests, rows.birth_in(row)) is not None
        return rows.live_record(row, self._wire.now(), cancel_requested=is_meant)

    async def _own_attempts(self, id_: str, birth: int | None) -> list[Row]:
        """Return the attempts of the life that is meant; None = of the newest."""
        found = await self._lookup.attempts(id_, birth)
        life = max(map(rows.birth_in, found), default=0) if birth is None else birth
        return [each for each in found if rows.birth_in(each) == life]

    async def running(self, limit: int, batch: str | None = None) -> list[TaskRecord]:
        """List what is leased, or was."""
        if batch is not None and not task_ids.BATCH.fullmatch(batch):
            return []
        return await answered(self._running(limit, "" if batch is None else f" and Batch eq '{batch}'"))

    async def _running(self, limit: int, of_batch: str) -> list[TaskRecord]:
        first, end = rows.below("l")
        where = f"State eq 'running'{of_batch}"
        found = await self._wire.all(self._queue, first, end, where=where, most=_MOST_LIVE)
        records = await self._verified(found)
        leased = [each for each in records if each.state in (TaskState.RUNNING, TaskState.EXPIRED)]
        leased.sort(key=lambda record: record.leased_at or 0.0)
        return leased[:limit]

    async def unfinished(self, after: str, limit: int) -> list[TaskRecord]:
        """List what has not ended; in the order of the keys, which is that of the ids but for signs in them."""
        return await answered(self._unfinished(after, limit))

    async def _unfinished(self, after: str, limit: int) -> list[TaskRecord]:
        start, (_, end) = rows.below("l")[0], rows.below("l")
        if after:
            start = (
                f"{rows.live(after, after.birth)}!"
                if isinstance(after, rows.IdOfLife)
                else rows.lives(rows.safe(after))[1]
            )
        while True:
            found = await self._wire.all(self._queue, start, end, where=_UNENDED, most=limit)
            if not found:
                return []
            last = rows.id_part(found[-1])
            if len(found) == limit and rows.id_part(found[0]) != last:  # there may be more lives of the last one
                found = [row for row in found if rows.id_part(row) != last]
            if records := [each for each in await self._verified(found) if not each.state.is_final]:
                return records
            start = f"{found[-1]['RowKey']}!"

    async def _verified(self, found: Sequence[Row]) -> list[TaskRecord]:
        """Return where tasks are; of a lease that is over it is looked whether the attempt has ended after all."""
        requests = await self._cancel_requests.among({rows.id_of(row) for row in found}) if found else {}

        async def looked(row: Row) -> TaskRecord:
            id_ = rows.id_of(row)
            record = self._live_record(row, requests[id_])
            return record if record.state is not TaskState.EXPIRED else await self._record_of_row(row, requests[id_])

        return await for_each(found, looked)

    async def ids_with(self, part: str, limit: int) -> list[str]:
        """Look through the keys, a request for each thousand; of more than _MOST_KEYS only through the first."""
        return await answered(self._ids_with(part, limit))

    async def _ids_with(self, part: str, limit: int) -> list[str]:
        found = set[str]()
        for kind, select in (("l", "State"), ("a", "Then")):  # where tasks are, and attempts of those that have ended
            first, end = rows.below(kind)
            keys = await self._wire.all(self._queue, first, end, select=select, most=_MOST_KEYS)
            if len(keys) == _MOST_KEYS:
                _log.warning(
                    "only the first %d rows are searched for ids with %r; the whole id is found", _MOST_KEYS, part
                )
            found |= {id_ for row in keys if part in (id_ := str(rows.id_of(row)))}
        return sorted(found)[:limit]

    async def attempts(self, task_id: str) -> list[Attempt]:
        """Return those that were recorded."""
        return [rows.decoded(row) for row in await answered(self._lookup.attempts(task_id))]

    async def output(self, task_id: str, attempt: int | None = None) -> tuple[int, str] | None:
        """Return the end of an attempt's output."""
        birth = self._pushed.birth_of(task_id)
        own = self._lookup.attempts(task_id) if birth is None else self._own_attempts(task_id, birth)
        wanted = [row for row in await answered(own) if attempt in (None, rows.fencing_of(row).delivery)]
        if not wanted:
            return None
        row = await answered(self._wire.get(self._queue, rows.beside("o", wanted[-1])))
        text = "" if row is None else rows.taken(row, "Output").decode(errors="replace")
        return rows.fencing_of(wanted[-1]).delivery, text

    async def stats(self, window_seconds: float) -> JournalStats:
        """Count: the more has ended within JOBQ_KEEP, the longer it takes, a request for each thousand."""
        return await answered(self._stats(window_seconds))

    async def _stats(self, window_seconds: float) -> JournalStats:
        first, end = rows.below("l")
        select = "State,Fencing,At,Due,LeaseLeft"
        live = await self._wire.all(self._queue, first, end, where=_UNENDED, select=select, most=_MOST_LIVE)
        records = await self._verified(live)
        states = dict.fromkeys(map(str, TaskState), 0)
        for record in records:
            if not record.state.is_final:
                states[record.state] += 1
        ready = [record.at for record in records if record.state is TaskState.READY and record.at is not None]
        since = rows.ended_from(self._wire.now() - window_seconds)
        ended: dict[str, int] = {}
        firsts: list[float] = []
        begin, end = rows.below("i")
        for row in await self._wire.all(self._queue, begin, end, select="Outcome,Then", most=_MOST_COUNTED):
            if row["RowKey"] >= since:
                ended[row["Outcome"]] = ended.get(row["Outcome"], 0) + 1
                firsts.append(int(row["RowKey"].split("!")[1]) / 1000)
            name = rows.FINAL.get(row["Then"])
            if name is not None:
                states[name] += 1
        dead = await self._dead()
        if dead is not None:  # some may have been put back since
            states[TaskState.DEAD] = dead
        oldest = max(0.0, self._wire.now() - min(ready)) if ready else None
        return JournalStats(
            states=states,
            oldest_ready_seconds=oldest,
            ended=ended,
            window_seconds=window_seconds,
            first_ended_seconds=max(0.0, self._wire.now() - min(firsts)) if firsts else None,
        )

    async def cancel(self, ids: Sequence[str]) -> list[Canceled]:
        """Record that tasks are to end; a worker reads it before it starts them, and once in each renewal period.

        `canceled` of one that waits says that no worker with a journal will start it: it ends when one receives it.
        The request is recorded, too, for a task that the journal has not heard of.
        """
        return await answered(self._cancel(list(ids)))

    async def _cancel(self, ids: list[str]) -> list[Canceled]:
        found = await self._find(ids)
        requests = [
            self._request(life, record) for life, record in found.items() if record is None or not record.state.is_final
        ]
        for start in range(0, len(requests), MOST_ROWS):
            await self._cancel_requests.record(requests[start : start + MOST_ROWS])
        return [_answer(found[self._meant(id_)]) for id_ in ids]

    def _request(self, life: Life, record: TaskRecord | None) -> CancelRequest:
        """Return the request that a life ends."""
        if record is None:
            return CancelRequest.of(*life, at=self._wire.now())
        return CancelRequest.of(*self._meant(record.id), at=self._wire.now())


def _answer(record: TaskRecord | None) -> Canceled:
    if record is None:
        return Canceled.UNKNOWN
    if record.state.is_final:
        return Canceled.CANCELED if record.state is TaskState.CANCELED else Canceled.ENDED
    return Canceled.STOPPING if record.state is TaskState.RUNNING else Canceled.CANCELED
