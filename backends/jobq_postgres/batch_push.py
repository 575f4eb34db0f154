"""Adding tasks of batches, and those with params or that ask for something: no push is in flight after a seal.

Each transaction that adds tasks to a batch holds an advisory lock that it shares with other pushes, and who seals the
batch takes it alone. It is not the lock of its row: who wants that alone is overtaken by all who share it, so that a
seal beside 50 who push took 20 s and more; and each of those writes to the row.
"""

from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import asyncpg

from jobq.batches import BatchState, missing, sealed
from jobq_postgres.add_tasks import (
    ADD_UNKNOWN_TO_BATCHES,
    COPY_FROM,
    NewTask,
    PushRefused,
    columns,
    copy,
    lowest_of,
    refuse_known,
    shaped,
)

if TYPE_CHECKING:
    from jobq.errors import JobqError

_LOCK: Final = 0x6A6F6271  # "jobq"; beside it, the number of the batch
SHARE: Final = f"""
    SELECT batch_id, pg_advisory_xact_lock_shared({_LOCK}, batch_id) FROM (
        SELECT batch_id FROM jobq.batch WHERE queue_id = $1 AND name = ANY ($2::text[]) ORDER BY batch_id) AS found
"""  # noqa: S608 - a constant of ours
KEEP_PUSHES_OUT: Final = f"SELECT pg_advisory_xact_lock({_LOCK}, $1)"
NONE_PUSHES: Final = f"pg_try_advisory_xact_lock({_LOCK}, batch_id)"
# A statement of its own: only now does it see what a seal has committed while ours waited for it.
STATES: Final = "SELECT batch_id, name, state FROM jobq.batch WHERE batch_id = ANY ($1::integer[])"
KNOWN: Final = """
    SELECT id FROM jobq.submission WHERE queue_id = $1 AND id = ANY ($2::text[])
    AND (ended_at < statement_timestamp() - $3::interval) IS NOT TRUE
"""


async def add_in_steps(connection: Any, tasks: list[tuple[int, NewTask]], ids_kept: timedelta) -> dict[int, int]:
    """Add tasks that are not plain in one transaction.

    Args:
        connection: of asyncpg.
        tasks: each with the number of its call.
        ids_kept: for how long the id of a task that has ended is known.

    Returns:
        What became ready, by rank.

    Raises:
        Expired: see `refuse_known`.
        PushRefused: of calls with a new task whose batch takes none, with an id that is another task's, or that ask for
            more than is told apart.
    """
    queue = tasks[0][1].queue
    async with connection.transaction():
        names = {task.batch for _, task in tasks if task.batch is not None}
        shared = [row[0] for row in await connection.fetch(SHARE, queue, sorted(names))] if names else []
        held = {row["name"]: row for row in await connection.fetch(STATES, shared)} if shared else {}
        numbers = {name: row["batch_id"] for name, row in held.items() if row["state"] == BatchState.OPEN}
        closed = [each for each in tasks if each[1].batch is not None and each[1].batch not in numbers]
        if closed:
            known = {row[0] for row in await connection.fetch(KNOWN, queue, [task.id for _, task in closed], ids_kept)}
            _refuse_new(known, closed, {name: row["state"] for name, row in held.items()})
        tasks = await shaped(connection, tasks)  # behind the batches: who makes a shape holds up others who do
        taken = [task for _, task in tasks if task.batch is None or task.batch in numbers]
        ordered = list({task.id: task for task in reversed(taken)}.values())[::-1]
        lowest = await _add(connection, ordered, numbers)
        await refuse_known(connection, tasks, ids_kept)
    return lowest


async def _add(connection: Any, tasks: Sequence[NewTask], numbers: Mapping[str, int]) -> dict[int, int]:
    if len(tasks) >= COPY_FROM and all(task.not_before is None for task in tasks):
        try:
            return await copy(connection, tasks, numbers)
        except asyncpg.UniqueViolationError:
            pass  # some are known; what was copied went back to its savepoint
    more = [[numbers.get(task.batch or "") for task in tasks], [task.params for task in tasks]]
    return lowest_of(await connection.fetch(ADD_UNKNOWN_TO_BATCHES, *columns(tasks), *more))


def _refuse_new(known: Collection[str], tasks: Sequence[tuple[int, NewTask]], states: Mapping[str, str]) -> None:
    """Refuse the calls of tasks that are not known (S8); nobody else adds one, as long as their batches are held."""
    refused: dict[int, JobqError] = {}
    for number, task in tasks:
        if task.id not in known and task.batch is not None:
            state = states.get(task.batch)
            refused[number] = missing(task.batch) if state is None else sealed(task.batch, BatchState(state))
    if refused:
        raise PushRefused(refused)
