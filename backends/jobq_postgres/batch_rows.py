"""Batches as they stand, and their tasks: counted from the rows, by index, each answer in one snapshot."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from jobq.batch_plan import Plan
from jobq.batches import MOST_LISTED, PACE_SECONDS, PACE_TASKS, Batch, BatchState, Member, counts_of, pace, rounds_of

# Of each batch that `found` names. What has ended and is not dead is in jobq.submission alone. That it has ended is no
# condition of the search: for that the planner might walk through all of the queue that has. And they are searched for
# as a range, so that it does not walk through all there is, where it once was nearly all of one batch.
_OF_IT: Final = "batch_id BETWEEN found.batch_id AND found.batch_id"
_COUNTED: Final = f"""
    SELECT found.*, extract(epoch FROM created_at)::float8 AS created, extract(epoch FROM sealed_at)::float8 AS sealed,
        extract(epoch FROM finished_at)::float8 AS finished, extract(epoch FROM clock_timestamp())::float8 AS now,
        waiting.*, ended.*, (SELECT count(*) FROM jobq.dead WHERE {_OF_IT}) AS dead,
        found.gone + (SELECT coalesce(sum(outbox.gone), 0) FROM jobq.outbox
            WHERE outbox.queue_id = found.queue_id AND outbox.batch_id = found.batch_id)::integer AS all_gone
    FROM found,
    LATERAL (SELECT count(*) FILTER (WHERE position IS NOT NULL OR due <= statement_timestamp()) AS ready,
        count(*) FILTER (WHERE due > statement_timestamp()) AS scheduled,
        count(*) FILTER (WHERE expires_at > statement_timestamp()) AS running,
        count(*) FILTER (WHERE expires_at <= statement_timestamp()) AS expired
        FROM jobq.task WHERE {_OF_IT}) AS waiting,
    LATERAL (SELECT count(*) FILTER (WHERE ended_at IS NOT NULL AND outcome IS DISTINCT FROM 'canceled') AS succeeded,
        count(*) FILTER (WHERE ended_at IS NOT NULL AND outcome = 'canceled') AS canceled
        FROM jobq.submission WHERE {_OF_IT}) AS ended
    ORDER BY found.name
"""  # noqa: S608 - constants of ours, every value is bound; so below
FIND: Final = f"""
    WITH found AS MATERIALIZED (SELECT * FROM jobq.batch WHERE queue_id = $1 AND name = $2)
    {_COUNTED}
"""  # noqa: S608
LIST: Final = f"""
    WITH found AS MATERIALIZED (
        SELECT * FROM jobq.batch WHERE queue_id = $1 AND name > $2 AND (NOT $4 OR state <> 'finished')
        ORDER BY name LIMIT $3)
    {_COUNTED}
"""  # noqa: S608
# What ended last of it; what is dead, of the queue. A time in seconds since the epoch is when its last round ended.
LATELY: Final = f"""
    WITH since AS (SELECT greatest(statement_timestamp() - interval '{PACE_SECONDS} seconds', to_timestamp($3)) AS at),
    asked AS (SELECT batch_id FROM jobq.batch WHERE queue_id = $1 AND name = $2)
    SELECT count(*), extract(epoch FROM clock_timestamp() - min(at))::float8 FROM (
        (SELECT ended_at AS at FROM jobq.submission WHERE batch_id = (SELECT batch_id FROM asked)
            AND ended_at > (SELECT at FROM since) AND outcome IS DISTINCT FROM 'canceled'
            ORDER BY ended_at DESC LIMIT {PACE_TASKS})
        UNION ALL
        (SELECT died_at FROM jobq.dead WHERE queue_id = $1 AND died_at > (SELECT at FROM since)
            AND batch_id = (SELECT batch_id FROM asked) ORDER BY died_at DESC LIMIT {PACE_TASKS})
        ORDER BY at DESC LIMIT {PACE_TASKS}) AS ends
"""  # noqa: S608
NUMBER: Final = "SELECT batch_id FROM jobq.batch WHERE queue_id = $1 AND name = $2"
# In the order of the index, whatever the database's collation makes of that: a page costs what it holds.
MEMBERS: Final = """
    SELECT known.id, known.params, CASE
        WHEN dead.id IS NOT NULL THEN 'dead'
        WHEN task.expires_at > statement_timestamp() THEN 'running'
        WHEN task.expires_at IS NOT NULL THEN 'expired'
        WHEN task.due > statement_timestamp() THEN 'scheduled'
        WHEN task.seq IS NOT NULL THEN 'ready'
        WHEN known.outcome = 'canceled' THEN 'canceled' ELSE 'succeeded' END AS state
    FROM (SELECT queue_id, id, params, outcome FROM jobq.submission WHERE batch_id = $1 AND id > $2
        ORDER BY id LIMIT $3) AS known
    LEFT JOIN jobq.task USING (queue_id, id) LEFT JOIN jobq.dead USING (queue_id, id)
    ORDER BY known.id
"""
DEAD_MEMBERS: Final = """
    SELECT found.id, submission.params, 'dead' AS state
    FROM (SELECT queue_id, id FROM jobq.dead WHERE batch_id = $1 AND id > $2 ORDER BY id LIMIT $3) AS found
    LEFT JOIN jobq.submission USING (queue_id, id) ORDER BY found.id
"""


async def find(connection: Any, queue: int, name: str) -> Batch | None:
    """Return a batch, counted."""
    row = await connection.fetchrow(FIND, queue, name)
    return None if row is None else _batch(row)


async def find_with_rate(connection: Any, queue: int, name: str) -> Batch | None:
    """Return a batch, counted, and how fast its tasks end."""
    batch = await find(connection, queue, name)
    if batch is None:
        return None
    last = max((each.finished for each in batch.rounds), default=0.0)
    return replace(batch, rate=pace(*await connection.fetchrow(LATELY, queue, name, last)))


async def page(connection: Any, queue: int, after: str, limit: int, *, unfinished: bool) -> list[Batch]:
    """Return some, by name, counted."""
    return [_batch(row) for row in await connection.fetch(LIST, queue, after, min(limit, MOST_LISTED), unfinished)]


async def members(
    connection: Any, queue: int, name: str, after: str, limit: int, state: str | None
) -> Sequence[Member] | None:
    """Return some of a batch's tasks, by id; None = there is no such batch."""
    number = await connection.fetchval(NUMBER, queue, name)
    if number is None:
        return None
    statement = DEAD_MEMBERS if state == "dead" else MEMBERS
    rows = await connection.fetch(statement, number, after, min(limit, MOST_LISTED))
    return [
        Member(id=row["id"], state=row["state"], params=json.loads(row["params"] or "{}"))
        for row in rows
        if state in (None, row["state"])
    ]


def counts(row: Any) -> dict[str, int]:
    """Return the counts of a row of FIND."""
    return counts_of({**row, "gone": row["all_gone"]})


def _batch(row: Any) -> Batch:
    return Batch(
        name=row["name"],
        state=BatchState(row["state"]),
        round=row["round"],
        is_canceled=row["is_canceled"],
        template=Plan.decode(row["plan"]).template,
        created=row["created"],
        sealed=row["sealed"],
        finished=row["finished"],
        counts=counts(row),
        rounds=tuple(rounds_of(row["rounds"])),
    )
