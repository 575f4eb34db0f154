"""One row of the journal that waits to be written."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from jobq_azure.table_journal.client import Verb

_ROW_BYTES: Final = 400  # of a row, beside its values


@dataclass(eq=False, slots=True, kw_only=True)
class Note:
    """One row to be written.

    Attributes:
        partition, row: its key.
        make: returns its values when it is written; None = it is not worth writing any more.
        bytes: about how much memory it takes.
        verb: what to do with the row.
        etag: the row must be as it was when this was read, else it stays as it is; empty = however it is.
        is_spare: whether it may be dropped first: what a later note says anyway.
        look: made each time before it is written, and again where that is refused since the row has changed; it sets
            `verb` and `etag` from how the row is, and may make the note worthless.
        written: called when it has been written, or the row is known to say as much.
        order: the fencing number of what it says; none takes the place of a later one that waits.
    """

    partition: str
    row: str
    make: Callable[[], Mapping[str, Any] | None]
    bytes: int
    verb: Verb = Verb.REPLACE
    etag: str = ""
    is_spare: bool = False
    look: Callable[[], Awaitable[None]] | None = None
    written: Callable[[], None] = lambda: None
    order: tuple[int, ...] = ()

    @property
    def key(self) -> tuple[str, str]:
        """What distinguishes it from others."""
        return self.partition, self.row


def fixed(
    partition: str,
    row: str,
    values: Mapping[str, Any],
    verb: Verb = Verb.REPLACE,
    *,
    etag: str = "",
    spare: bool = False,
    order: tuple[int, ...] = (),
) -> Note:
    """Return a note whose values are known."""
    size = sum(len(value) if isinstance(value, str) else 16 for value in values.values())
    size += _ROW_BYTES
    return Note(
        partition=partition, row=row, make=lambda: values, bytes=size, verb=verb, etag=etag, is_spare=spare, order=order
    )
