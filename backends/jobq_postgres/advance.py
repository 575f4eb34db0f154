"""What follows from the ends of tasks: has their batch ended, and what is to be run then.

Whoever ends or deletes tasks of a batch leaves a row in jobq.outbox in its own transaction. `advance` takes such rows,
locks their batches, and only then, in a statement of its own, looks whether any task is left: one statement that both
waits for a lock and looks goes on with what it saw before it waited. Should whoever left the row not come to it, the
next sweep of any process does (claimer.py).

It waits for no lock of a batch: what somebody else holds it leaves, with its rows, for the next time. Everyone locks
batches first, in the order of their numbers, and then tasks, in that of `seq`.
"""

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import asyncpg

from jobq.batch_plan import Plan, under_another_id
from jobq.batches import BatchState, rounds_of, rounds_with
from jobq.errors import MalformedTask
from jobq.resources.shapes import NO_SHAPE, text_of
from jobq.servable import IDS_KEPT
from jobq.task import Task
from jobq_postgres import batch_rows
from jobq_postgres.add_tasks import ADD, EPOCH, FORGET_EXPIRED, NewTask, columns, lowest_of
from jobq_postgres.cancel import cancel_held
from jobq_postgres.shape_sql import numbers_of

_log: Final = logging.getLogger(__name__)
ROWS_AT_ONCE: Final = 1000  # of the outbox
TASKS_AT_ONCE: Final = 500  # that one step cancels

TAKE: Final = f"""
    SELECT n, batch_id, gone, (SELECT state FROM jobq.batch WHERE batch.batch_id = outbox.batch_id) AS state
    FROM jobq.outbox WHERE queue_id = $1 AND ($2::integer IS NULL OR batch_id = $2)
    ORDER BY n LIMIT {ROWS_AT_ONCE} FOR UPDATE SKIP LOCKED
"""  # noqa: S608 - a constant of ours; so below
TELL: Final = "INSERT INTO jobq.outbox (queue_id, batch_id) VALUES ($1, $2)"
HOLD: Final = """
    SELECT batch_id, name, state, round, is_canceled, plan, rounds FROM jobq.batch
    WHERE batch_id = ANY ($1::integer[]) ORDER BY batch_id FOR UPDATE SKIP LOCKED
"""
DELETE: Final = "DELETE FROM jobq.outbox WHERE queue_id = $1 AND n = ANY ($2::bigint[])"
ADD_GONE: Final = "UPDATE jobq.batch SET gone = gone + $2 WHERE batch_id = $1"
# As a range in the order of the index of batches: with "= $1" the planner may take another one that has the order, too,
# and walk over all tasks for want of one.
_OF_BATCH: Final = "batch_id BETWEEN $1 AND $1"
UNFLUSHED: Final = "SET LOCAL synchronous_commit = off"
IS_LEFT: Final = f"SELECT true FROM jobq.task WHERE {_OF_BATCH} ORDER BY batch_id, seq LIMIT 1"  # noqa: S608
FINISH: Final = """
    UPDATE jobq.batch SET state = 'finished', finished_at = to_timestamp($2), rounds = $3 WHERE batch_id = $1
"""
# What is still to be canceled: not those whose workers have been asked.
HOLD_TASKS: Final = f"""
    SELECT seq, coalesce(expires_at > clock_timestamp(), false) AS is_live FROM jobq.task
    WHERE {_OF_BATCH} AND NOT (cancel_requested AND coalesce(expires_at > statement_timestamp(), false))
    ORDER BY batch_id, seq LIMIT {TASKS_AT_ONCE} FOR UPDATE
"""  # noqa: S608
KNOWN: Final = "SELECT id FROM jobq.submission WHERE queue_id = $1 AND id = ANY ($2::text[])"


@dataclass(slots=True)
class Advanced:
    """What a step did.

    Attributes:
        lowest: what became ready, by rank.
        goes_on: there is, or may be, more to do; what somebody else holds included.
    """

    lowest: dict[int, int] = field(default_factory=dict)
    goes_on: bool = False


