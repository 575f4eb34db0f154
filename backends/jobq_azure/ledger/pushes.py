"""A push of tasks of batches: entered in the ledger, then queued, then known to be queued.

What is entered and not known to be queued has a row `p!TASK`. A push that died is repeated with the same ids: what has
such a row is sent once more, the rest is known. So a message may be there twice, and its task is run once (`claims`).
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, Final

from jobq.batches import BatchState, missing, sealed
from jobq.errors import BackendUnavailable, DuplicateTask, JobqError
from jobq.formats.wire_v3 import batch_of_book
from jobq.task import Task, new_id
from jobq_azure.common.errors import NoAnswer
from jobq_azure.common.letter_work import work_of
from jobq_azure.ledger import entries, heads
from jobq_azure.ledger.entries import ENDED, NEVER_HELD, REVOKED, WAITING, LedgerEntry
from jobq_azure.ledger.heads import Head, Heads
from jobq_azure.ledger.ledger import EntryChange, Ledger
from jobq_azure.table_journal import entities as rows
from jobq_azure.table_journal.client import MOST_ROWS, Row, Verb, Write
from jobq_azure.table_journal.errors import WriteRefused
from jobq_azure.table_journal.lookup import answered

_ROWS_OF_ONE: Final = 3
_AT_ONCE: Final = 8
_TRIES: Final = 4
_MOST_WORKS: Final = 100  # pushes of one task of which an entry knows
_MARK_PAUSES: Final = (0.2, 0.5, 1.0)


class LedgerPush:
    """One push.

    Args:
        ledger: of the queue.
        batches: of the queue.
        kept: each task, and before it the name of its batch; or, of what is run at an end, the book in which that is
            kept.
    """

    def __init__(self, ledger: Ledger, batches: Heads, kept: Sequence[tuple[str, Task]]) -> None:
        self._ledger = ledger
        self._heads = batches
        self._name = new_id()
        self._kept = kept
        self._tasks: dict[str, dict[str, Task]] = {}  # by partition, by id
        self._books: dict[str, str] = {}  # by partition
        self._openings: dict[str, int] = {}  # likewise: of its batch
        self._entered: dict[tuple[str, str], str] = {}  # by partition and id: its etag; "" = not known
        self._unmarked: set[tuple[str, str]] = set()  # likewise: those whose push is not known to be over
        self._unsent: set[tuple[str, str]] = set()  # likewise: those to be queued
        self._adopted: set[tuple[str, str]] = set()  # likewise: those of another push, which is not known to be over
        self._revoked: dict[tuple[str, str], str] = {}  # likewise: what a seal has taken for dead, and its etag

    async def enter(self) -> list[Task]:
        """Enter the tasks, and return those that are to be queued, as they go into messages.

        Raises:
            BatchNotFound, BatchSealed, DuplicateTask: nothing was entered.
            BackendUnavailable: some may be entered; a repetition with the same ids goes on with them.
        """
        found = await self._found()
        self._sort(found)
        is_open = {name: head.state == heads.OPEN for name, head in found.items()}
        try:
            await _each(list(self._tasks), lambda partition: self._enter_into(partition, is_open))
            for name, head in found.items() if self._entered else ():
                # Again: a seal that came meanwhile has perhaps not seen them (`sealing`).
                _check_open(head, await self._heads.get(name))
        except JobqError:
            await self.take_back()
            raise
        return [
            task.in_ledger(self._books[partition])
            for partition, tasks in self._tasks.items()
            for id_, task in tasks.items()
            if (partition, id_) in self._unsent
        ]

    async def _found(self) -> dict[str, Head]:
        found: dict[str, Head] = {}
        for name in sorted({name for given, _ in self._kept if (name := batch_of_book(given)) is not None}):
            head = await self._heads.get(name)
            if head is None:
                raise missing(name)
            found[name] = head
        return found

    def _sort(self, found: dict[str, Head]) -> None:
        for given, task in self._kept:
            book = found[given].book if given in found else given
            partition = self._ledger.partition(book, task.id)
            known = self._tasks.setdefault(partition, {}).setdefault(task.id, task)
            self._books[partition] = book
            self._openings[partition] = found[given].opening if given in found else 0
            if known.fingerprint() != task.fingerprint():
                raise _duplicate(task.id)

    async def _enter_into(self, partition: str, is_open: dict[str, bool]) -> None:
        tasks = list(self._tasks[partition].values())
        name = batch_of_book(self._books[partition])
        if name is not None and not is_open[name]:
            if await self._without_known(partition, tasks):
                raise sealed(name, BatchState.SEALED)
            return
        most = MOST_ROWS // _ROWS_OF_ONE
        for start in range(0, len(tasks), most):
            await self._enter_some(partition, tasks[start : start + most])

    async def _enter_some(self, partition: str, tasks: list[Task]) -> None:
        lost = ""
        for _ in range(_TRIES):
            if not tasks:
                return
            writes = [write for task in tasks for write in self._writes(partition, task)]
            try:
                etags = await self._ledger.wire.write(partition, writes)
            except WriteRefused as refused:
                if not refused.is_conflict:
                    raise BackendUnavailable(str(refused)) from None
            except NoAnswer as error:
                lost = str(error)
            else:
                self._note(partition, {task.id: etag for task, etag in zip(tasks, etags[::_ROWS_OF_ONE], strict=True)})
                return
            tasks = await self._without_known(partition, tasks)
        raise BackendUnavailable(lost or f"{self._ledger.wire.place}: these tasks are pushed by others, too")

    def _note(self, partition: str, etags: dict[str, str]) -> None:
        for id_, etag in etags.items():
            self._entered[partition, id_] = etag
            self._unmarked.add((partition, id_))
            self._unsent.add((partition, id_))

    def _writes(self, partition: str, task: Task) -> list[Write]:
        now = self._ledger.wire.now()
        values: dict[str, Any] = {
            "State": WAITING,
            "Fencing": rows.order(NEVER_HELD),
            "Born": str(rows.birth(task.created)),
            "At": now,
            "Due": float(task.not_before or now),
            "Work": task.fingerprint().hex(),
            "Works": work_of(task),
            "Push": self._name,
            "Opening": self._openings[partition],
        }
        rows.put(values, "Params", json.dumps(task.params).encode() if task.params else b"")
        revoked = self._revoked.get((partition, task.id))
        if revoked is not None:  # nobody was told that it is queued: it is entered anew
            values |= {"Then": "", "Cancel": False}
        return [
            Write(Verb.INSERT if revoked is None else Verb.MERGE, entries.key("m", task.id), values, revoked or ""),
            *(Write(Verb.INSERT if revoked is None else Verb.REPLACE, entries.key(kind, task.id), {}) for kind in "up"),
        ]

    async def _without_known(self, partition: str, tasks: Sequence[Task]) -> list[Task]:
        """Return those that are not entered; of the others note which are to be queued."""
        ids = [task.id for task in tasks]
        first = await answered(self._ledger.among(partition, ids))
        pushing = await answered(self._ledger.among(partition, ids, "p"))
        # Once more: one that is not being pushed is known to be queued, or was taken back between the two.
        known = await answered(self._ledger.among(partition, ids))
        unknown, found = list[Task](), list[LedgerEntry]()
        for task in tasks:
            row, place = known.get(task.id), (partition, task.id)
            if row is None or task.id not in first:
                self._revoked.pop(place, None)
                unknown.append(task)
                continue
            entry = LedgerEntry(row)
            if entry.fingerprint != task.fingerprint().hex():
                raise _duplicate(task.id)
            if entry.is_revoked:
                self._revoked[place] = entry.etag
                unknown.append(task)
            elif entry.push == self._name and place not in self._adopted:  # the answer was lost
                self._note(partition, {task.id: entry.etag})
            elif task.id in pushing:
                found.append(entry)
            elif entry.push != LedgerEntry(first[task.id]).push:  # taken back, and entered by yet another
                unknown.append(task)
        missed = await self._adopt(partition, found)
        return unknown + [task for task in tasks if task.id in missed]

    async def _adopt(self, partition: str, found: Sequence[LedgerEntry]) -> set[str]:
        """Go on with what pushes have entered that died, or go on; return the ids that are to be looked at again.

        By a change of the entries, so that the others take nothing back that this one is about to queue.
        """
        self._unmarked |= {(partition, str(entry.id)) for entry in found}
        unsent = [entry for entry in found if entry.was_never_claimed]  # of the others the messages are there
        missed = set[str]()
        for start in range(0, len(unsent), MOST_ROWS):
            some = unsent[start : start + MOST_ROWS]
            ids = {str(entry.id) for entry in some}
            self._adopted |= {(partition, id_) for id_ in ids}
            writes = [
                Write(Verb.MERGE, entries.key("m", str(entry.id)), self._own(partition, entry), entry.etag)
                for entry in some
            ]
            try:
                await answered(self._ledger.wire.write(partition, writes))
            except WriteRefused as refused:
                if not refused.is_conflict:
                    raise BackendUnavailable(str(refused)) from None
                missed |= ids
            else:
                self._unsent |= {(partition, id_) for id_ in ids}
        return missed

    def _own(self, partition: str, entry: LedgerEntry) -> dict[str, Any]:
        works = dict.fromkeys([*entry.works, work_of(self._tasks[partition][str(entry.id)])])
        kept = list(works)[-_MOST_WORKS:]
        return {"Push": self._name, "Opening": self._openings[partition], "Works": " ".join(kept)}

    async def take_back(self) -> None:
        """Take back what this push has entered, none of which is queued; what cannot be, a repetition goes on with."""

        async def of(place: tuple[str, str]) -> None:
            partition, id_ = place
            keys = (entries.key(kind, id_) for kind in "mup")
            first, *rest = (Write(Verb.DELETE, key, {}) for key in keys)
            own = Write(Verb.DELETE, first.row, {}, self._entered[place])
            try:
                await self._ledger.wire.write(partition, [own, *rest])
            except WriteRefused:  # it was changed: by a cancel of the batch, or by a push of the same
                with suppress(JobqError):
                    await self._ledger.change(self._books[partition], id_, revoked)
            except (NoAnswer, JobqError):
                return

        def revoked(entry: LedgerEntry | None) -> EntryChange | None:
            is_own = entry is not None and entry.push == self._name and entry.fencing == NEVER_HELD
            is_canceled = is_own and entry is not None and entry.state == ENDED and entry.then == "canceled"
            return EntryChange({"Then": REVOKED}) if is_canceled else None

        await _each(list(self._entered), of)
        self._entered.clear()
        self._unmarked.clear()

    async def mark(self) -> None:
        """Note that all of them are queued.

        Raises:
            BackendUnavailable: that is not noted; a repetition with the same ids is.
        """
        left = {partition: set[str]() for partition, _ in self._unmarked}
        for partition, id_ in self._unmarked:
            left[partition].add(id_)

        async def of(partition: str) -> None:
            ids = sorted(left[partition])
            for start in range(0, len(ids), MOST_ROWS):
                await self._mark_some(partition, ids[start : start + MOST_ROWS])

        await _each(list(left), of)

    async def _mark_some(self, partition: str, ids: list[str]) -> None:
        lost: Exception | None = None
        for pause in (*_MARK_PAUSES, 0.0):
            try:
                if ids:
                    await self._ledger.wire.write(
                        partition, [Write(Verb.DELETE, entries.key("p", id_), {}) for id_ in ids]
                    )
                return
            except WriteRefused as refused:
                if not refused.is_conflict:
                    raise BackendUnavailable(str(refused)) from None
            except (NoAnswer, BackendUnavailable) as error:
                lost = error
                await asyncio.sleep(pause)
            try:
                ids = await self._still_marked(partition, ids)
            except NoAnswer as error:
                lost = error
        raise BackendUnavailable(str(lost or f"{self._ledger.wire.place}: these tasks are pushed by others, too"))

    async def _still_marked(self, partition: str, ids: list[str]) -> list[str]:
        """Return those whose push is not known to be over; raises BackendUnavailable where one was revoked."""
        there = await self._ledger.among(partition, ids, "p")
        if noted := [id_ for id_ in ids if id_ not in there]:
            found: dict[str, Row] = await self._ledger.among(partition, noted)
            if len(found) < len(noted):
                raise BackendUnavailable("another push of these tasks has taken them back; push them again")
            if any(LedgerEntry(row).is_revoked for row in found.values()):
                raise BackendUnavailable(
                    "this push took so long that a seal of its batch has taken it for dead; nothing of it is run."
                    " Push it again once the batch is open"
                )
        return [id_ for id_ in ids if id_ in there]


def _check_open(head: Head, now: Head | None) -> None:
    if now is None or now.book != head.book:
        raise missing(head.name)
    if now.state != heads.OPEN:
        raise sealed(now.name, now.shown_state)


def _duplicate(id_: str) -> DuplicateTask:
    return DuplicateTask(f"the id {id_} is that of another task of this batch; nothing of this push was added")


async def _each(items: Sequence[Any], do: Callable[[Any], Awaitable[None]]) -> None:
    """Do something with each, some at once, all of them to their end; raise what the first one raises."""
    turn = asyncio.Semaphore(_AT_ONCE)

    async def one(item: Any) -> None:
        async with turn:
            await do(item)

    ended = await asyncio.gather(*map(one, items), return_exceptions=True)
    for error in ended:
        if isinstance(error, BaseException):
            raise error
