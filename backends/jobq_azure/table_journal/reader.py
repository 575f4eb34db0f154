"""The journal of one Azure queue, read from its table; and cancel requests, recorded there.

It knows what was pushed and run with the journal on, as far as it could be recorded. What it says of the end of
a task is true: that was written after the queue had confirmed it (S5). What it has not heard of it does not claim: a
worker that dies between a settle and its note leaves a task `expired`, which says only that nothing of it runs.
"""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Final, TypeVar

from jobq.errors import BackendUnavailable, StoreUnusable
from jobq.fencing import FencingNumber
from jobq.journal.records import Attempt, Canceled, JournalStats, TaskRecord, TaskState
from jobq_azure.common.errors import NoAnswer
from jobq_azure.table_journal import entities as rows
from jobq_azure.table_journal.cancel_requests import CancelRequest, CancelRequests, is_meant
from jobq_azure.table_journal.client import MOST_ROWS, Row, TableWire
from jobq_azure.table_journal.pushed_tasks import PushedTasks

_S = TypeVar("_S")
_T = TypeVar("_T")
_ASKED_AT_ONCE: Final = 32
_MOST_LIVE: Final = 1_000_000
_MOST_COUNTED: Final = 1_000_000  # attempts that `stats` counts
_MOST_ATTEMPTS: Final = 10_000  # of one task
_PAGES_OF_IDS: Final = 3  # ids of one push lie beside each other: some pages show them all, or else each is asked for
_NOT_DONE: Final = f"State ne '{rows.DONE}'"


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
        self._cancel_requests = cancel_requests
        self._pushed = pushed
        self._dead = dead

    async def find(self, ids: Sequence[str]) -> list[TaskRecord]:
        """Look up by id."""
        return await _answered(self._find(list(dict.fromkeys(ids))))

    async def _find(self, ids: list[str]) -> list[TaskRecord]:
        expected = self._pushed.seen_in_table(ids)
        live, requests = await asyncio.gather(self._live(ids), self._cancel_requests.among(ids))
        return await self._records(ids, live, requests, expected)

    async def _records(
        self, ids: list[str], live: dict[str, Row], requests: dict[str, CancelRequest], expected: set[str]
    ) -> list[TaskRecord]:
        async def record(id_: str) -> TaskRecord | None:
            row = live.get(id_)
            cancel_requested = is_meant(requests.get(id_), self._pushed.born_of(id_, row))
            return await self._record(id_, row, cancel_requested=cancel_requested, is_expected=id_ in expected)

        return [record for record in await self._each(ids, record) if record is not None]

    async def _live(self, ids: list[str]) -> dict[str, Row]:
        """Return the rows of tasks that are where they are."""
        keys = sorted(rows.live(id_) for id_ in ids)
        if len(keys) > _ASKED_AT_ONCE:
            found, after = dict[str, Row](), None
            for _ in range(_PAGES_OF_IDS):
                page, after = await self._wire.look(self._queue, keys[0], f"{keys[-1]}!", after=after)
                found |= {row["RowKey"]: row for row in page}
                if after is None:
                    return {id_: found[key] for id_ in ids if (key := rows.live(id_)) in found}
        each = await self._each(ids, lambda id_: self._wire.get(self._queue, rows.live(id_)))
        return {id_: row for id_, row in zip(ids, each, strict=True) if row is not None}

    async def _record(
        self, id_: str, row: Row | None, *, cancel_requested: bool, is_expected: bool = False
    ) -> TaskRecord | None:
        ours = self._pushed.get(id_)
        if row is not None and not self._pushed.is_anothers(id_, row):
            record = await self._record_of_row(id_, row, cancel_requested=cancel_requested)
            if ours is not None:
                ours.is_seen = ours.was_found = True
                ours.has_ended = record.state.is_final
            return record
        own = await self._own_attempts(id_)
        if own and rows.is_final(str(own[-1].get("Then", ""))):
            if ours is not None:
                ours.has_ended = True
            return rows.ended_record(id_, own[-1])
        if ours is not None and row is not None:
            ours.is_seen = False  # when that is forgotten, nothing stands there of ours
        # Two tasks of one id share a row: the one that was recorded last stands there.
        if ours is None or ours.has_ended or (row is None and ours.was_found and (is_expected or own)):
            return None
        ours.was_found = True
        return replace(ours.record, cancel_requested=cancel_requested)

    async def _record_of_row(self, id_: str, row: Row, *, cancel_requested: bool) -> TaskRecord:
        fencing = rows.fencing_in(row["Fencing"])
        if row["State"] == rows.DONE:
            ended = await self._wire.get(self._queue, rows.attempt_key(id_, fencing))
            return rows.done_record(id_, row) if ended is None else rows.ended_record(id_, ended)
        record = rows.live_record(row, self._wire.now(), cancel_requested=cancel_requested)
        has_ended = fencing.delivery - (record.state is TaskState.RUNNING)  # so many attempts, or fewer
        last = await self._last(id_, str(row.get("Born") or "")) if has_ended > 0 else None
        if last is None:
            return record
        is_over = record.state is TaskState.EXPIRED or rows.is_final(str(last.get("Then", "")))
        if is_over and rows.fencing_of(last) >= fencing:
            return rows.ended_record(id_, last)  # the row is a late word of an attempt that has ended
        return replace(record, last=rows.decoded(last))

    async def _last(self, id_: str, born: str = "") -> Row | None:
        """Return the last attempt; of the task of this birth, where that is known."""
        found = await self._attempt_rows(id_)
        own = [each for each in found if not born or each.get("Born", "") in ("", born)]
        return own[-1] if own else None

    async def _own_attempts(self, id_: str) -> list[Row]:
        """Return the attempts of the task of this id that we have pushed; of any, if we have pushed none."""
        found = await self._attempt_rows(id_)
        return [each for each in found if not self._pushed.is_anothers(id_, each, rows.decoded(each).ended)]

    async def _attempt_rows(self, id_: str) -> list[Row]:
        first, end = rows.below(f"a!{rows.safe(id_)}")
        return await self._wire.all(self._queue, first, end, most=_MOST_ATTEMPTS)

    async def running(self, limit: int) -> list[TaskRecord]:
        """List what is leased, or was."""
        return await _answered(self._running(limit))

    async def _running(self, limit: int) -> list[TaskRecord]:
        first, end = rows.below("l")
        found = await self._wire.all(self._queue, first, end, where="State eq 'running'", most=_MOST_LIVE)
        records = await self._verified(found)
        leased = [each for each in records if each.state in (TaskState.RUNNING, TaskState.EXPIRED)]
        leased.sort(key=lambda record: record.leased_at or 0.0)
        return leased[:limit]

    async def unfinished(self, after: str, limit: int) -> list[TaskRecord]:
        """List what has not ended; in the order of the keys, which is that of the ids but for signs in them."""
        return await _answered(self._unfinished(after, limit))

    async def _unfinished(self, after: str, limit: int) -> list[TaskRecord]:
        first, end = rows.below("l")
        start = f"{rows.live(after)}!" if after else first
        while True:
            found = await self._wire.all(self._queue, start, end, where=_NOT_DONE, most=limit)
            records = [each for each in await self._verified(found) if not each.state.is_final]
            if records or not found:
                return records
            start = f"{found[-1]['RowKey']}!"

    async def _verified(self, found: list[Row]) -> list[TaskRecord]:
        """Return where tasks are; of a lease that is over it is looked whether the attempt has ended after all."""
        requests: dict[str, CancelRequest] = {}
        if found:
            requests = await self._cancel_requests.among([rows.id_of(row) for row in found])
        now = self._wire.now()
        records = [
            rows.live_record(
                row, now, cancel_requested=is_meant(requests.get(rows.id_of(row)), str(row.get("Born") or ""))
            )
            for row in found
        ]

        async def looked(record: TaskRecord, row: Row) -> TaskRecord:
            if record.state is not TaskState.EXPIRED:
                return record
            return await self._record(record.id, row, cancel_requested=record.cancel_requested) or record

        pairs = list(zip(records, found, strict=True))
        return await self._each(pairs, lambda pair: looked(*pair))

    async def attempts(self, task_id: str) -> list[Attempt]:
        """Return those that were recorded."""
        return [rows.decoded(row) for row in await _answered(self._attempt_rows(task_id))]

    async def output(self, task_id: str, attempt: int | None = None) -> tuple[int, str] | None:
        """Return the end of an attempt's output."""
        found = await _answered(self._own_attempts(task_id))
        numbers = [rows.fencing_of(row) for row in found]
        wanted = [each for each in numbers if attempt in (None, each.delivery)]
        if not wanted:
            return None
        row = await _answered(self._wire.get(self._queue, rows.output_key(task_id, wanted[-1])))
        return wanted[-1].delivery, "" if row is None else rows.taken(row, "Output").decode(errors="replace")

    async def stats(self, window_seconds: float) -> JournalStats:
        """Count: the more has ended within JOBQ_KEEP, the longer it takes, a request for each thousand."""
        return await _answered(self._stats(window_seconds))

    async def _stats(self, window_seconds: float) -> JournalStats:
        first, end = rows.below("l")
        select = "State,Fencing,At,Due,LeaseLeft"
        live = await self._wire.all(self._queue, first, end, where=_NOT_DONE, select=select, most=_MOST_LIVE)
        records = await self._verified(live)
        states = dict.fromkeys(map(str, TaskState), 0)
        for record in records:
            if not record.state.is_final:
                states[record.state] += 1
        ready = [record.at for record in records if record.state is TaskState.READY and record.at is not None]
        since = rows.ended_from(time.time() - window_seconds)
        ended: dict[str, int] = {}
        begin, end = rows.below("i")
        for row in await self._wire.all(self._queue, begin, end, select="Outcome,Then", most=_MOST_COUNTED):
            if row["RowKey"] >= since:
                ended[row["Outcome"]] = ended.get(row["Outcome"], 0) + 1
            name = rows.FINAL.get(row["Then"])
            if name is not None:
                states[name] += 1
        dead = await self._dead()
        if dead is not None:  # some may have been put back since
            states[TaskState.DEAD] = dead
        oldest = max(0.0, time.time() - min(ready)) if ready else None
        return JournalStats(states=states, oldest_ready_seconds=oldest, ended=ended, window_seconds=window_seconds)

    async def cancel(self, ids: Sequence[str]) -> list[Canceled]:
        """Record that tasks are to end; a worker reads it before it starts them, and once in each renewal period.

        `canceled` of one that waits says that no worker with a journal will start it: it ends when one receives it.
        The request is recorded, too, for a task that the journal has not heard of.
        """
        return await _answered(self._cancel(list(ids)))

    async def _cancel(self, ids: list[str]) -> list[Canceled]:
        each = list(dict.fromkeys(ids))
        expected = self._pushed.seen_in_table(each)
        live = await self._live(each)
        found = {record.id: record for record in await self._records(each, live, {}, expected)}
        wanted = [id_ for id_ in each if id_ not in found or not found[id_].state.is_final]
        for start in range(0, len(wanted), MOST_ROWS):
            batch = wanted[start : start + MOST_ROWS]
            await self._cancel_requests.record({id_: self._pushed.born_of(id_, live.get(id_)) for id_ in batch})
        return [_answer(found.get(id_)) for id_ in ids]

    async def cleared(self, before: float, *, running: bool) -> list[Row]:
        """Return the rows of what waited, and of what ran if that was cleared too; and forget what was pushed.

        Args:
            before: wall time in seconds, by the service's clock; what was made later is not of what was cleared.
            running: whether what ran was cleared, too.
        """
        self._pushed.clear()
        first, end = rows.below("l")
        where = _NOT_DONE if running else "State eq 'ready'"
        found = await _answered(
            self._wire.all(self._queue, first, end, where=where, select="State,Born", most=_MOST_LIVE, etags=True)
        )
        now = self._wire.now()
        # The word of a push comes later than the push: what was made before was pushed before, in most cases.
        return [row for row in found if min(now - rows.age(row, now), rows.born_in(row) or math.inf) < before]

    async def purged(self, ids: Sequence[str]) -> list[Row]:
        """Return all rows of tasks that have ended, and not those of a later one that has an id of theirs."""

        async def of(id_: str) -> list[Row]:
            where, attempts = await self._wire.get(self._queue, rows.live(id_)), await self._attempt_rows(id_)
            found = list[Row]()
            if where is None or where["State"] == rows.DONE:
                self._pushed.pop(id_, None)
                found += [where] if where else []
            else:
                attempts = [each for each in attempts if each.get("Born") and each["Born"] != where.get("Born")]
            for attempt in attempts:
                ended, fencing = rows.decoded(attempt).ended, rows.fencing_of(attempt)
                found += [attempt, {"RowKey": rows.ended_key(ended, id_, fencing)}]
                if await self._wire.get(self._queue, rows.output_key(id_, fencing)) is not None:
                    found.append({"RowKey": rows.output_key(id_, fencing)})
            return found

        return [row for found in await _answered(self._each(list(ids), of)) for row in found]

    async def forget_cancel_requests_of_dead(self, ids: Sequence[str]) -> None:
        """Delete the cancel requests of tasks that are dead letters, and no others: those may be queued still."""

        async def forgotten() -> None:
            dead = [record.id for record in await self._find(list(ids)) if record.state is TaskState.DEAD]
            await self._cancel_requests.forget(dead)

        await _answered(forgotten())

    async def dead(self, ids: Sequence[str]) -> dict[str, tuple[FencingNumber, str]]:
        """Return what dead letters have come to: the last fencing number of each, and the etag of where it is.

        The etag is empty where no row says so; a dead letter of which no attempt is known is left out.
        """

        async def known(id_: str) -> tuple[str, tuple[FencingNumber, str]] | None:
            last, where = await asyncio.gather(self._last(id_), self._wire.get(self._queue, rows.live(id_)))
            return None if last is None else (id_, (rows.fencing_of(last), str((where or {}).get("odata.etag", ""))))

        return dict(each for each in await _answered(self._each(list(ids), known)) if each is not None)

    async def _each(self, items: Sequence[_S], ask: Callable[[_S], Awaitable[_T]]) -> list[_T]:
        turn = asyncio.Semaphore(_ASKED_AT_ONCE)

        async def one(item: _S) -> _T:
            async with turn:
                return await ask(item)

        return list(await asyncio.gather(*map(one, items)))


def _answer(record: TaskRecord | None) -> Canceled:
    if record is None:
        return Canceled.UNKNOWN
    if record.state.is_final:
        return Canceled.CANCELED if record.state is TaskState.CANCELED else Canceled.ENDED
    return Canceled.STOPPING if record.state is TaskState.RUNNING else Canceled.CANCELED


async def _answered(call: Awaitable[_T]) -> _T:
    """Return what a look returns; it is safe to repeat."""
    try:
        return await call
    except NoAnswer as error:
        raise BackendUnavailable(str(error)) from None
    except (LookupError, ValueError, TypeError) as error:  # who may write there may write anything
        raise StoreUnusable(f"the journal's table holds what this jobq cannot read ({error!r})") from error