async def advance(connection: Any, queue: int, batch: int | None = None) -> Advanced:
    """Do one step, in a transaction.

    Args:
        connection: of asyncpg.
        queue: the queue's number.
        batch: whose rows; None = of all batches.

    Raises:
        asyncpg.PostgresError: nothing was done. With FORMER_EPOCH: something was forgotten meanwhile; do it again.
    """
    done = Advanced()
    async with connection.transaction():
        rows = await connection.fetch(TAKE, queue, batch)
        if not rows:
            return done
        gone = Counter[int]()
        for row in rows:
            gone[row["batch_id"]] += row["gone"]
        # A batch that was open then is not held: its seal leaves a row of its own. One that was not there is forgotten.
        states = {row["batch_id"]: row["state"] for row in rows if row["state"] is not None}
        wanted = [number for number, state in states.items() if state == BatchState.SEALED or gone[number]]
        held = await connection.fetch(HOLD, wanted) if wanted else []
        left = set(wanted) - {row["batch_id"] for row in held}
        has_finished = False
        await connection.execute(DELETE, queue, [row["n"] for row in rows if row["batch_id"] not in left])
        for row in held:
            if gone[row["batch_id"]]:
                await connection.execute(ADD_GONE, row["batch_id"], gone[row["batch_id"]])
            if row["state"] == BatchState.SEALED:
                has_finished |= await _look(connection, queue, row, done)
        if not has_finished:  # a crash may bring the rows back, and what was done is done again
            await connection.execute(UNFLUSHED)
        done.goes_on |= bool(left) or len(rows) == ROWS_AT_ONCE
    return done


async def cancel_some(connection: Any, queue: int, batch: int) -> None:
    """Cancel some tasks of a batch whose row is held, and see to it that the next step follows."""
    if held := await connection.fetch(HOLD_TASKS, batch):
        await cancel_held(connection, held)
    if len(held) == TASKS_AT_ONCE:
        await connection.execute(TELL, queue, batch)


async def _look(connection: Any, queue: int, row: Any, done: Advanced) -> bool:
    """See whether any task is left of a sealed batch whose row is held; return whether it has finished."""
    if await connection.fetchval(IS_LEFT, row["batch_id"]):
        if row["is_canceled"]:
            await cancel_some(connection, queue, row["batch_id"])
            done.goes_on = True
        return False
    try:
        tasks = Plan.decode(row["plan"]).tasks(row["name"], row["round"])
        rounds_of(row["rounds"])
    except MalformedTask as error:  # a newer jobq has taken it in, and goes on when it seals the batch once more
        _log.warning("batch %s is left to a jobq that can read what is to be run at its end: %s", row["name"], error)
        return False
    found = await connection.fetchrow(batch_rows.FIND, queue, row["name"])
    rounds = rounds_with(row["rounds"], row["round"], found["now"], batch_rows.counts(found))
    await connection.execute(FINISH, row["batch_id"], found["now"], rounds)
    if tasks:
        # What would be one shape too many is handed out as if it asked for nothing: whom it does not fit gives it back.
        numbers = await numbers_of(connection, queue, (text_of(task.resources, task.needs) for task in tasks))
        await connection.execute(FORGET_EXPIRED, queue, [task.id for task in tasks], IDS_KEPT)
        try:
            async with connection.transaction():
                added = await _add(connection, queue, tasks, numbers)
        except asyncpg.UniqueViolationError:  # somebody has given another task such an id
            known = {each[0] for each in await connection.fetch(KNOWN, queue, [task.id for task in tasks])}
            free = [under_another_id(task) if task.id in known else task for task in tasks]
            added = await _add(
                connection, queue, free, numbers
            )  # should another be taken just now, the next step does it all
        for rank, position in added.items():
            done.lowest[rank] = min(position, done.lowest.get(rank, position))
    return True


async def _add(connection: Any, queue: int, tasks: Sequence[Task], numbers: Mapping[str, int]) -> dict[int, int]:
    """Add tasks to the queue that are all new; return what became ready, by rank."""
    epoch = int(await connection.fetchval(EPOCH))
    new = [NewTask.of(queue, task.in_epoch(epoch)) for task in tasks]
    added = [replace(each, shape=numbers.get(each.request, NO_SHAPE)) for each in new]
    return lowest_of(await connection.fetch(ADD, *columns(added)))
