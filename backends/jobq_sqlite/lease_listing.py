"""The named leases of a queue, page by page, as SQL."""

import sqlite3
from typing import Final

from jobq.journal.views import ViewPage
from jobq.lease import rules
from jobq.lease.store import LeaseRecord
from jobq_sqlite.leases import COLUMNS, row_of
from jobq_sqlite.task_sql import Now

_BEYOND: Final = "\U0010ffff"  # behind each character that a name may have
LISTED: Final = f"SELECT {COLUMNS}, name FROM lease WHERE queue = ? AND name {{}} ? AND name < ? ORDER BY name LIMIT ?"  # noqa: S608 - constants of ours


def page(
    database: sqlite3.Connection, queue: str, prefix: str, after: str, limit: int, now: Now
) -> ViewPage[LeaseRecord]:
    """Return leases whose names begin so, from behind a name."""
    # One lower bound: of two, SQLite would walk from one of its choice.
    first, compared = (after, ">") if after >= prefix and after else (prefix, ">=")
    found = database.execute(LISTED.format(compared), (queue, first, prefix + _BEYOND, limit + 1)).fetchall()
    records = [rules.record(name, row_of(columns), now.boottime) for *columns, name in found]
    return ViewPage(rows=records[:limit], after=records[limit - 1].name if len(records) > limit else None)
