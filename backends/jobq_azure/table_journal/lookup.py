"""Looks at what a journal holds of an id: the rows of where its lives are, and of its attempts."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

from jobq.errors import BackendUnavailable, StoreUnusable
from jobq_azure.common.errors import NoAnswer
from jobq_azure.table_journal import entities as rows
from jobq_azure.table_journal.client import Row, TableWire

_S = TypeVar("_S")
_T = TypeVar("_T")
Life = tuple[str, int | None]  # an id, and the birth of the life that is meant; None = the newest
_ASKED_AT_ONCE: Final = 32
_MOST_LIVES: Final = 10_000  # of one id
_MOST_ATTEMPTS: Final = 10_000  # likewise
_PAGES_OF_IDS: Final = 3  # ids of one push lie beside each other: some pages show them all, or else each is asked for


class Lookup:
    """Of one queue.

    Args:
        wire: to the table.
    """

    def __init__(self, wire: TableWire) -> None:
        self._wire = wire
        self._queue = wire.place.queue

    async def life(self, part: str, birth: int) -> Row | None:
        """Return where a life is, with its etag.

        Args:
            part: its id, as it stands in a key.
            birth: when it was made.
        """
        return await self._wire.get(self._queue, rows.life_key(part, birth))

    async def lives(self, part: str) -> list[Row]:
        """Return the rows that say where the lives of an id are, with their etags."""
        return await self._wire.all(self._queue, *rows.lives(part), most=_MOST_LIVES, etags=True)

    async def meant(self, lives: Sequence[Life]) -> dict[Life, Row | None]:
        """Return where each of these lives is."""
        if len(lives) > _ASKED_AT_ONCE:
            ranges = sorted(rows.lives(rows.safe(id_)) for id_, _ in lives)
            found, after = dict[str, list[Row]](), None
            for _ in range(_PAGES_OF_IDS):
                page, after = await self._wire.look(self._queue, ranges[0][0], ranges[-1][1], after=after)
                for row in page:
                    found.setdefault(rows.id_part(row), []).append(row)
                if after is None:
                    return {life: _meant(found.get(rows.safe(life[0]), ()), life[1]) for life in lives}

        async def one(life: Life) -> Row | None:
            part, birth = rows.safe(life[0]), life[1]
            if birth is not None:
                return await self.life(part, birth)
            return _meant(await self.lives(part), None)

        return dict(zip(lives, await for_each(lives, one), strict=True))

    async def attempts(self, id_: str, birth: int | None = None) -> list[Row]:
        """Return the rows of the attempts of an id, the oldest life first; or those of one life."""
        part = rows.safe(id_)
        first, end = rows.below(f"a!{part}" if birth is None else rows.life_key(part, birth, "a"))
        found = await self._wire.all(self._queue, first, end, most=_MOST_ATTEMPTS)
        return sorted(found, key=lambda row: (rows.birth_in(row), rows.fencing_of(row)))


def _meant(found: Sequence[Row], birth: int | None) -> Row | None:
    """Return of the rows of one id that of the life which is meant; `birth` None = the newest."""
    by_birth = {rows.birth_in(row): row for row in found}
    return by_birth.get(max(by_birth, default=0) if birth is None else birth)


async def for_each(items: Sequence[_S], ask: Callable[[_S], Awaitable[_T]]) -> list[_T]:
    """Return what is answered of each, in their order."""
    turn = asyncio.Semaphore(_ASKED_AT_ONCE)

    async def one(item: _S) -> _T:
        async with turn:
            return await ask(item)

    return list(await asyncio.gather(*map(one, items)))


async def answered(call: Awaitable[_T]) -> _T:
    """Return what a look returns; it is safe to repeat."""
    try:
        return await call
    except NoAnswer as error:
        raise BackendUnavailable(str(error)) from None
    except (LookupError, ValueError, TypeError) as error:  # who may write there may write anything
        raise StoreUnusable(f"the journal's table holds what this jobq cannot read ({error!r})") from error
