"""What the dead letters of a queue have in common, looked at from the newest back, as SQL."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from jobq.journal.dead_grouping import MOST_GROUPED, DeadGrouping, host_in
from jobq.journal.views import DeadGroups
from jobq_postgres.bounded_read import BoundedRead, TimeIsOver
from jobq_postgres.stored_text import text_of

_AT_ONCE: Final = 500  # letters of one statement
_IN_A_TURN: Final = 50  # letters that are folded before others on the event loop have their turn
_LATEST: Final = datetime(9999, 1, 1, tzinfo=UTC)
LETTERS: Final = """
    SELECT id, reason, description, died_at, last.record FROM (
        SELECT * FROM jobq.dead WHERE queue_id = $1 AND (died_at, id) < ($2, $3)
        ORDER BY died_at DESC, id DESC LIMIT $4) AS dead
    LEFT JOIN LATERAL (
        SELECT record FROM jobq.attempt WHERE attempt.queue_id = $1 AND attempt.id = dead.id
        ORDER BY attempt.queue_id, attempt.id, attempt DESC LIMIT 1) AS last ON true
    ORDER BY died_at DESC, id DESC
"""


async def groups(read: BoundedRead, queue: int, grouping: Sequence[str], limit: int, since: float) -> DeadGroups:
    """Return the largest groups of those that there is time to look at.

    Args:
        read: within whose time they are read.
        queue: the queue's number.
        grouping: by what.
        limit: how many groups.
        since: wall time before which none died that is meant.
    """
    found = DeadGrouping(grouping)
    place: tuple[datetime, str] = _LATEST, ""
    while found.looked_at < MOST_GROUPED and not read.is_over:
        try:
            letters = await read.fetch(LETTERS, queue, *place, _AT_ONCE)
        except TimeIsOver:
            break
        for number, (id_, reason, description, died, record) in enumerate(letters):
            if died.timestamp() < since:
                return found.groups(limit, is_all=True)
            found.add(id_, reason, text_of(description), host_in(record), died.timestamp())
            if number % _IN_A_TURN == 0:
                await asyncio.sleep(0)
        if len(letters) < _AT_ONCE:
            return found.groups(limit, is_all=True)
        place = letters[-1]["died_at"], letters[-1]["id"]
    return found.groups(limit, is_all=False)
