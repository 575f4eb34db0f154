"""Forgetting what ended long ago: the ids of tasks, their attempts, and batches; now and then, in bounded steps."""

import math
import time
from datetime import timedelta
from typing import Any, Final

from jobq.servable import IDS_KEPT
from jobq_postgres.batch_retention import forget_batches
from jobq_postgres.retention import JournalRetention
from jobq_postgres.settle import TELL_GONE

_PAUSE_SECONDS: Final = 60.0
_FORGOTTEN_AT_ONCE: Final = 1000

# Both wait for nobody: a push that forgets some of these itself (jobq.forget_expired) has another order.
FORGET_ATTEMPTS: Final = f"""
    WITH gone AS (DELETE FROM jobq.attempt WHERE (queue_id, id, attempt) IN (
        SELECT queue_id, id, attempt FROM jobq.attempt
        WHERE queue_id = $1 AND ended_at < statement_timestamp() - $2::interval ORDER BY ended_at
        LIMIT {_FORGOTTEN_AT_ONCE} FOR UPDATE SKIP LOCKED) RETURNING 1)
    SELECT count(*) FROM gone
"""  # noqa: S608 - constants of ours
FORGET: Final = f"""
    WITH gone AS (DELETE FROM jobq.submission WHERE (queue_id, id) IN (
        SELECT queue_id, id FROM jobq.submission WHERE queue_id = $1 AND ended_at < statement_timestamp() - $2::interval
        ORDER BY ended_at LIMIT {_FORGOTTEN_AT_ONCE} FOR UPDATE SKIP LOCKED) RETURNING queue_id, batch_id),
    {TELL_GONE.strip()}
    SELECT count(*) FROM gone
"""  # noqa: S608 - as above


def ids_kept(keep: timedelta | None) -> timedelta:
    """Return for how long the id of a task that has ended is known, by how long the journal keeps it."""
    return max(IDS_KEPT, keep or IDS_KEPT)


class Forgetting:
    """What one process forgets of one queue.

    Args:
        keep: for how long the journal keeps what has ended; None = there is none.
        most_bytes: how much it may hold.
    """

    def __init__(self, keep: timedelta | None, most_bytes: int) -> None:
        self._keep = keep
        self._ids_kept = ids_kept(keep)
        self._trimming = JournalRetention(most_bytes)
        self._last = -math.inf  # with the first sweep: many a worker ends within a minute

    async def step(self, connection: Any, queue: int) -> None:
        """Forget some of it, if it is time."""
        now = time.monotonic()
        if now - self._last <= _PAUSE_SECONDS:
            return
        self._last = now
        forgotten = [await connection.fetchval(FORGET, queue, self._ids_kept)]
        if self._keep is not None:
            forgotten.append(await connection.fetchval(FORGET_ATTEMPTS, queue, self._keep))
            await self._trimming.step(connection, queue)
        await forget_batches(connection, queue, self._ids_kept)
        if _FORGOTTEN_AT_ONCE in forgotten or self._trimming.goes_on:
            self._last = -math.inf  # there is more: go on with the next sweep, or it would only grow
