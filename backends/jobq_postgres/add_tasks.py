"""The statements that add tasks to a queue; who pushes (push.py) and who finishes a batch (advance.py) use them."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final, Self

from jobq.errors import DuplicateTask, JobqError
from jobq.resources import shapes
from jobq.task import Task
from jobq_postgres import shape_sql

COPY_FROM: Final = 200  # tasks; below, one statement is as fast

# COLLATE "C": the order in which `copy` has them too, whatever the database's own is.
# IS TRUE keeps the planner from making a join of it: with hash joins off that would be a nested loop, quadratic in the
# number of tasks; so it looks each one up in a hashed table.
_ADD: Final = """
    WITH given AS MATERIALIZED (
        SELECT * FROM unnest(
            $1::integer[], $2::text[], $3::bigint[], $4::float8[], $5::bytea[], $6::bytea[], $7::bigint[]{types})
            WITH ORDINALITY AS u (queue_id, id, rank, not_before, body, fingerprint, epoch{batch}{params}, number)),
    new AS (
        INSERT INTO jobq.submission (queue_id, id, fingerprint, epoch{batch}{params})
        SELECT queue_id, id, fingerprint, epoch{batch}{params} FROM given ORDER BY queue_id, id COLLATE "C"
        {passing} RETURNING queue_id, id),
    timed AS (
        SELECT given.*, not_before > extract(epoch FROM statement_timestamp()) IS TRUE AS later
        FROM given WHERE ((queue_id, id) IN (SELECT queue_id, id FROM new)) IS TRUE ORDER BY number),
    added AS (
        INSERT INTO jobq.task (queue_id, id, rank, position, due, body{batch})
        SELECT queue_id, id, rank, CASE WHEN NOT later THEN nextval('jobq.position') END,
            CASE WHEN later THEN to_timestamp(not_before) END, body{batch} FROM timed
        RETURNING queue_id, rank, position),
    lowest AS (
        SELECT queue_id, rank, min(position) AS position FROM added WHERE position IS NOT NULL GROUP BY queue_id, rank)
    SELECT rank, position, pg_notify('jobq_' || queue_id, rank || ':' || position) FROM lowest
"""
_PASSING: Final = "ON CONFLICT (queue_id, id) DO NOTHING"
ADD: Final = _ADD.format(passing="", types="", batch="", params="")  # fails when one is known
ADD_UNKNOWN: Final = _ADD.format(passing=_PASSING, types="", batch="", params="")
# Only these know of batches and params: who uses none pays nothing for them.
ADD_UNKNOWN_TO_BATCHES: Final = _ADD.format(
    passing=_PASSING, types=", $8::integer[], $9::text[]", batch=", batch_id", params=", params"
)
# The common case, for which the plan of the above takes longer than the work.
ADD_ONE: Final = """
    WITH new AS (INSERT INTO jobq.submission (queue_id, id, fingerprint, epoch) VALUES ($1::integer, $2, $5, $6)),
    added AS (
        INSERT INTO jobq.task (queue_id, id, rank, body) VALUES ($1::integer, $2, $3, $4) RETURNING rank, position)
    SELECT rank, position, pg_notify('jobq_' || $1::integer, rank || ':' || position) FROM added
"""
NOTIFY_READY: Final = """
    SELECT pg_notify('jobq_' || queue_id, rank || ':' || $3::bigint)
    FROM unnest($1::integer[], $2::bigint[]) AS u (queue_id, rank)
"""
# Of those that are known: what has another payload, and what is so old that it is known no more.
REFUSED: Final = """
    SELECT * FROM (
        SELECT u.number, submission.fingerprint IS DISTINCT FROM u.fingerprint AS is_other,
            coalesce(ended_at < statement_timestamp() - $5::interval, false) AS is_expired
        FROM unnest($1::integer[], $2::text[], $3::bytea[], $4::integer[]) AS u (queue_id, id, fingerprint, number)
        JOIN jobq.submission USING (queue_id, id)) AS known
    WHERE is_other OR is_expired
"""
FORGET_EXPIRED: Final = "SELECT jobq.forget_expired($1, $2, $3)"
EPOCH: Final = "SELECT jobq.current_epoch()"
FORMER_EPOCH: Final = "JQ001"  # the statement is to be repeated


@dataclass(frozen=True, slots=True)
class NewTask:
    """A task to add, with what takes long to make of it."""

    queue: int
    task: Task
    body: bytes
    fingerprint: bytes
    shape: int = shapes.NO_SHAPE

    @classmethod
    def of(cls, queue: int, task: Task) -> Self:
        """Return it as it would be added in the task's epoch."""
        return cls(queue, task, task.encode(), task.fingerprint())

    def in_epoch(self, epoch: int) -> Self:
        """Return it as it is added in another epoch."""
        if self.task.epoch == epoch:
            return self
        task = self.task.in_epoch(epoch)
        return replace(self, task=task, body=task.encode())

    @property
    def id(self) -> str:
        """The task's id; what follows are its other columns."""
        return self.task.id

    @property
    def rank(self) -> int:  # noqa: D102
        return shapes.rank(self.shape, self.task.priority)

    @property
    def request(self) -> str:
        """What it asks for; empty = nothing."""
        return shapes.text_of(self.task.resources, self.task.needs)

    @property
    def not_before(self) -> float | None:  # noqa: D102
        return self.task.not_before

    @property
    def batch(self) -> str | None:  # noqa: D102
        return self.task.batch

    @property
    def params(self) -> str | None:
        """As they are kept: ASCII, in which a NUL is an escape."""
        return json.dumps(self.task.params) if self.task.params else None


