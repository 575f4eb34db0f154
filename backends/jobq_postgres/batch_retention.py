"""Forgetting batches: a finished one with the ids of its tasks, one that was never sealed when it holds nothing."""

from contextlib import suppress
from datetime import timedelta
from typing import Any, Final

from jobq.batch_plan import Plan
from jobq.errors import MalformedTask
from jobq_postgres.batch_push import NONE_PUSHES

_AT_ONCE: Final = 100
_IS_OVER: Final = """
    (CASE state WHEN 'finished' THEN finished_at WHEN 'open' THEN created_at END) < statement_timestamp() - $2::interval
    AND NOT EXISTS (SELECT FROM jobq.submission WHERE submission.batch_id = batch.batch_id)
"""
FIND_OLD: Final = f"""
    WITH old AS MATERIALIZED (
        SELECT batch_id, name, round, plan FROM jobq.batch WHERE queue_id = $1 AND {_IS_OVER}
        ORDER BY batch_id LIMIT {_AT_ONCE} FOR UPDATE SKIP LOCKED)
    SELECT * FROM old WHERE {NONE_PUSHES}
"""  # noqa: S608 - constants of ours; so below
KNOWN: Final = "SELECT EXISTS (SELECT FROM jobq.submission WHERE queue_id = $1 AND id = ANY ($2::text[]))"
FORGET: Final = f"DELETE FROM jobq.batch WHERE queue_id = $1 AND batch_id = ANY ($3::integer[]) AND {_IS_OVER}"  # noqa: S608


async def forget_batches(connection: Any, queue: int, keep: timedelta) -> None:
    """Delete some batches that ended, or were begun, so long ago; locked first, and looked at again after that."""
    async with connection.transaction():
        found = await connection.fetch(FIND_OLD, queue, keep)
        if not found:
            return
        over = [
            row["batch_id"]
            for row in found
            if not (ids := _then(row)) or not await connection.fetchval(KNOWN, queue, ids)
        ]
        await connection.execute(FORGET, queue, keep, over)


def _then(row: Any) -> list[str]:
    """Return the ids of what was run at the ends of its rounds: of another batch by this name they would be known."""
    plan = Plan.decode(row["plan"])
    with suppress(MalformedTask):  # by a newer jobq; it has added none that this one could read
        return [task.id for number in range(1, row["round"] + 1) for task in plan.tasks(row["name"], number)]
    return []
