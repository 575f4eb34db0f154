"""What the dead letters of a queue have in common, looked at from the newest back, as SQL."""

import sqlite3
from collections.abc import Sequence
from datetime import timedelta
from typing import Final

from jobq.journal.dead_grouping import MOST_GROUPED, DeadGrouping, host_in
from jobq.journal.views import DeadGroups
from jobq_sqlite.bounded_read import UntilCut, bounded

LETTERS: Final = (
    "SELECT id, reason, description, finished_at, (SELECT record FROM attempt WHERE attempt.seq = task.seq"
    " ORDER BY attempt DESC LIMIT 1) FROM task WHERE queue_id = ? AND state = 'dead'"
    " ORDER BY finished_at DESC, seq DESC LIMIT ?"
)


def groups(
    database: sqlite3.Connection, queue: int, grouping: Sequence[str], limit: int, since: float, budget: timedelta
) -> DeadGroups:
    """Return the largest groups of those that there is time to look at.

    Args:
        database: is only read.
        queue: the queue's number.
        grouping: by what.
        limit: how many groups.
        since: wall time before which none died that is meant.
        budget: the time.
    """
    found = DeadGrouping(grouping)
    with bounded(database, budget) as is_over, UntilCut():
        # Row by row: the statement lets go of Python while it looks for the next, so others have their turns.
        for id_, reason, description, died, record in database.execute(LETTERS, (queue, MOST_GROUPED + 1)):
            if is_over() or found.looked_at == MOST_GROUPED:
                return found.groups(limit, is_all=False)
            if died < since:
                break
            found.add(id_, reason, description, host_in(record), died)
        return found.groups(limit, is_all=True)
    return found.groups(limit, is_all=False)
