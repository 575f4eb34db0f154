"""Batches themselves: a row for each, changed by compare-and-set alone.

A batch is `finishing` between the moment when nothing of it was left and the moment when what is to be run then is
queued, for queue and table are two services: whoever comes goes on with it (`finishing`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from jobq.batch_plan import Plan
from jobq.batches import Batch, BatchState, Round, counts_of, missing, rounds_of
from jobq.errors import BackendUnavailable, ConfigurationError, MalformedTask
from jobq.formats.wire_v3 import AT_ITS_END
from jobq_azure.common.errors import NoAnswer
from jobq_azure.ledger.entries import heads_of
from jobq_azure.table_journal import entities as rows
from jobq_azure.table_journal.client import Row, TableWire, Verb, Write
from jobq_azure.table_journal.errors import WriteRefused
from jobq_azure.table_journal.lookup import answered

OPEN: Final = "open"
SEALED: Final = "sealed"
FINISHING: Final = "finishing"
FINISHED: Final = "finished"
FORGETTING: Final = "forgetting"  # its rows are being deleted: it is there for nobody
_TRIES: Final = 8
_MOST_PLAN_BYTES: Final = 512 * 1024  # a row has a megabyte at most
_MOST_HEADS: Final = 100_000


@dataclass(frozen=True, slots=True)
class Head:
    """A batch as its row says. Times are wall times in seconds since the epoch."""

    row: Mapping[str, Any]

    @property
    def name(self) -> str:
        """The batch's."""
        return str(self.row["RowKey"]).partition("!")[2]

    @property
    def book(self) -> str:
        """In which its tasks are kept, and those of no other batch that had the name, or will have it."""
        return f"{self.name}~{self.row['Life']}" if self.row.get("Life") else self.name

    @property
    def book_of_end(self) -> str:
        """In which is kept what is run when it has finished."""
        return f"{AT_ITS_END}{self.book}"

    @property
    def etag(self) -> str:
        """By which it is changed only as it was read."""
        return str(self.row["odata.etag"])

    @property
    def state(self) -> str:
        """OPEN, SEALED, FINISHING, FINISHED or FORGETTING."""
        return str(self.row["State"])

    @property
    def shown_state(self) -> BatchState:
        """Where the batch is for everybody else."""
        return {OPEN: BatchState.OPEN, FINISHED: BatchState.FINISHED}.get(self.state, BatchState.SEALED)

    @property
    def round(self) -> int:
        """From 1."""
        return int(self.row["Round"])

    @property
    def opening(self) -> int:
        """How often it has been opened again, or gone on: what was canceled before has nothing to do with it then."""
        return int(self.row.get("Opening") or 0)

    @property
    def next_opening(self) -> dict[str, object]:
        """What says that it goes on."""
        return {"Opening": self.opening + 1}

    @property
    def is_canceled(self) -> bool:
        """Whether it was canceled in this round."""
        return bool(self.row.get("Canceled"))

    @property
    def created(self) -> float:
        """When it was begun."""
        return float(self.row["Created"])

    @property
    def finished(self) -> float | None:
        """When this round finished; None = it has not."""
        return float(self.row["Finished"]) if self.row.get("Finished") else None

    @property
    def plan(self) -> Plan:
        """What is to be run and told at its end."""
        return Plan.decode(rows.taken(self.row, "Plan").decode())

    @property
    def rounds_text(self) -> str:
        """As `rounds_with` makes it."""
        return rows.taken(self.row, "Rounds").decode() or "[]"

    @property
    def rounds(self) -> list[Round]:
        """Those that have finished."""
        return rounds_of(self.rounds_text)

    def seen(self, counts: Mapping[str, int], rate: float | None = None) -> Batch:
        """Return the batch, counted."""
        is_finished = self.state == FINISHED
        return Batch(
            name=self.name,
            state=self.shown_state,
            round=self.round,
            is_canceled=self.is_canceled,
            template=self.plan.template,
            created=self.created,
            sealed=float(self.row["Sealed"]) if self.row.get("Sealed") else None,
            finished=self.finished if is_finished else None,
            counts=counts_of(counts),
            rounds=[each for each in self.rounds if is_finished or each.number != self.round],
            rate=rate,
        )


