"""The dead letters of a queue: its own sub-queue, which is looked at over AMQP, and emptied under locks over REST."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final

from jobq.backend import DeadLetter
from jobq.errors import JobqError, LockLost, MalformedTask, PushUnknown
from jobq.task import Task
from jobq_azure.common.errors import NoAnswer
from jobq_azure.service_bus.message_format import (
    BEFORE,
    DELIVERIES,
    DIED,
    ID,
    ORIGIN,
    copy_name,
    id_in,
    origin_of,
    redriven,
    task_in,
)
from jobq_azure.service_bus.rest_client import Locked, Outgoing, ServiceBusWire

if TYPE_CHECKING:
    from jobq_azure.service_bus.amqp_client import Amqp, Seen

_AT_ONCE: Final = 16
_MARGIN: Final = 50  # letters beyond the limit that are looked at, since some fold into one
_LET_GO_SECONDS: Final = 10.0
_log: Final = logging.getLogger(__name__)


class Graveyard:
    """Reads, redrives and purges the dead letters of one queue.

    Args:
        amqp: looks.
        wire: requests to the sub-queue.
        main: requests to the queue.
    """

    def __init__(self, amqp: "Callable[[], Amqp]", wire: ServiceBusWire, main: ServiceBusWire) -> None:
        self._amqp = amqp
        self._wire = wire
        self._main = main

    async def letters(self, limit: int) -> list[DeadLetter]:
        """Return up to `limit` dead letters, oldest first."""
        seen = await self._amqp().peek(limit + _MARGIN, dead=True)
        return [_letter(newest) for newest, *_ in _folded(seen)][:limit]

    async def redrive(self, ids: Sequence[str]) -> list[str]:
        """Put dead letters back: send first, under a new name that the broker does not drop; complete after."""

        async def put_back(seen: "Seen", locked: Sequence[Locked]) -> None:
            letter = _letter(seen)
            await self._wire.renew(locked[0])  # the fence: another reader may have it by now
            try:
                await self._main.send(_redriven(seen, letter))
            except NoAnswer as error:
                what = f"{error}; {letter.id} may or may not be back in the queue, and is still a dead letter"
                raise PushUnknown(what, [letter.id]) from None
            try:
                await self._delete(locked)
            except (JobqError, NoAnswer) as error:  # it is back: to send it again would make two
                _log.warning("%s is back, and perhaps still a dead letter too: purge it: %s", letter.id, error)

        return await self._each(ids, put_back)

    async def purge(self, ids: Sequence[str]) -> list[str]:
        """Delete dead letters."""

        async def purge(_: "Seen", locked: Sequence[Locked]) -> None:
            await self._delete(locked)

        return await self._each(ids, purge)

    async def _each(self, ids: Sequence[str], do: "Callable[[Seen, Sequence[Locked]], Awaitable[None]]") -> list[str]:
        wanted = set(ids)
        # Looking locks nothing: for ids that are not there, nothing is taken from other readers.
        known = [each for each in _folded(await self._amqp().peek(None, dead=True)) if id_in(each[0]) in wanted]
        if not known:
            return []
        done: set[str] = set()
        async with self._held({seen.number for each in known for seen in each}) as held:
            for each in known:
                locked = [held[seen.number] for seen in each if seen.number in held]
                if not locked or locked[0].number != each[0].number:
                    continue  # another reader has it
                try:
                    await do(each[0], locked)
                except LockLost:
                    continue
                done.add(id_in(each[0]))
                for one in locked:
                    del held[one.number]
        return [each for each in ids if each in done]

    async def _delete(self, locked: Sequence[Locked]) -> None:
        for each in reversed(locked):  # the newest last
            await self._wire.complete(each)

    @contextlib.asynccontextmanager
    async def _held(self, wanted: Iterable[int]) -> AsyncIterator[dict[int, Locked]]:
        """Lock letters from the oldest on until those wanted are among them; what is left at the end is let go."""
        left, held = set(wanted), dict[int, Locked]()
        is_over = False

        async def lock() -> None:
            nonlocal is_over
            while left and not is_over:
                found = await self._wire.lock(0)
                if found is None or found.number in held:  # all were seen, or their locks have run out meanwhile
                    is_over = True
                if found is not None:
                    held[found.number] = found
                    left.discard(found.number)

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(_AT_ONCE, len(left))):
                    group.create_task(lock())
            yield held
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
        finally:
            await self._let_go(list(held.values()))

    async def _let_go(self, locked: Sequence[Locked]) -> None:
        """Show letters again; what cannot be told so is shown when its lock has run out."""
        turn = asyncio.Semaphore(_AT_ONCE)

        async def let_go(each: Locked) -> None:
            async with turn:
                with contextlib.suppress(JobqError, NoAnswer):
                    await self._wire.unlock(each)

        if goings := [asyncio.ensure_future(let_go(each)) for each in locked]:
            await asyncio.wait(goings, timeout=_LET_GO_SECONDS)
            for going in goings:
                going.cancel()


def _folded(seen: "Sequence[Seen]") -> "list[list[Seen]]":
    """Return one list a task, its newest letter first; oldest task first.

    A crash between a clone and the end of its original can make two of one task, and both may die (S6). They have one
    origin; another task of the same id, pushed again later, has another.
    """
    found: dict[tuple[str, str], list[Seen]] = {}
    for each in seen:
        found.setdefault((id_in(each), origin_of(each)), []).append(each)
    return [sorted(each, key=_age, reverse=True) for each in found.values()]


def _age(seen: "Seen") -> tuple[int, int, int]:
    try:
        task = Task.decode(seen.body)
    except MalformedTask:
        return 0, 0, seen.number
    return task.epoch, task.generation, seen.number


def _letter(seen: "Seen") -> DeadLetter:
    return DeadLetter(
        id=id_in(seen),
        reason=seen.reason or "unknown",
        description=seen.description or "written by another program",
        body=seen.body,
        deliveries=seen.number_in(DELIVERIES) or seen.number_in(BEFORE) + seen.ended,
        died=float(seen.number_in(DIED) or seen.enqueued),
    )


def _redriven(seen: "Seen", letter: DeadLetter) -> Outgoing:
    """Return the message of the next epoch (S3), with fresh budgets (S7); what is no task goes back as it is."""
    try:
        task = task_in(seen).redriven(deliveries=letter.deliveries)
    except MalformedTask:
        properties: dict[str, str | int] = {BEFORE: letter.deliveries, ID: letter.id, ORIGIN: origin_of(seen)}
        return Outgoing(body=seen.body, message_id=copy_name(seen, letter.deliveries), properties=properties)
    return redriven(seen, task, letter.deliveries)
