"""The dead letters of a queue: its own sub-queue, which is looked at and emptied over AMQP, many in a request."""

import asyncio
import contextlib
import functools
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, TypeVar
from uuid import UUID

from jobq.backend import DeadLetter
from jobq.batch_ids import check_one_work
from jobq.errors import BackendUnavailable, JobqError, LockLost, MalformedTask, PushUnknown
from jobq_azure.common.errors import NoAnswer
from jobq_azure.common.letter_work import work_in
from jobq_azure.service_bus.letter_walk import Group, Origin, Walk, age, known, token
from jobq_azure.service_bus.message_format import (
    BEFORE,
    DELIVERIES,
    DIED,
    ID,
    ORIGIN,
    REDRIVEN,
    copy_name,
    id_in,
    origin_of,
    redriven,
    task_in,
)
from jobq_azure.service_bus.push import HEADROOM_BYTES, STANDARD_BYTES
from jobq_azure.service_bus.rest_client import Outgoing, RestClient

if TYPE_CHECKING:
    from jobq_azure.service_bus.amqp_client import Amqp
    from jobq_azure.service_bus.seen import Seen

T = TypeVar("T")
_AT_ONCE: Final = 200  # letters that one request locks, renews or settles
_SENT_AT_ONCE: Final = 100
_MOST_NAMED: Final = 3
_MARGIN: Final = 50  # letters beyond the limit that are looked at, since some fold into one
_LET_GO_SECONDS: Final = 10.0
Refused = tuple[Group, JobqError]
_log: Final = logging.getLogger(__name__)


class ServiceBusDeadLetters:
    """Reads, redrives and purges the dead letters of one queue.

    Args:
        amqp: the sub-queue.
        main: requests to the queue.
    """

    def __init__(self, amqp: "Callable[[], Amqp]", main: RestClient) -> None:
        self._amqp = amqp
        self._main = main

    async def letters(self, limit: int) -> list[DeadLetter]:
        """Return up to `limit` dead letters, oldest first."""
        seen = await self._amqp().peek(limit + _MARGIN, dead=True)
        return [_letter(newest) for newest, *_ in _folded(seen)][:limit]

    async def redrive(self, ids: Sequence[str]) -> list[str]:
        """Put dead letters back: send first, under a new name that the broker does not drop; complete after.

        Raises:
            MalformedTask: one has outgrown the queue, and stays as it is; the others are back (S11).
        """

        async def put_back(groups: Sequence[Group], refused: list[Refused]) -> AsyncIterator[list[Group]]:
            for some in _sendable(groups):
                # The fence: another reader may have them by now.
                ours = await self._of_ours(self._amqp().renew_dead, some, _newest)
                ours = await self._sent(ours, refused)
                try:
                    await self._delete(ours)
                except (JobqError, NoAnswer) as error:  # they are back: to send them again would make two
                    named = _named(ours)
                    _log.warning("%s: back, and perhaps still dead letters too; purge them: %s", named, error)
                yield ours

        return await self._each(ids, put_back)

    async def purge(self, ids: Sequence[str]) -> list[str]:
        """Delete dead letters."""

        async def delete(groups: Sequence[Group], _: list[Refused]) -> AsyncIterator[list[Group]]:
            yield await self._delete(groups)

        return await self._each(ids, delete, check_one_work)

    async def _sent(self, groups: list[Group], refused: list[Refused]) -> list[Group]:
        """Send them, in one request while the queue takes that; return those that were sent."""
        try:
            await self._send(groups)
        except MalformedTask as fault:
            half = len(groups) // 2
            if not half:
                refused.append((groups[0], fault))
                return []
            return await self._sent(groups[:half], refused) + await self._sent(groups[half:], refused)
        return groups

    async def _send(self, groups: Sequence[Group]) -> None:
        messages = [_redriven(newest, _letter(newest)) for newest, *_ in groups]
        try:
            if len(messages) == 1:
                await self._main.send(messages[0])
            elif messages:
                await self._main.send_batch([message.in_batch() for message in messages])
        except NoAnswer as error:
            what = f"{error}; {_named(groups)}: may or may not be back in the queue, and still a dead letter"
            raise PushUnknown(what, [id_in(newest) for newest, *_ in groups]) from None

    async def _delete(self, groups: Sequence[Group]) -> list[Group]:
        return await self._of_ours(functools.partial(self._amqp().settle_dead, "completed"), groups, _newest_last)

    async def _of_ours(
        self, do: Callable[[list[UUID]], Awaitable[None]], each: Sequence[T], locks: Callable[[T], Sequence[UUID]]
    ) -> list[T]:
        """Do it to their locks, in one request while all of them stand; return those whose locks stand."""
        if not each:
            return []
        try:
            await do([lock for one in each for lock in locks(one)])
        except LockLost:
            half = len(each) // 2
            if not half:
                return []
            return await self._of_ours(do, each[:half], locks) + await self._of_ours(do, each[half:], locks)
        return list(each)

    async def _each(
        self,
        ids: Sequence[str],
        do: Callable[[Sequence[Group], list[Refused]], AsyncIterator[list[Group]]],
        check: Callable[[Sequence[str], Iterable[tuple[str, str | None, str]]], None] = lambda _, __: None,
    ) -> list[str]:
        """Lock letters from the oldest on, some hundred in a request, and do it to those that are meant.

        Args:
            ids: of those that are meant.
            do: yields those that are done; adds what stays as it is to the list.
            check: may refuse, given the ids, and the id, batch and work of each letter.

        Raises:
            BackendUnavailable: some are there, and cannot be locked now; what was done is done.
            JobqError: why one stays as it is; the others are done (S11).
        """
        refused: list[Refused] = []
        # Looking locks nothing: for ids that are not there, nothing is taken from other readers.
        letters = await self._amqp().survey(known)
        check(ids, ((id_, None, work) for id_, _, work in (each.origin for each in letters)))
        walk = Walk(letters, ids)
        try:
            while walk.left and (found := await self._amqp().lock_dead(walk.next_count(_AT_ONCE))):
                if not walk.take(found):
                    break  # locks that have run out meanwhile bring the same letters again
                async for some in do(walk.ready(), refused):
                    walk.done(some)
                walk.give_up([group for group, _ in refused])
                await self._delete(walk.late())
        except (JobqError, NoAnswer) as error:
            error.done = walk.ids(ids)
            raise
        finally:
            await self._let_go(walk.held())
        if walk.left:
            there = walk.left & set(await self._amqp().survey(lambda seen: known(seen).origin))
            if there:
                busy = BackendUnavailable(
                    f"{len(there)} dead letters of {self._main.place} cannot be locked now: another reader holds them,"
                    " or those before them, or the queue's lock is too short to pass those; run it again"
                )
                busy.done = walk.ids(ids)
                raise busy
        if refused:
            raise _refusal(refused, walk.ids(ids))
        return walk.ids(ids)

    async def _let_go(self, tokens: Sequence[UUID]) -> None:
        """Show letters again; what cannot be released so is shown when its lock has run out."""
        with contextlib.suppress(JobqError, NoAnswer, TimeoutError):
            async with asyncio.timeout(_LET_GO_SECONDS):
                for start in range(0, len(tokens), _AT_ONCE):
                    some = tokens[start : start + _AT_ONCE]
                    await self._of_ours(
                        functools.partial(self._amqp().settle_dead, "abandoned"), some, lambda one: [one]
                    )


