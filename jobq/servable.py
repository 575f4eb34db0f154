"""What a backend offers beside the protocol of `jobq.backend` so that `jobq serve` can stand on it.

The service keeps nothing of its own: any replica answers for what another one has claimed. So a delivery is found
again by its receipt, a claim takes receipts that begin as the caller's key says (a lost answer is asked for again),
and what the service itself has to remember (tokens, the generator) stands in small documents of the same database.
"""

import secrets
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from enum import StrEnum
from typing import Any, Final, Protocol, runtime_checkable

from jobq.backend import Backend, Capabilities, DeadLetter, Delivery, Peeked
from jobq.errors import BackendUnavailable, ConfigurationError, LockLost
from jobq.formats.lazy_dataclass import dataclass
from jobq.formats.task_ids import digest
from jobq.journal.records import Attempt, TaskRecord
from jobq.resources.room import Room
from jobq.settlement import Settlement

IDS_KEPT: Final = timedelta(days=30)  # how long the id of a task that has ended is remembered
# Of each store in which a task is a record that one step changes.
DATABASE: Final = Capabilities(
    default_lease=timedelta(seconds=60),
    min_lease=timedelta(seconds=1),
    deduplicates=True,
    dedup_window=IDS_KEPT,
    idempotent_push=True,
    idempotent_settle=True,
    atomic_requeue=True,
    atomic_dead_letter=True,
    strict_expiry=True,
    counts_deliveries=True,
    native_checkpoint=True,
    priorities=True,
    named_leases=True,
    pauses=True,
    hastens=True,
    keeps_place=True,
    redelivers_at="back",
    counts=frozenset({"visible", "leased", "scheduled", "dead"}),
)
MOST_CLAIMED: Final = 100  # tasks of one keyed claim
PAGE_BYTES: Final = 4 * 1024 * 1024  # of tasks, beyond which a page ends: it has to arrive within some seconds
_SMALL_BYTES: Final = 16 * 1024  # of a task that is shown in an answer that is full, too
MOST_PEEKED: Final = 10_000  # tasks, by as many pages as that takes
_PREFIX_CHARACTERS: Final = 16  # of a receipt of 32, by which a lost claim is found; the stores' TAKE_OVER knows it
_RECEIPT_PARTS: Final = 3
_RACES: Final = 20
Pages = Callable[[str, int], Awaitable[tuple[list[DeadLetter], str | None]]]  # as `Servable.dead_page`


class Kind(StrEnum):
    """Which tasks a page shows."""

    ALL = "all"
    WAITING = "waiting"  # ready, or scheduled for later
    STARTED = "started"  # leased
    PROCESSED = "processed"  # done
    DEAD = "dead"


@dataclass(frozen=True, kw_only=True)
class ListedTask:
    """A task as it stands, for people. Times are wall times of the server, in seconds since the epoch.

    Attributes:
        id: of the task.
        state: ready, scheduled, leased, done or dead.
        deliveries: how often it was handed out; None = not kept of a task that is done.
        body: as stored; None once it is done.
        started: when it was last handed out.
        last_heartbeat: when that lease was last renewed; None = not since it was handed out.
        must_heartbeat_before: when that lease ends.
        due: from when a scheduled one is to be had.
        processed: when it was done, or given up.
        last: its last attempt, once it is done; None = the journal is off, or has forgotten it.
        output: the end of what that printed.
        reason, description: of a dead letter.
    """

    id: str
    state: str
    deliveries: int | None = None
    body: bytes | None = None
    started: float | None = None
    last_heartbeat: float | None = None
    must_heartbeat_before: float | None = None
    due: float | None = None
    processed: float | None = None
    last: Attempt | None = None
    output: str = ""
    reason: str | None = None
    description: str | None = None

    @property
    def size(self) -> int:
        """How much it takes of a page, in bytes, about."""
        return len(self.body or b"") + len(self.output) + len(self.description or "")


@dataclass(frozen=True, kw_only=True)
class Document:
    """A small thing the service remembers, under a version that each write raises."""

    value: bytes
    version: int


