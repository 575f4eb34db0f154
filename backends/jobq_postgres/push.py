"""Adding tasks: whole calls, many calls in one transaction, and COPY where they are many.

A call is added whole or not at all. `jobq.submission`'s primary key alone says what is new (S8); it is written in the
order of ids, so that two pushes of the same ids wait for each other and never in a circle.

A task is pushed in an epoch that is above that of all that was forgotten (S3). What is encoded in a former one is
refused by the database (`check_epoch` in schema.sql), and encoded anew.

What became ready is notified in the same transaction: no notification without the task, and no task without its
notification. The price: PostgreSQL lets only one transaction at a time commit that notifies. Calls of one
process share a commit; many processes that push one task each get in each other's way.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Self

import asyncpg

from jobq.errors import DuplicateTask, JobqError
from jobq.task import Task

COPY_FROM: Final = 200  # tasks; below, one statement is as fast

# COLLATE "C": the order in which _copy has them too, whatever the database's own is.
# IS TRUE keeps the planner from making a join of it: with hash joins off that would be a nested loop, quadratic in the
# number of tasks; so it looks each one up in a hashed table.
_ADD: Final = """
    WITH given AS MATERIALIZED (
        SELECT * FROM unnest(
            $1::integer[], $2::text[], $3::bigint[], $4::float8[], $5::bytea[], $6::bytea[], $7::bigint[])
            WITH ORDINALITY AS u (queue_id, id, rank, not_before, body, fingerprint, epoch, number)),
    new AS (
        INSERT INTO jobq.submission (queue_id, id, fingerprint, epoch)
        SELECT queue_id, id, fingerprint, epoch FROM given ORDER BY queue_id, id COLLATE "C"
        {passing} RETURNING queue_id, id),
    timed AS (
        SELECT given.*, not_before > extract(epoch FROM statement_timestamp()) IS TRUE AS later
        FROM given WHERE ((queue_id, id) IN (SELECT queue_id, id FROM new)) IS TRUE ORDER BY number),
    added AS (
        INSERT INTO jobq.task (queue_id, id, rank, position, due, body)
        SELECT queue_id, id, rank, CASE WHEN NOT later THEN nextval('jobq.position') END,
            CASE WHEN later THEN to_timestamp(not_before) END, body FROM timed
        RETURNING queue_id, rank, position),
    lowest AS (
        SELECT queue_id, rank, min(position) AS position FROM added WHERE position IS NOT NULL GROUP BY queue_id, rank)
    SELECT rank, position, pg_notify('jobq_' || queue_id, rank || ':' || position) FROM lowest
"""
ADD: Final = _ADD.format(passing="")  # fails when one is known
ADD_UNKNOWN: Final = _ADD.format(passing="ON CONFLICT (queue_id, id) DO NOTHING")
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
OTHER_PAYLOAD: Final = """
    SELECT u.number
    FROM unnest($1::integer[], $2::text[], $3::bytea[], $4::integer[]) AS u (queue_id, id, fingerprint, number)
    JOIN jobq.submission USING (queue_id, id) WHERE submission.fingerprint IS DISTINCT FROM u.fingerprint
