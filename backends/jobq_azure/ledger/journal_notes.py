"""Notes for the journal of ends that only the ledger has: of what ended without a worker, or whose worker died then."""

from typing import Any, Final

from jobq.fencing import FencingNumber
from jobq.formats.wire_v3 import batch_of_book
from jobq_azure.ledger.entries import ENDED, LedgerEntry
from jobq_azure.table_journal import entities as rows
from jobq_azure.table_journal.batch_writer import Writer
from jobq_azure.table_journal.client import Row, TableWire, Verb
from jobq_azure.table_journal.note import fixed

_CANCELED: Final = "canceled"
_LAST_WORD: Final = (1 << 63,)  # in the writer's order: nothing follows what is not put back


class JournalNotes:
    """Of one queue.

    Args:
        wire: to the table.
        writer: writes them.
    """

    def __init__(self, wire: TableWire, writer: Writer) -> None:
        self._wire = wire
        self._writer = writer
        self._queue = wire.place.queue

    def ended(self, entry: LedgerEntry, book: str) -> None:
        """Record how a task has ended, unless the journal knows, or tells of a later attempt.

        Args:
            entry: what the ledger says of it.
            book: in which it is kept.
        """
        if entry.state != ENDED or not rows.is_final(entry.then):
            return  # gone, which the journal forgets; or never acknowledged
        values: dict[str, Any] = {"State": rows.DONE, "At": entry.at, "Then": entry.then}
        if (name := batch_of_book(book)) is not None:
            values["Batch"] = name
        values["Fencing"] = rows.order(_number_of(entry, None))
        key = rows.live(entry.id, entry.id.birth)
        note = fixed(self._queue, key, values, order=_LAST_WORD if entry.then == _CANCELED else entry.fencing)
        is_stale = False

        async def look() -> None:
            nonlocal is_stale
            row = await self._wire.get(self._queue, key)
            note.verb, note.etag = (Verb.INSERT, "") if row is None else (Verb.REPLACE, str(row["odata.etag"]))
            is_stale = row is not None and _knows_more(row, entry)
            values["Fencing"] = rows.order(_number_of(entry, row))

        note.look, note.make = look, lambda: None if is_stale else values
        self._writer.add([note])


def _knows_more(row: Row, entry: LedgerEntry) -> bool:
    """Return whether the journal knows of this end, or of a later delivery.

    The epochs of the two are not the same: a ledger has that of the message, and a journal one that also says when the
    service took it. So deliveries are compared, which only rise.
    """
    if row["State"] == rows.DONE and row.get("Then") == entry.then:
        return True
    was_put_back = entry.fencing.epoch > 0 and entry.fencing.delivery == 0  # then it says of no delivery
    return not was_put_back and rows.fencing_in(row["Fencing"]).delivery > entry.fencing.delivery


def _number_of(entry: LedgerEntry, row: Row | None) -> FencingNumber:
    """Return under which number an end is recorded: that of its attempt.

    What was canceled while it waited is of no attempt: its number is behind that of the last one, and of its way back
    to the queue, whose word may come late.
    """
    own = entry.fencing
    known = own if row is None else rows.fencing_in(row["Fencing"])
    highest = FencingNumber(*map(max, own, known))
    if entry.then != _CANCELED:
        return highest._replace(generation=own.generation)
    return highest._replace(generation=max(known.generation, own.generation + 1) + 1)