class PushRefused(Exception):
    """Calls that cannot be added, by number; what the others had added was undone with them."""

    def __init__(self, errors: dict[int, JobqError]) -> None:
        self.errors = errors


class Expired(Exception):
    """Ids that are to be forgotten before they are pushed; what was added was undone."""

    def __init__(self, ids: list[str]) -> None:
        self.ids = ids


async def shaped(connection: Any, tasks: Sequence[tuple[int, NewTask]]) -> list[tuple[int, NewTask]]:
    """Return the tasks with the shapes of what they ask for, made where they are new.

    Args:
        connection: in a transaction that has added nothing yet.
        tasks: each with the number of its call.

    Raises:
        PushRefused: the first call that would make more shapes than a queue may have.
    """
    queue = tasks[0][1].queue
    numbers = await shape_sql.numbers_of(connection, queue, (task.request for _, task in tasks))
    for number, task in tasks:
        if task.request not in numbers:
            known = {text for (text,) in await connection.fetch(shape_sql.REQUESTS, queue)}
            wanted = {each.request for at, each in tasks if at == number} - {""}
            raise PushRefused({number: shapes.too_many(known | wanted)})
    return [(number, replace(task, shape=numbers[task.request])) for number, task in tasks]


async def refuse_known(connection: Any, tasks: Sequence[tuple[int, NewTask]], ids_kept: timedelta) -> None:
    """Raise Expired for ids that have ended too long ago, else PushRefused for calls whose ids have another payload.

    A statement of its own: only now does it see what another push committed while ours waited for it.

    Args:
        connection: of asyncpg.
        tasks: each with the number of its call.
        ids_kept: for how long the id of a task that has ended is known.
    """
    found = await connection.fetch(
        REFUSED,
        [task.queue for _, task in tasks],
        [task.id for _, task in tasks],
        [task.fingerprint for _, task in tasks],
        list(range(len(tasks))),
        ids_kept,
    )
    if expired := [tasks[row["number"]][1].id for row in found if row["is_expired"]]:
        raise Expired(expired)
    if found:
        raise PushRefused({tasks[row[0]][0]: duplicate(tasks[row[0]][1].id) for row in found})


def columns(tasks: Sequence[NewTask]) -> list[list[Any]]:
    """Return the values of ADD and ADD_UNKNOWN."""
    return [
        [task.queue for task in tasks],
        [task.id for task in tasks],
        [task.rank for task in tasks],
        [task.not_before for task in tasks],
        [task.body for task in tasks],
        [task.fingerprint for task in tasks],
        [task.task.epoch for task in tasks],
    ]


def lowest_of(rows: Sequence[Any]) -> dict[int, int]:
    """Return what these say became ready, by rank."""
    return {row["rank"]: row["position"] for row in rows}


async def copy(connection: Any, tasks: Sequence[NewTask], batches: Mapping[str, int] | None = None) -> dict[int, int]:
    """Add tasks that are all new, and of which none is for later, by COPY, in a transaction.

    Args:
        connection: of asyncpg.
        tasks: each id once.
        batches: the numbers of their batches; None = nothing is said of batches and params.

    Returns:
        What became ready, by rank.
    """
    known, held = ["queue_id", "id", "fingerprint", "epoch"], ["queue_id", "id", "rank", "body"]
    submissions: list[tuple[Any, ...]] = [(task.queue, task.id, task.fingerprint, task.task.epoch) for task in tasks]
    rows: list[tuple[Any, ...]] = [(task.queue, task.id, task.rank, task.body) for task in tasks]
    if batches is not None:
        known, held = [*known, "batch_id", "params"], [*held, "batch_id"]
        numbers = [batches.get(task.batch or "") for task in tasks]
        submissions = [(*row, at, task.params) for row, at, task in zip(submissions, numbers, tasks, strict=True)]
        rows = [(*row, at) for row, at in zip(rows, numbers, strict=True)]
    async with connection.transaction():
        # Before any position of theirs is taken: the floors of all who claim are lowered to here (claimer.py).
        floor = await connection.fetchval("SELECT nextval('jobq.position')")
        await connection.copy_records_to_table(
            "submission", schema_name="jobq", columns=known, records=sorted(submissions, key=lambda row: row[:2])
        )
        await connection.copy_records_to_table("task", schema_name="jobq", columns=held, records=rows)
        ranks = {(task.queue, task.rank) for task in tasks}
        await connection.fetch(NOTIFY_READY, *(list(column) for column in zip(*ranks, strict=True)), floor)
    return dict.fromkeys({task.rank for task in tasks}, floor)


def duplicate(task_id: str) -> JobqError:
    """Return what to say of an id that is another task's."""
    return DuplicateTask(
        f"task id {task_id!r} is taken by a task with another payload; none of this push was added. Give the new task"
        " another id"
    )