def plan_values(plan: Plan) -> dict[str, Any]:
    """Return the values of a row that keep a plan; raises MalformedTask for one that is too large."""
    data = plan.encode().encode()
    if len(data) > _MOST_PLAN_BYTES:
        raise MalformedTask(f"takes {len(data)} bytes, and a table keeps {_MOST_PLAN_BYTES} of a batch", "then")
    values = dict[str, Any]()
    for start in range(0, _MOST_PLAN_BYTES, rows.CHUNK_BYTES):  # one that was longer leaves nothing behind
        rows.put_chunk(values, "Plan", start // rows.CHUNK_BYTES, data[start : start + rows.CHUNK_BYTES])
    return values


Decide = Callable[[Head], Mapping[str, Any] | None]


class Heads:
    """The batches of one queue.

    Args:
        wire: to the table.
    """

    def __init__(self, wire: TableWire) -> None:
        self._wire = wire
        self._partition = heads_of(wire.place.queue)

    async def get(self, name: str, *, forgetting: bool = False) -> Head | None:
        """Return a batch; None = there is none.

        Args:
            name: of it.
            forgetting: also one that is being forgotten.
        """
        row = await answered(self._wire.get(self._partition, f"h!{name}"))
        head = None if row is None else Head(row)
        return None if head is not None and head.state == FORGETTING and not forgetting else head

    async def found(self, name: str) -> Head:
        """Return a batch; raises BatchNotFound."""
        head = await self.get(name)
        if head is None:
            raise missing(name)
        return head

    async def insert(self, name: str, values: Mapping[str, Any]) -> None:
        """Add one, unless somebody else has, perhaps this very call: look afterwards."""
        try:
            await self._wire.write(self._partition, [Write(Verb.INSERT, f"h!{name}", values)])
        except WriteRefused as refused:
            if not refused.is_conflict:
                raise ConfigurationError(str(refused)) from None
        except NoAnswer as error:
            raise BackendUnavailable(str(error)) from None

    async def change(self, name: str, decide: Decide) -> Head:
        """Change one, or leave it; return it as it is then.

        Args:
            name: of it.
            decide: given it, returns what to write; None = nothing. May raise; may be asked again.

        Raises:
            BatchNotFound: as it says.
            BackendUnavailable: nobody knows whether it was changed; it may be repeated.
        """
        lost = ""
        for _ in range(_TRIES):
            head = await self.found(name)
            values = decide(head)
            if values is None:
                return head
            try:
                if (changed := await self.replace(head, values)) is not None:
                    return changed
            except NoAnswer as error:
                lost = str(error)
        raise BackendUnavailable(lost or f"{self._wire.place}: batch {name} is changed by others all the time")

    async def replace(self, head: Head, values: Mapping[str, Any]) -> Head | None:
        """Change one if it is as it was read, and return it; None = it is not. Raises NoAnswer."""
        try:
            write = Write(Verb.MERGE, f"h!{head.name}", values, head.etag)
            (etag,) = await self._wire.write(self._partition, [write])
        except WriteRefused as refused:
            if not refused.is_conflict:
                raise ConfigurationError(str(refused)) from None
            return None
        return Head({**head.row, **values, "odata.etag": etag})

    async def forget(self, head: Head) -> None:
        """Delete one as it was read, and note its book: messages of it may come yet; raises NoAnswer, WriteRefused."""
        own = Write(Verb.DELETE, f"h!{head.name}", {}, head.etag)
        await self._wire.write(self._partition, [own, Write(Verb.REPLACE, f"f!{head.book}", {})])

    async def has_had(self, book: str) -> bool:
        """Return whether a batch of this queue has, or had, this book: so this is its table.

        Args:
            book: of a batch, or of what is run at its end.
        """
        own = book.removeprefix(AT_ITS_END)
        head = await self.get(own.partition("~")[0])
        if head is not None and head.book == own:
            return True
        return await answered(self._wire.get(self._partition, f"f!{own}")) is not None

    async def list(self, after: str, limit: int, *, where: str = "", forgetting: bool = False) -> Sequence[Head]:
        """Return up to `limit` by name, from behind one; "" = the first; `forgetting` as of `get`."""
        # The first key behind a name: `!` comes before all that a name can go on with.
        first = f"h!{after}!" if after else "h!"
        found: list[Row] = await answered(
            self._wire.all(self._partition, first, 'h"', where=where, most=min(limit, _MOST_HEADS), etags=True)
        )
        return [head for row in found if (head := Head(row)).state != FORGETTING or forgetting]
