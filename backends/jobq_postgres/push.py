"""Adding tasks: whole calls, many calls in one transaction, and COPY where they are many.

A call is added whole or not at all. `jobq.submission`'s primary key alone says what is new (S8); it is written in the
order of ids, so that two pushes of the same ids wait for each other and never in a circle.

A task is pushed in an epoch that is above that of all that was forgotten (S3). What is encoded in a former one is
refused by the database (`check_epoch` in schema.sql), and encoded anew.

What became ready is notified in the same transaction: no notification without the task, and no task without its
notification. The price: PostgreSQL lets only one transaction at a time commit that notifies. Calls of one
process share a commit; many processes that push one task each get in each other's way.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import asyncpg

from jobq_postgres.add_tasks import (
    ADD,
    ADD_ONE,
    ADD_UNKNOWN,
    COPY_FROM,
    EPOCH,
    FORGET_EXPIRED,
    FORMER_EPOCH,
    Expired,
    NewTask,
    PushRefused,
    columns,
    copy,
    duplicate,
    lowest_of,
    refuse_known,
)
from jobq_postgres.batch_push import add_in_steps

_Adding = Callable[[Any, list[tuple[int, NewTask]], timedelta], Awaitable[dict[int, int]]]


@dataclass(frozen=True, slots=True)
class PushCall:
    """One call of push: its tasks, each id once; and whether none has a batch or params, or asks for anything."""

    tasks: tuple[NewTask, ...]
    is_plain: bool


def call_of(tasks: Sequence[NewTask]) -> PushCall:
    """Return the call; a task that is given twice is one; raises DuplicateTask for two payloads of one id."""
    by_id: dict[str, NewTask] = {}
    for task in tasks:
        first = by_id.setdefault(task.id, task)
        if first.fingerprint != task.fingerprint:
            raise duplicate(task.id)
    return PushCall(tuple(by_id.values()), not any(task.batch or task.params or task.request for task in tasks))


class GroupPush:
    """Adds tasks for one process.

    Args:
        ids_kept: for how long the id of a task that has ended is known.

    Attributes:
        epoch: in which tasks are pushed now, as a rule: who encodes them so saves doing it twice.
    """

    def __init__(self, ids_kept: timedelta) -> None:
        self.epoch = 0
        self._ids_kept = ids_kept
        self._has_looked = False

    async def push(self, connection: Any, calls: Sequence[PushCall]) -> list[object]:
        """Add the tasks of all calls; for each what became ready, by rank, or why it was refused.

        Each call is added whole, or not at all; as many as possible in one transaction.
        """
        answers: dict[int, object] = {}
        while len(answers) < len(calls):
            together = _agreeing(calls, answers)
            add = _add if calls[together[0][0]].is_plain else add_in_steps
            try:
                lowest = await self._add(connection, together, add)
            except PushRefused as refused:
                answers |= refused.errors
            else:
                answers |= {number: lowest for number, _ in together}
        return [answers[number] for number in range(len(calls))]

    async def _add(self, connection: Any, tasks: list[tuple[int, NewTask]], add: _Adding) -> dict[int, int]:
        if not self._has_looked:
            await self._look(connection)
        while True:
            try:
                encoded = [(number, task.in_epoch(self.epoch)) for number, task in tasks]
                return await add(connection, encoded, self._ids_kept)
            except Expired as expired:
                await connection.execute(FORGET_EXPIRED, tasks[0][1].queue, expired.ids, self._ids_kept)
            except asyncpg.PostgresError as error:
                if error.sqlstate != FORMER_EPOCH:
                    raise
            await self._look(connection)  # rare: something of this very epoch was forgotten meanwhile

    async def _look(self, connection: Any) -> None:
        self.epoch = int(await connection.fetchval(EPOCH))
        self._has_looked = True


def _agreeing(calls: Sequence[PushCall], answered: Mapping[int, object]) -> list[tuple[int, NewTask]]:
    """Return the tasks, with the number of their call, of all calls that do not name one id with two payloads.

    A call that does waits for the next turn: only then is it known whether the first one was added. So do those that
    are not plain beside those that are, which wait for no batch and no shape.
    """
    together: list[tuple[int, NewTask]] = []
    fingerprints: dict[str, bytes] = {}
    is_plain = next(call.is_plain for number, call in enumerate(calls) if number not in answered)
    for number, call in enumerate(calls):
        if number in answered or call.is_plain is not is_plain:
            continue
        if all(fingerprints.get(task.id, task.fingerprint) == task.fingerprint for task in call.tasks):
            fingerprints |= {task.id: task.fingerprint for task in call.tasks}
            together += [(number, task) for task in call.tasks]
    return together


async def _add(connection: Any, tasks: list[tuple[int, NewTask]], ids_kept: timedelta) -> dict[int, int]:
    ordered = list({task.id: task for _, task in reversed(tasks)}.values())[::-1]
    try:  # nearly always all are new: then one statement does it, or COPY
        if len(ordered) >= COPY_FROM and all(task.not_before is None for task in ordered):
            return await copy(connection, ordered)
        if len(ordered) == 1 and (one := ordered[0]).not_before is None:
            values = (one.queue, one.id, one.rank, one.body, one.fingerprint, one.task.epoch)
            return lowest_of(await connection.fetch(ADD_ONE, *values))
        return lowest_of(await connection.fetch(ADD, *columns(ordered)))
    except asyncpg.UniqueViolationError:
        pass
    async with connection.transaction():
        rows = await connection.fetch(ADD_UNKNOWN, *columns(ordered))
        await refuse_known(connection, tasks, ids_kept)
    return lowest_of(rows)