def _refusal(refused: Sequence[Refused], done: list[str]) -> JobqError:
    """Return the error of what stays as it is; it names some."""
    fault = refused[0][1]
    for (newest, *_), error in refused[:_MOST_NAMED]:
        remedy = "; `dead purge` deletes it" if isinstance(error, MalformedTask) else ""
        fault.add_note(f"dead letter {id_in(newest)} stays as it is{remedy}")
    fault.done = done
    return fault


def _sendable(groups: Sequence[Group]) -> Iterator[list[Group]]:
    """Divide them by what fits into one request; one of bytes that are no text goes by itself."""
    batch: list[Group] = []
    size = 0
    for group in groups:
        try:
            length = len(json.dumps(group[0].body.decode())) + HEADROOM_BYTES
        except UnicodeDecodeError:
            yield [group]
            continue
        if batch and (len(batch) == _SENT_AT_ONCE or size + length > STANDARD_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(group)
        size += length
    if batch:
        yield batch


def _newest(group: Group) -> list[UUID]:
    return [token(group[0])]


def _newest_last(group: Group) -> list[UUID]:
    return [token(seen) for seen in group[::-1]]


def _named(groups: Sequence[Group]) -> str:
    ids = [id_in(newest) for newest, *_ in groups]
    return ", ".join(ids[:_MOST_NAMED]) + (f" and {len(ids) - _MOST_NAMED} more" if len(ids) > _MOST_NAMED else "")


def _folded(seen: "Sequence[Seen]") -> "list[list[Seen]]":
    """Return one list a task, its newest letter first; oldest task first.

    A crash between a clone and the end of its original can make two of one task, and both may die (S6). They have one
    origin and one work; another task of the same id, pushed again later, has another origin.
    """
    found: dict[Origin, list[Seen]] = {}
    for each in seen:
        found.setdefault(known(each).origin, []).append(each)
    return [sorted(each, key=age, reverse=True) for each in found.values()]


def _letter(seen: "Seen") -> DeadLetter:
    return DeadLetter(
        id=id_in(seen),
        reason=seen.reason or "unknown",
        description=seen.description or "written by another program",
        body=seen.body,
        deliveries=seen.number_in(DELIVERIES) or seen.number_in(BEFORE) + seen.ended,
        died=float(seen.number_in(DIED) or seen.enqueued),
        work=work_in(seen.body),
    )


def _redriven(seen: "Seen", letter: DeadLetter) -> Outgoing:
    """Return the message of the next epoch (S3), with fresh budgets (S7); what is no task goes back as it is."""
    try:
        task = task_in(seen).redriven(deliveries=letter.deliveries)
    except MalformedTask:
        properties: dict[str, str | int] = {BEFORE: letter.deliveries, ID: letter.id, ORIGIN: origin_of(seen, REDRIVEN)}
        name = copy_name(seen, letter.deliveries, kind=REDRIVEN)
        return Outgoing(body=seen.body, message_id=name, properties=properties)
    return redriven(seen, task, letter.deliveries)