"""


EPOCH: Final = "SELECT jobq.current_epoch()"
FORMER_EPOCH: Final = "JQ001"  # the statement is to be repeated


@dataclass(frozen=True, slots=True)
class NewTask:
    """A task to add, with what takes long to make of it."""

    queue: int
    task: Task
    body: bytes
    fingerprint: bytes

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
        return -self.task.priority

    @property
    def not_before(self) -> float | None:  # noqa: D102
        return self.task.not_before


@dataclass(frozen=True, slots=True)
class PushCall:
    """One call of push: its tasks, each id once."""

    tasks: tuple[NewTask, ...]


class _Taken(Exception):
    """Ids are taken by other payloads; carries the calls that named them, with the id."""

    def __init__(self, refused: dict[int, str]) -> None:
        self.refused = refused


def call_of(tasks: Sequence[NewTask]) -> PushCall:
    """Return the call; a task that is given twice is one; raises DuplicateTask for two payloads of one id."""
    by_id: dict[str, NewTask] = {}
    for task in tasks:
        first = by_id.setdefault(task.id, task)
        if first.fingerprint != task.fingerprint:
            raise _duplicate(task.id)
    return PushCall(tuple(by_id.values()))


class GroupPush:
    """Adds tasks for one process.

    Attributes:
        epoch: in which tasks are pushed now, as a rule: who encodes them so saves doing it twice.
    """

    def __init__(self) -> None:
        self.epoch = 0
        self._has_looked = False

    async def push(self, connection: Any, calls: Sequence[PushCall]) -> list[object]:
        """Add the tasks of all calls; for each what became ready, by rank, or DuplicateTask.

        Each call is added whole, or not at all; as many as possible in one transaction.
        """
        answers: dict[int, object] = {}
        while len(answers) < len(calls):
            together = _agreeing(calls, answers)
            try:
                lowest = await self._add(connection, together)
            except _Taken as taken:  # what the others had added was undone with it
                answers |= {number: _duplicate(task_id) for number, task_id in taken.refused.items()}
            else:
                answers |= {number: lowest for number, _ in together}
        return [answers[number] for number in range(len(calls))]

    async def _add(self, connection: Any, tasks: list[tuple[int, NewTask]]) -> dict[int, int]:
        if not self._has_looked:
            await self._look(connection)
        while True:
            try:
                return await _add(connection, [(number, task.in_epoch(self.epoch)) for number, task in tasks])
            except asyncpg.PostgresError as error:
                if error.sqlstate != FORMER_EPOCH:
                    raise
            await self._look(connection)  # rare: something of this very epoch was forgotten meanwhile

    async def _look(self, connection: Any) -> None:
        self.epoch = int(await connection.fetchval(EPOCH))
        self._has_looked = True


def _agreeing(calls: Sequence[PushCall], answered: Mapping[int, object]) -> list[tuple[int, NewTask]]:
    """Return the tasks, with the number of their call, of all calls that do not name one id with two payloads.

    A call that does waits for the next turn: only then is it known whether the first one was added.
    """
    together: list[tuple[int, NewTask]] = []
    fingerprints: dict[str, bytes] = {}
    for number, call in enumerate(calls):
        if number in answered:
            continue
        if all(fingerprints.get(task.id, task.fingerprint) == task.fingerprint for task in call.tasks):
            fingerprints |= {task.id: task.fingerprint for task in call.tasks}
            together += [(number, task) for task in call.tasks]
    return together


async def _add(connection: Any, tasks: list[tuple[int, NewTask]]) -> dict[int, int]:
    ordered = list({task.id: task for _, task in reversed(tasks)}.values())[::-1]
    try:  # nearly always all are new: then one statement does it, or COPY
        if len(ordered) >= COPY_FROM and all(task.not_before is None for task in ordered):
            return await _copy(connection, ordered)
        if len(ordered) == 1 and (one := ordered[0]).not_before is None:
            columns = (one.queue, one.id, one.rank, one.body, one.fingerprint, one.task.epoch)
            return _lowest(await connection.fetch(ADD_ONE, *columns))
        return _lowest(await connection.fetch(ADD, *_columns(ordered)))
    except asyncpg.UniqueViolationError:
        pass
    async with connection.transaction():
        rows = await connection.fetch(ADD_UNKNOWN, *_columns(ordered))
        await _refuse_other_payloads(connection, tasks)
    return _lowest(rows)


def _columns(tasks: Sequence[NewTask]) -> list[list[Any]]:
    return [
        [task.queue for task in tasks],
        [task.id for task in tasks],
        [task.rank for task in tasks],
        [task.not_before for task in tasks],
        [task.body for task in tasks],
        [task.fingerprint for task in tasks],
        [task.task.epoch for task in tasks],
    ]


def _lowest(rows: Sequence[Any]) -> dict[int, int]:
    return {row["rank"]: row["position"] for row in rows}


async def _refuse_other_payloads(connection: Any, tasks: list[tuple[int, NewTask]]) -> None:
    # A statement of its own: only now does it see what another push committed while ours waited for it.
    found = await connection.fetch(
        OTHER_PAYLOAD,
        [task.queue for _, task in tasks],
        [task.id for _, task in tasks],
        [task.fingerprint for _, task in tasks],
        list(range(len(tasks))),
    )
    if found:
        raise _Taken({tasks[row[0]][0]: tasks[row[0]][1].id for row in found})


async def _copy(connection: Any, tasks: list[NewTask]) -> dict[int, int]:
    async with connection.transaction():
        # Before any position of theirs is taken: the floors of all who claim are lowered to here (claimer.py).
        floor = await connection.fetchval("SELECT nextval('jobq.position')")
        await connection.copy_records_to_table(
            "submission",
            schema_name="jobq",
            columns=("queue_id", "id", "fingerprint", "epoch"),
            records=sorted((task.queue, task.id, task.fingerprint, task.task.epoch) for task in tasks),
        )
        await connection.copy_records_to_table(
            "task",
            schema_name="jobq",
            columns=("queue_id", "id", "rank", "body"),
            records=[(task.queue, task.id, task.rank, task.body) for task in tasks],
        )
        ranks = {(task.queue, task.rank) for task in tasks}
        await connection.fetch(NOTIFY_READY, *(list(column) for column in zip(*ranks, strict=True)), floor)
    return dict.fromkeys({task.rank for task in tasks}, floor)


def _duplicate(task_id: str) -> JobqError:
    return DuplicateTask(
        f"task id {task_id!r} is taken by a task with another payload; none of this push was added. Give the new task"
        " another id"
    )
