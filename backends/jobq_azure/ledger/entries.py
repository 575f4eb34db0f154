"""The rows of a ledger in the journal's table: their keys, and what they hold.

A task of a batch is kept from before it is queued until its batch is forgotten. Its rows are in one of the sixteen
partitions of its batch, by its id, so that what belongs together is written together:

    QUEUE!b!BOOK!SHARD      m!TASK    what has become of it (`LedgerEntry`)
                            u!TASK    there until it has ended
                            p!TASK    there until its push knows that it is queued
    QUEUE!b                 h!BATCH   the batch itself (`heads`)
                            f!BOOK    there once it was forgotten: a message of it is of this table, and comes too late

BOOK is BATCH~LIFE, for a name is free again once its batch is forgotten, and messages of that one may be left over,
scheduled and canceled: they are of a book of which nothing is known. What is run when a batch has finished is kept in
the same way, with a dot before its book: then a message that was sent twice, because nobody knew of the first, is not
run twice.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final

from jobq.fencing import FencingNumber
from jobq_azure.table_journal import entities as rows
from jobq_azure.table_journal.client import Row
from jobq_azure.table_journal.entities import IdOfLife

SHARDS: Final = "0123456789abcdef"
WAITING: Final = "waiting"  # for its message, or to be handed out again
RUNNING: Final = "running"  # a worker has it, or had
REDRIVING: Final = "redriving"  # is being put back; still a dead letter, as far as is known
ENDED: Final = "ended"
GONE: Final = "gone"  # of what has ended: cleared or purged
REVOKED: Final = "revoked"  # likewise: was never acknowledged, and counts for nothing
DEAD: Final = "dead"
NEVER_HELD: Final = FencingNumber(0, 0, 0)


def heads_of(queue: str) -> str:
    """Return the partition of a queue's batches."""
    return f"{queue}!b"


def partition_of(queue: str, book: str, task_id: str) -> str:
    """Return the partition of a task's rows.

    Args:
        queue: the partition of the queue.
        book: of its batch, or AT_ITS_END and that.
        task_id: its id.
    """
    shard = SHARDS[blake2b(task_id.encode(errors="replace"), digest_size=1).digest()[0] % len(SHARDS)]
    return f"{queue}!b!{book}!{shard}"


def partitions_of(queue: str, book: str) -> list[str]:
    """Return all partitions of a book."""
    return [f"{queue}!b!{book}!{shard}" for shard in SHARDS]


def book_in(partition: str, queue: str) -> str:
    """Return whose partition it is."""
    return partition.removeprefix(f"{queue}!b!").rpartition("!")[0]


def key(kind: str, task_id: str) -> str:
    """Return the key of a task's row: `m`, `u` or `p`."""
    return f"{kind}!{rows.safe(task_id)}"


def id_in(row: Row) -> str:
    """Return the id of the task whose row it is."""
    return rows.unsafe(row["RowKey"].partition("!")[2])


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """What the ledger says of a task.

    Attributes:
        row: as it was read, or as it has been written since.
    """

    row: Mapping[str, Any]

    @property
    def etag(self) -> str:
        """By which it is changed only as it was read."""
        return str(self.row["odata.etag"])

    @property
    def id(self) -> IdOfLife:
        """The task's."""
        return IdOfLife.of(id_in(dict(self.row)), int(str(self.row.get("Born") or 0)))

    @property
    def state(self) -> str:
        """WAITING, RUNNING, REDRIVING or ENDED."""
        return str(self.row["State"])

    @property
    def then(self) -> str:
        """How it has ended: `done`, `dead`, `canceled`, GONE or REVOKED; empty = it has not."""
        return str(self.row.get("Then") or "")

    @property
    def is_dead(self) -> bool:
        """Whether it is a dead letter, as far as is known."""
        return self.state == REDRIVING or (self.state == ENDED and self.then == DEAD)

    @property
    def is_revoked(self) -> bool:
        """Whether it was never acknowledged: a seal, or its own push, has taken it back."""
        return self.state == ENDED and self.then == REVOKED

    @property
    def was_never_claimed(self) -> bool:
        """Whether it waits, and no worker has met it in this ledger: of one that knows none it is a dead letter."""
        return self.state == WAITING and self.fencing == NEVER_HELD

    @property
    def fencing(self) -> FencingNumber:
        """Of the last claim: the epoch and the generation that stand in the message, and which delivery it was."""
        return rows.fencing_in(self.row["Fencing"])

    def is_claimed_as(self, origin: str, step: tuple[int, int]) -> bool:
        """Return whether this is the message that was claimed, or one that may be.

        Args:
            origin: of the message.
            step: the epoch and the generation that stand in it.
        """
        return step >= self.fencing[:2] and self.origin in ("", origin)

    @property
    def origin(self) -> str:
        """Of the message that was claimed; empty = none was, or any may come."""
        return str(self.row.get("Origin") or "")

    @property
    def at(self) -> float:
        """Wall time in seconds since when it is so."""
        return float(self.row.get("At") or 0.0)

    @property
    def due(self) -> float:
        """Wall time in seconds before which it is not handed out."""
        return float(self.row.get("Due") or 0.0)

    @property
    def opening(self) -> int:
        """Of its batch when it was entered, or put back; see `Head.opening`."""
        return int(self.row.get("Opening") or 0)

    @property
    def is_to_end(self) -> bool:
        """Whether its batch was canceled while it ran."""
        return bool(self.row.get("Cancel"))

    @property
    def push(self) -> str:
        """Names the push that has entered it."""
        return str(self.row.get("Push") or "")

    @property
    def fingerprint(self) -> str:
        """Of its work (S8)."""
        return str(self.row.get("Work") or "")

    @property
    def works(self) -> list[str]:
        """`letter_work.work_of` each push of it: who signs the same work anew makes another text of it."""
        return str(self.row.get("Works") or "").split()

    @property
    def is_unproven(self) -> bool:
        """Whether it was last claimed, or purged, with a payload that is lost: nobody knows what work that was."""
        return bool(self.row.get("Unproven"))

    def may_be(self, work: str) -> bool:
        """Return whether a message or a letter of this work is one of this task; empty = its payload is lost."""
        return not work or work in self.works

    @property
    def reason(self) -> str:
        """Why it is dead: one word."""
        return str(self.row.get("Reason") or "unknown")

    @property
    def description(self) -> str:
        """Why it is dead, for people."""
        return rows.taken(self.row, "Description").decode(errors="replace")

    @property
    def params(self) -> bytes:
        """As it was pushed with, JSON; empty = with none."""
        return rows.taken(self.row, "Params")

    def changed(self, values: Mapping[str, Any], etag: str) -> "LedgerEntry":
        """Return it as it is once these values have been written."""
        return LedgerEntry({**self.row, **values, "odata.etag": etag})