@dataclass(frozen=True, kw_only=True)
class Rights:
    """What who asks a service may do.

    Attributes:
        id, name: of his token; "-" = none is needed.
        scopes: `jobq.server.tokens.Scope`, by name.
        queues: on which queues; "*" = all.
    """

    id: str
    name: str
    scopes: tuple[str, ...]
    queues: tuple[str, ...]


@runtime_checkable
class SaysRights(Protocol):
    """A backend behind which somebody else decides what may be done."""

    async def rights(self) -> Rights:
        """Ask what may be done."""
        ...


@runtime_checkable
class HeldDelivery(Delivery, Protocol):
    """A delivery that anyone who knows its receipt can find again."""

    @property
    def receipt(self) -> str:
        """What `Servable.held` takes; who has it may settle the delivery."""
        ...

    async def settle(self, settlement: Settlement, said: str = "") -> None:
        """As of any delivery.

        Args:
            settlement: how it ends.
            said: what distinguishes this settle from others where its values depend on what it changes (S5); "" = they.
        """
        ...


class Bodies:
    """Counts the bodies of one answer, so that it holds PAGE_BYTES of large ones at most."""

    def __init__(self) -> None:
        self._size = 0

    @property
    def are_many(self) -> bool:
        """Whether a page ends here."""
        return self._size >= PAGE_BYTES

    def with_room(self, record: TaskRecord) -> TaskRecord:
        """Return the record; without a large body where there is no more room for it."""
        if self.are_many and len(record.body) > _SMALL_BYTES:
            return replace(record, body=b"")
        self._size += len(record.body)
        return record


@runtime_checkable
class Servable(Backend, Protocol):
    """A backend that can be served; all of it is one queue's, but for the documents."""

    async def claim(
        self,
        max_tasks: int,
        lease: timedelta | None,
        wait: timedelta,
        *,
        key: str,
        former: Sequence[str],
        room: Room | None = None,
    ) -> Sequence[HeldDelivery]:
        """As `receive`, with receipts that begin as `key` says.

        Args:
            max_tasks: 1 to MOST_CLAIMED.
            lease: as for `receive`.
            wait: as for `receive`.
            key: made for this call alone, hard to guess (`receipts_of`).
            former: keys of claims whose answers were lost. What they still hold comes first, renewed and with new
                receipts, so that a give-back of the former claim, which may be under way, cannot touch it. The room
                says nothing of it: that it fitted then is why it is held. Together with what came meanwhile it may be
                more than fits now, which is for the worker to judge (`TaskGrants.place`), as on a store that does not
                select: it starts what fits, and puts back the rest.
            room: as for `jobq.selecting.Selects.receive_fitting`, where the backend selects; None = all fits.
        """
        ...

    async def held(self, task_id: str, receipt: str, body: bytes = b"") -> HeldDelivery:
        """Return a delivery by its receipt, which is compared only by its verbs; raises LockLost for what is none.

        Args:
            task_id: whose.
            receipt: as the claim gave it.
            body: as `find` shows it; only what puts the task back needs it.
        """
        ...

    async def find(self, task_id: str) -> ListedTask | None:
        """Return one task; None = there is none, or it is forgotten."""
        ...

    async def page(self, kind: Kind, after: str, limit: int) -> tuple[list[ListedTask], str | None]:
        """Return up to `limit` tasks in the order of their ids, and what `after` is for those behind them.

        Fewer than `limit` where these have PAGE_BYTES or more.

        Args:
            kind: which tasks.
            after: the id that they are behind; "" = from the first.
            limit: 1 or more.

        Returns:
            None in place of the second when there are no more.
        """
        ...

    async def peek_page(self, skipped: int, limit: int) -> tuple[list[Peeked], int | None]:
        """As `peek`, without the first so many, and how many to skip for those behind them; None = there are no more.

        Fewer than `limit` where these have PAGE_BYTES or more.
        """
        ...

    async def dead_page(self, after: str, limit: int) -> tuple[list[DeadLetter], str | None]:
        """Return up to `limit` dead letters, oldest first, and what `after` is for those behind them.

        Fewer than `limit` where these have PAGE_BYTES or more.

        Args:
            after: "" = from the oldest.
            limit: 1 or more.

        Returns:
            None in place of the second when there are no more.

        Raises:
            ConfigurationError: no page has ended there.
        """
        ...

    async def queues(self) -> list[str]:
        """Return the names of all queues of this place."""
        ...

    async def document(self, name: str) -> Document | None:
        """Return what is remembered under this name; None = nothing."""
        ...

    async def write_document(self, name: str, value: bytes, version: int) -> bool:
        """Remember it, if the version there is still this one (0 = nothing there); return whether it was done."""
        ...


