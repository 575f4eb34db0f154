"""The protocol's face of a queue's batches."""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, Final

from jobq.batch_plan import Plan
from jobq.batches import Batch, BatchState, Member, check_too_late, checked_name, missing
from jobq.errors import JobqError
from jobq_postgres import advance, batch_rows
from jobq_postgres.batch_push import KEEP_PUSHES_OUT
from jobq_postgres.connections import Connections

# A seal waits for the pushes that are under way.
_PATIENT: Final = "SET LOCAL lock_timeout = '30s'"
_BEGIN: Final = """
    INSERT INTO jobq.batch (queue_id, name, plan) VALUES ($1, $2, $3) ON CONFLICT (queue_id, name) DO NOTHING
"""
_LOOK: Final = "SELECT batch_id, state, plan FROM jobq.batch WHERE queue_id = $1 AND name = $2"
HOLD: Final = "SELECT batch_id, state, plan FROM jobq.batch WHERE queue_id = $1 AND name = $2 FOR UPDATE"
_PLAN: Final = "UPDATE jobq.batch SET plan = $2 WHERE batch_id = $1"
_SEAL: Final = "UPDATE jobq.batch SET state = 'sealed', sealed_at = clock_timestamp() WHERE batch_id = $1"
_CANCEL: Final = "UPDATE jobq.batch SET is_canceled = true WHERE batch_id = $1"
_REOPEN: Final = """
    UPDATE jobq.batch SET state = 'open', sealed_at = NULL, finished_at = NULL, is_canceled = false,
        round = round + (state = 'finished')::integer WHERE batch_id = $1
"""


class PostgresBatches:
    """The batches of one queue.

    Args:
        links: gives the connections.
    """

    def __init__(self, links: Callable[[], Awaitable[Connections]]) -> None:
        self._links = links

    async def begin(self, name: str, plan: Plan) -> Batch:
        """Open one, or say more of one that is open."""
        plan.checked(checked_name(name))

        async def work(connection: Any, queue: int) -> int | None:
            await connection.execute(_BEGIN, queue, name, plan.encode())
            if _news(name, await connection.fetchrow(_LOOK, queue, name), plan) is None:
                return None
            async with connection.transaction():
                held = await self._hold(connection, queue, name)
                if (news := _news(name, held, plan)) is not None:
                    await connection.execute(_PLAN, held["batch_id"], news)
            return None

        return await self._changed(name, work)

    async def seal(self, name: str) -> Batch:
        """Let it take no more tasks."""
        return await self._sealed(name, canceled=False)

    async def reopen(self, name: str) -> Batch:
        """Let it take tasks again."""

        async def work(connection: Any, queue: int) -> int | None:
            async with connection.transaction():
                held = await self._hold(connection, queue, name)
                if held["state"] != BatchState.OPEN:
                    await connection.execute(_REOPEN, held["batch_id"])
            return None

        return await self._changed(name, work)

    async def cancel(self, name: str) -> Batch:
        """Seal it, end what waits, and ask what runs to end: 500 of its tasks; the next steps do the others."""
        return await self._sealed(name, canceled=True)

    async def find(self, name: str) -> Batch:
        """Return it, counted, with its rate; what nobody has seen to of its end is done first.

        That is what whoever ended its last task has left, and what a worker held that died when it was to end it.
        """
        links = await self._links()
        found = await self._found(links, name, batch_rows.find_with_rate)
        if found.is_to_be_finished:
            number = await links.look(lambda connection: connection.fetchval(batch_rows.NUMBER, links.queue, name))
            if found.unfinished:  # nothing in the outbox says that a lease has run out
                with suppress(JobqError):  # this role may only look
                    await links.look(lambda connection: connection.execute(advance.TELL, links.queue, number))
            await links.advance(number)  # as far as this role may
            found = await self._found(links, name, batch_rows.find_with_rate)
        return found

    async def list(self, after: str, limit: int, *, unfinished: bool = False) -> Sequence[Batch]:
        """Return some, by name."""
        links = await self._links()
        found: Sequence[Batch] = await links.look(
            lambda connection: batch_rows.page(connection, links.queue, after, limit, unfinished=unfinished)
        )
        return found

    async def members(self, name: str, after: str, limit: int, state: str | None = None) -> Sequence[Member]:
        """Return some of its tasks, by id."""
        links = await self._links()
        found: Sequence[Member] | None = await links.look(
            lambda connection: batch_rows.members(connection, links.queue, name, after, limit, state)
        )
        if found is None:
            raise missing(name)
        return found

    async def _sealed(self, name: str, *, canceled: bool) -> Batch:
        """Seal it, with a row in the outbox: what ended before it was sealed, nobody has acted on."""

        async def work(connection: Any, queue: int) -> int | None:
            async with connection.transaction():
                await connection.execute(_PATIENT)
                found = await connection.fetchrow(_LOOK, queue, name)
                if found is None:
                    raise missing(name)
                number = int(found["batch_id"])
                await connection.execute(KEEP_PUSHES_OUT, number)
                held = await self._hold(connection, queue, name)
                if held["state"] == BatchState.FINISHED:
                    return None
                if held["state"] == BatchState.OPEN:
                    await connection.execute(_SEAL, number)
                await connection.execute(advance.TELL, queue, number)
                if canceled:
                    await connection.execute(_CANCEL, number)
                    await advance.cancel_some(connection, queue, number)
            return number

        return await self._changed(name, work)

    @staticmethod
    async def _hold(connection: Any, queue: int, name: str) -> Any:
        held = await connection.fetchrow(HOLD, queue, name)
        if held is None:
            raise missing(name)
        return held

    async def _changed(self, name: str, work: Callable[[Any, int], Awaitable[int | None]]) -> Batch:
        """Do something to it, see to what follows, and return it as it is then."""
        links = await self._links()
        number = await links.look(lambda connection: work(connection, links.queue))
        if number is not None:
            await links.advance(number)
        return await self._found(links, name)

    async def _found(
        self,
        links: Connections,
        name: str,
        find: Callable[[Any, int, str], Awaitable[Batch | None]] = batch_rows.find,
    ) -> Batch:
        found: Batch | None = await links.look(lambda connection: find(connection, links.queue, name))
        if found is None:
            raise missing(name)
        return found


def _news(name: str, row: Any, plan: Plan) -> str | None:
    """Return the plan of an open batch, as it is kept, once a later one has said more; None = there is no news."""
    if row is None:
        return None
    former = Plan.decode(row["plan"])
    check_too_late(name, BatchState(row["state"]), plan, former)
    if row["state"] != BatchState.OPEN:
        return None
    later = former.with_later(plan)
    return None if later == former else later.encode()
