"""The named leases of a queue, page by page, as SQL."""

import sqlite3
from datetime import timedelta
from typing import Final

from jobq.journal.views import SearchedTo, ViewPage
from jobq.lease import rules
from jobq.lease.store import LeaseRecord
from jobq_sqlite.bounded_read import UntilCut, bounded
from jobq_sqlite.leases import COLUMNS, row_of
from jobq_sqlite.task_sql import Now

_BEYOND: Final = "\U0010ffff"  # behind each character that a name may have
LISTED: Final = f"SELECT {COLUMNS}, name FROM lease WHERE queue = ? AND name {{}} ? AND name < ? ORDER BY name LIMIT ?"  # noqa: S608 - constants of ours


def page(
    database: sqlite3.Connection, queue: str, prefix: str, after: str, limit: int, now: Now, budget: timedelta
) -> ViewPage[LeaseRecord]:
    """Return leases whose names begin so, from behind a name."""
    # One lower bound: of two, SQLite would walk from one of its choice.
    first, compared = (after, ">") if after >= prefix and after else (prefix, ">=")
    records: list[LeaseRecord] = []
    with bounded(database, budget), UntilCut():
        for *columns, name in database.execute(LISTED.format(compared), (queue, first, prefix + _BEYOND, limit + 1)):
            records.append(rules.record(name, row_of(columns), now.boottime))
        return ViewPage(rows=records[:limit], after=records[limit - 1].name if len(records) > limit else None)
    shown = records[:limit]
    return ViewPage(rows=shown, after=shown[-1].name if shown else after, searched_to=SearchedTo(looked_at=len(shown)))
