"""One queue's ledger: entries are read, and changed by compare-and-set, so that an answer that was lost is understood.

A change is decided by what the entry says. Where another was faster, or the answer was lost, the entry is read once
more and decided again: who decides sees that it is done already.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from jobq.errors import AnswerLost, BackendUnavailable, ConfigurationError
from jobq_azure.common.errors import NoAnswer
from jobq_azure.ledger import entries
from jobq_azure.ledger.entries import LedgerEntry
from jobq_azure.table_journal.client import Row, TableWire, Verb, Write
from jobq_azure.table_journal.errors import WriteRefused
from jobq_azure.table_journal.lookup import answered, for_each

_TRIES: Final = 4


@dataclass(frozen=True, slots=True)
class EntryChange:
    """What is to be written of a task.

    Attributes:
        values: those that change.
        opens: whether it has not ended from then on, or has ended; None = as it was.
    """

    values: Mapping[str, Any]
    opens: bool | None = None

    def writes(self, task_id: str, entry: LedgerEntry, *, is_absent: bool = False) -> list[Write]:
        """Return what is written of a task; `is_absent`: its row of what has not ended is not there."""
        found = [Write(Verb.MERGE, entries.key("m", task_id), self.values, entry.etag)]
        if self.opens is False:
            return found if is_absent else [*found, Write(Verb.DELETE, entries.key("u", task_id), {})]
        return [*found, Write(Verb.REPLACE, entries.key("u", task_id), {})] if self.opens else found


Decide = Callable[[LedgerEntry | None], EntryChange | None]


class Ledger:
    """Of one queue.

    Args:
        wire: to the table.
    """

    def __init__(self, wire: TableWire) -> None:
        self.wire = wire
        self.queue = wire.place.queue

    def partition(self, book: str, task_id: str) -> str:
        """Return the partition of a task's rows."""
        return entries.partition_of(self.queue, book, task_id)

    async def find(self, book: str, task_id: str) -> LedgerEntry | None:
        """Return what is known of a task; raises NoAnswer."""
        row = await self.wire.get(self.partition(book, task_id), entries.key("m", task_id))
        return None if row is None else LedgerEntry(row)

    async def among(self, partition: str, task_ids: Sequence[str], kind: str = "m") -> dict[str, Row]:
        """Return rows of tasks of one partition, by id, with their etags; raises NoAnswer."""
        keys = sorted(entries.key(kind, id_) for id_ in task_ids)
        found, more = await self.wire.look(partition, keys[0], f"{keys[-1]}!", etags=True)
        wanted = set(keys)
        if more is not None:  # many lie between them: each is asked for
            asked = await for_each(keys, lambda key: self.wire.get(partition, key))
            found = [row for row in asked if row is not None]
        return {entries.id_in(row): row for row in found if row["RowKey"] in wanted}

    async def change(
        self, book: str, task_id: str, decide: Decide, known: LedgerEntry | None = None
    ) -> LedgerEntry | None:
        """Change what is known of a task, or leave it; return how it is then.

        Args:
            book: in which it is kept.
            task_id: its id.
            decide: given what the ledger says, returns what to write; None = nothing. May raise.
            known: what it said last; None = it is read.

        Raises:
            BackendUnavailable: nothing was changed, or nobody knows (AnswerLost); it may be repeated.
        """
        partition, entry, lost = self.partition(book, task_id), known, ""
        is_absent = False
        for _ in range(_TRIES):
            try:
                entry = await self.find(book, task_id) if entry is None else entry
                change = decide(entry)
                if change is None:
                    return entry
                assert entry is not None, "what is not there is not changed"
                etags = await self.wire.write(partition, change.writes(task_id, entry, is_absent=is_absent))
                return entry.changed(change.values, etags[0])
            except WriteRefused as refused:
                if not refused.is_conflict:
                    raise ConfigurationError(str(refused)) from None
                if refused.code == "ResourceNotFound":
                    is_absent = await answered(self.wire.get(partition, entries.key("u", task_id))) is None
            except NoAnswer as error:
                lost = str(error)
            entry = None
        if lost:
            raise AnswerLost(lost)
        raise BackendUnavailable(f"{self.wire.place}: task {task_id} is changed by others all the time")