def served(backend: object) -> Any:
    """Return the backend, which can be served.

    Raises:
        ConfigurationError: it cannot; says which can.
    """
    if not isinstance(backend, Servable):
        raise ConfigurationError(
            f"the service of queue {getattr(backend, 'name', '?')!r} cannot be served over HTTP; name a queue of an SQL"
            " one: embedded or SQLite (one machine), PostgreSQL"
        )
    return backend


async def all_pages(pages: Pages, limit: int) -> list[DeadLetter]:
    """Return up to `limit` dead letters, oldest first, from as many pages as hold them."""
    found: list[DeadLetter] = []
    after: str | None = ""
    while limit > len(found) and after is not None:
        page, after = await pages(after, limit - len(found))
        found += page
    return found


def dead_cursor(after: str) -> tuple[int, str] | None:
    """Return the number and the text that `after` of a `dead_page` holds, `NUMBER:TEXT`; None = from the oldest."""
    number, colon, text = after.partition(":")
    if not after:
        return None
    if not (colon and number.isascii() and number.isdigit() and len(number) < 19 and "\0" not in text):  # noqa: PLR2004 - 63 bits
        raise ConfigurationError(f"{after[:40]!a} is no place in a list of dead letters")
    return int(number), text


def prefix_of(key: str) -> str:
    """Return what the receipts of a keyed claim begin with."""
    return digest(key, 16)[:_PREFIX_CHARACTERS]


def receipts_of(key: str, count: int) -> list[str]:
    """Return receipts for a keyed claim, 32 hexadecimal digits each.

    Half of each is random: a claim that is sent again as it was, by a proxy or an attacker, must not make a receipt
    good again that was used before (S4).
    """
    prefix = prefix_of(key)
    return [f"{prefix}{secrets.token_hex(_PREFIX_CHARACTERS // 2)}" for _ in range(count)]


def packed(queue: str, task_id: str, seq: int, receipt: str) -> str:
    """Return a receipt for the wire; its last part finds a mistake, such as the id of another task."""
    return f"{seq}.{receipt}.{_check(queue, task_id)}"


def unpacked(queue: str, task_id: str, packed_receipt: str) -> tuple[int, str]:
    """Return the row and the receipt; raises LockLost for what is no receipt of this task."""
    parts = packed_receipt.split(".")
    if len(parts) == _RECEIPT_PARTS and parts[2] == _check(queue, task_id):
        seq, receipt = parts[0], parts[1]
        if seq.isascii() and seq.isdigit() and len(seq) < 19 and len(receipt) == 32 and _is_hex(receipt):  # noqa: PLR2004 - 63 and 128 bits
            return int(seq), receipt
    raise LockLost(f"this is no receipt of task {task_id}")


def _check(queue: str, task_id: str) -> str:
    return digest(f"{queue}/{task_id}", 4)


def _is_hex(text: str) -> bool:
    return all(character in "0123456789abcdef" for character in text)


async def change_document(store: Servable, name: str, change: Callable[[bytes | None], bytes | None]) -> None:
    """Change a document, whoever else does so at the same time.

    Args:
        store: keeps it.
        name: of it.
        change: takes its value, None = there is none yet; returns the new one, None = it stays as it is. Called again
            where another one was quicker.

    Raises:
        BackendUnavailable: others change it again and again; nothing was changed by this.
    """
    for _ in range(_RACES):
        document = await store.document(name)
        value = change(None if document is None else document.value)
        if value is None or await store.write_document(name, value, 0 if document is None else document.version):
            return
    raise BackendUnavailable(f"others change the document {name} again and again; nothing was changed")
