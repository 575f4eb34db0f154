"""What clear, redrive and purge find in a journal: which rows go with what they delete, and whose epoch they raise."""

import asyncio
import math
from collections.abc import Hashable, Sequence
from typing import Final

from jobq.batch_ids import is_meant, key_of
from jobq_azure.table_journal import entities as rows
from jobq_azure.table_journal.cancel_requests import CancelRequests, meant
from jobq_azure.table_journal.client import Row, TableWire
from jobq_azure.table_journal.lookup import Lookup, answered, for_each
from jobq_azure.table_journal.pushed_tasks import PushedTasks

_MOST_LIVE: Final = 1_000_000


class Tending:
    """Of one queue.

    Args:
        wire: to the table.
        cancel_requests: of the queue.
        pushed: to it, by this process.
    """

    def __init__(self, wire: TableWire, cancel_requests: CancelRequests, pushed: PushedTasks) -> None:
        self._wire = wire
        self._queue = wire.place.queue
        self._lookup = Lookup(wire)
        self._cancel_requests = cancel_requests
        self._pushed = pushed

    async def cleared(self, before: float, *, running: bool) -> list[Row]:
        """Return the rows of what waited, and of what ran if that was cleared too; and forget what was pushed.

        Args:
            before: wall time in seconds, by the service's clock; what was made later is not of what was cleared.
            running: whether what ran was cleared, too.
        """
        self._pushed.forget_before(before)
        first, end = rows.below("l")
        where = f"State ne '{rows.DONE}'" if running else "State eq 'ready'"
        found = await answered(
            self._wire.all(self._queue, first, end, where=where, select="State", most=_MOST_LIVE, etags=True)
        )
        now = self._wire.now()
        # The word of a push comes later than the push: what was made before was pushed before, in most cases.
        return [
            row
            for row in found
            if min(now - rows.age(row, now), rows.birth_in(row) / rows.MICROSECONDS or math.inf) < before
        ]

    async def purged(self, ids: Sequence[str]) -> list[Row]:
        """Return all rows of the lives that are dead letters, and of no others of their ids."""

        async def of(id_: str) -> list[Row]:
            found = list[Row]()
            for birth, (where, attempts) in (await self._dead_lives(id_)).items():
                self._pushed.forget(str(id_), birth)
                found += [where] if where is not None else []
                for attempt in attempts:
                    found += [attempt, {"RowKey": rows.ended_key(rows.decoded(attempt).ended, attempt["RowKey"])}]
                    if await self._wire.get(self._queue, output := rows.beside("o", attempt)) is not None:
                        found.append({"RowKey": output})
            return found

        return [row for found in await answered(for_each(list(ids), of)) for row in found]

    async def dead(self, ids: Sequence[str]) -> dict[Hashable, dict[int, Row]]:
        """Return the last attempt of each dead letter, its row, by `key_of` and birth; delete their cancel requests.

        One of which no attempt is known is left out. Other lives of an id may be queued still, to be canceled.
        """

        async def of(id_: str) -> dict[int, Row]:
            lives = await self._dead_lives(id_)
            return {birth: attempts[-1] for birth, (_, attempts) in lives.items() if attempts}

        async def of_all() -> dict[Hashable, dict[int, Row]]:
            requests = await self._cancel_requests.among(ids)
            found = list(zip(ids, await for_each(list(ids), of), strict=True))
            met = {each for id_, births in found for birth in births if (each := meant(requests[id_], birth))}
            await self._cancel_requests.forget(met)
            return {key_of(id_): births for id_, births in found}

        return await answered(of_all())

    async def _dead_lives(self, id_: str) -> dict[int, tuple[Row | None, list[Row]]]:
        """Return of each life of an id that is a dead letter where it is, if a row says so, and its attempts.

        Of an `IdInBatch` those of its batch alone.
        """
        found, attempts = await asyncio.gather(self._lookup.lives(rows.safe(id_)), self._lookup.attempts(id_))
        lives: dict[int, tuple[Row | None, list[Row]]] = {rows.birth_in(row): (row, []) for row in found}
        for row in attempts:
            lives.setdefault(rows.birth_in(row), (None, []))[1].append(row)

        def is_dead(where: Row | None, attempts: list[Row]) -> bool:
            last = attempts[-1] if where is None else where
            if not is_meant(id_, rows.batch_in(last)):
                return False
            return bool(last.get("State", rows.DONE) == rows.DONE and last["Then"] == "dead")

        return {birth: life for birth, life in lives.items() if is_dead(*life)}
