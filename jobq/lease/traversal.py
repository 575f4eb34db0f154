"""A walk through an ordered data set that anyone can take up where the last one stopped: lease and cursor (S9, S10).

    async with queue.traversal("import-2024", rows_after, batch_size=1000) as walk:
        async for page in walk:
            await handle(page.items)

Each page is handled, then the cursor is saved under the lease's token; who is killed in between leaves one page to
be handled again, and no more. At the end stands a durable "done", which the next walk of this name finds at once.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, Generic, Self, TypeVar

from jobq.errors import LockLost, MalformedTask, SourceChanged, StoreUnusable
from jobq.formats import strict_json
from jobq.lease.named import NamedLease
from jobq.racing import first_done

T = TypeVar("T")
BATCH_SIZE: Final = 1000
_FORMAT: Final = 1


@dataclass(frozen=True)
class Page(Generic[T]):
    """Some records, in order.

    Attributes:
        items: the records; none = there are no more.
        after: where the next page begins, anything that JSON can hold; given to the next fetch.
        is_last: whether it is known already that nothing follows.
        mark: anything that JSON can hold, saved along with the page; see `Traversal.mark`.
    """

    items: Sequence[T]
    after: Any
    is_last: bool = False
    mark: Any = None


Fetch = Callable[[Any, int], Awaitable[Page[T]]]


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How far a walk has come; what the cursor holds.

    Attributes:
        after: where the next page begins; None = at the beginning.
        handled: how many records were handled and saved.
        is_done: whether all were.
        source: what is walked through, as `Traversal` was given when it began.
        mark: of the last page.
    """

    after: Any = None
    handled: int = 0
    is_done: bool = False
    source: Mapping[str, str] = field(default_factory=dict)
    mark: Any = None

    def encode(self) -> str:
        """Return the cursor."""
        return json.dumps(
            {
                "traversal": _FORMAT,
                "after": self.after,
                "handled": self.handled,
                "done": self.is_done,
                "source": dict(self.source),
                "mark": self.mark,
            },
            allow_nan=False,
        )

    @classmethod
    def decode(cls, cursor: str | None, name: str) -> "Progress | None":
        """Return what a cursor says, None for none; raises StoreUnusable for one that no walk has saved."""
        if cursor is None:
            return None
        try:
            fields: Any = strict_json.loads(cursor.encode())
            if fields["traversal"] != _FORMAT:
                raise KeyError("traversal")
            return cls(
                after=fields["after"],
                handled=int(fields["handled"]),
                is_done=bool(fields["done"]),
                source=dict(fields["source"]),
                mark=fields["mark"],
            )
        except (MalformedTask, KeyError, TypeError, ValueError):
            raise StoreUnusable(
                f"the cursor of lease {name} was not saved by a walk of this version; use another name"
            ) from None


class Traversal(Generic[T]):
    """Walks through a data set while its context is entered, page by page; `Queue.traversal` makes one.

    Args:
        lease: not yet entered; this enters and leaves it. Its cursor holds the progress.
        fetch: returns the page that begins after a cursor, None = at the beginning, with so many records at most.
            The order must be the same each time, and a cursor that was returned once must stay valid.
        batch_size: records of a page, at most.
        source: what is walked through, in names and fingerprints; a walk that was begun over something else is refused.
            None = whatever it is.

    Attributes:
        progress: as it was acknowledged last.
    """

    def __init__(
        self,
        lease: NamedLease,
        fetch: Fetch[T],
        *,
        batch_size: int = BATCH_SIZE,
        source: Mapping[str, str] | None = None,
    ) -> None:
        if batch_size < 1:
            raise ValueError("a batch has at least one record")
        self.lease = lease
        self.progress = Progress()
        self._fetch = fetch
        self._batch_size = batch_size
        self._source = source

    async def __aenter__(self) -> Self:
        await self.lease.__aenter__()
        try:
            found = Progress.decode(self.lease.cursor, self.lease.name)
            if found is not None and self._source is not None:
                self._refuse_other_source(found.source)
            self.progress = found or Progress(source=self._source or {})
        except BaseException as error:
            await self.lease.__aexit__(type(error), error, None)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.lease.__aexit__(kind, error, trace)

    async def __aiter__(self) -> AsyncIterator[Page[T]]:
        """Yield the pages from the saved cursor on; asking for the next says that the last is handled, and saves it.

        Raises:
            LockLost: the lease is no longer ours; what was handled since the last save will be handled again.
            ValueError: a page begins where the one before it began, so that it would go on for ever.
        """
        while not self.progress.is_done:
            self.lease.check()
            page = await self._while_ours(self._fetch(self.progress.after, self._batch_size))
            if page.items:
                self._refuse_standstill(page)
                yield page
                self.lease.check()
            await self._save(page)

    async def run(self, handle: Callable[[Sequence[T]], Awaitable[None]]) -> Progress:
        """Hand every page to a function, which is cancelled when the lease is lost; return how far it came.

        Raises:
            LockLost: as iterating does; whatever fetch and handle raise.
        """
        async for page in self:
            await self._while_ours(handle(page.items))
        return self.progress

    async def _save(self, page: Page[T]) -> None:
        progress = Progress(
            after=page.after if page.items else self.progress.after,
            handled=self.progress.handled + len(page.items),
            is_done=page.is_last or not page.items,
            source=self.progress.source,
            mark=page.mark if page.items else self.progress.mark,
        )
        await self.lease.save(progress.encode())
        self.progress = progress

    async def _while_ours(self, work: Awaitable[Any]) -> Any:
        working = asyncio.ensure_future(work)
        losing = asyncio.ensure_future(self.lease.lost.wait())
        try:
            await first_done(working, losing)
            if working.done():
                return working.result()
            working.cancel()
            await asyncio.wait({working})
            self.lease.check()
            raise LockLost(f"lease {self.lease.name} was lost")
        finally:
            losing.cancel()
            working.cancel()

    def _refuse_standstill(self, page: Page[T]) -> None:
        if not page.is_last and json.dumps(page.after) == json.dumps(self.progress.after):
            raise ValueError(
                f"fetch of {self.lease.name} returned records, and the cursor that it was given ({page.after!r:.100}):"
                " Page.after says where the next page begins"
            )

    def _refuse_other_source(self, before: Mapping[str, str]) -> None:
        assert self._source is not None
        changed = sorted(name for name in self._source if before.get(name) != self._source[name])
        if changed:
            raise SourceChanged(
                f"{self.lease.name} was begun with another {' and another '.join(changed)}; go on with the same, or use"
                " another name"
            )
