"""The named leases of a queue, page by page, as SQL."""

from typing import Final

from jobq.journal.views import SearchedTo, ViewPage
from jobq.lease import rules
from jobq.lease.store import LeaseRecord
from jobq_postgres.bounded_read import BoundedRead, TimeIsOver
from jobq_postgres.leases import LEASE_COLUMNS, row_of

_MOST: Final = 20_000  # names that are looked at: in a database's order those with one beginning need not be neighbours
LISTED: Final = f"""
    SELECT {LEASE_COLUMNS} FROM (
        SELECT * FROM jobq.lease WHERE queue = $1 AND name > $2 ORDER BY name LIMIT $3) AS looked
    WHERE starts_with(name, $4) ORDER BY name LIMIT $5
"""  # noqa: S608 - a constant of ours, every value is bound
EDGE: Final = "SELECT name FROM jobq.lease WHERE queue = $1 AND name > $2 ORDER BY name OFFSET $3 LIMIT 1"


async def page(read: BoundedRead, queue: str, prefix: str, after: str, limit: int) -> ViewPage[LeaseRecord]:
    """Return leases whose names begin so, from behind a name."""
    try:
        found = await read.fetch(LISTED, queue, after, _MOST, prefix, limit + 1)
        edge = await read.fetch_one(EDGE, queue, after, _MOST - 1) if len(found) <= limit else None
    except TimeIsOver:
        return ViewPage(rows=[], after=after, searched_to=SearchedTo(looked_at=0))
    records = [rules.record(row["name"], row_of(row), row["now"]) for row in found[:limit]]
    if len(found) > limit:
        return ViewPage(rows=records, after=records[-1].name)
    if edge is None:
        return ViewPage(rows=records)
    return ViewPage(rows=records, after=edge[0], searched_to=SearchedTo(looked_at=_MOST))
