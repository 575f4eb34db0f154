"""Keeping the journal of a queue within its size (JOBQ_JOURNAL_MAX): the output of what ended first goes first.

Attempts have no index by their end but a BRIN one, since each more would cost every settle: so the size is counted by
a scan, at most a hundredth of the time, and only when it is too much the moments are looked for before which outputs
go, and then whole records, in bounded steps.
"""

import time
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from datetime import datetime

_LEAST_PAUSE_SECONDS: Final = 60.0
_RESTRAINT: Final = 100.0  # times what the last scan took
_AT_ONCE: Final = 1000
_TARGET: Final = 0.9  # of the cap, so that not every look finds too much
_QUARTER: Final = 0.25  # of the cap, for records whose output has gone
SIZE: Final = """
    SELECT coalesce(sum(octet_length(record) + octet_length(output) + 100), 0)::bigint
    FROM jobq.attempt WHERE queue_id = $1
"""
CUT: Final = """
    SELECT min(ended_at) FILTER (WHERE total <= $2) FROM (
        SELECT ended_at, sum(octet_length(record) + octet_length(output) + 100)
            OVER (ORDER BY ended_at DESC ROWS UNBOUNDED PRECEDING) AS total
        FROM jobq.attempt WHERE queue_id = $1 AND ended_at < coalesce($3::timestamptz, 'infinity')) AS walked
"""
CUT_RECORDS: Final = CUT.replace(" + octet_length(output)", "")
_FOUND: Final = f"""(queue_id, id, attempt) IN (
    SELECT queue_id, id, attempt FROM jobq.attempt WHERE queue_id = $1 AND ended_at < $2 {{}} LIMIT {_AT_ONCE})"""  # noqa: S608 - constants of ours
STRIP: Final = f"UPDATE jobq.attempt SET output = ''::bytea WHERE {_FOUND.format('AND octet_length(output) > 0')}"  # noqa: S608 - as above
DROP: Final = f"DELETE FROM jobq.attempt WHERE {_FOUND.format('')}"  # noqa: S608 - as above


class JournalRetention:
    """One process's looks at one queue's journal.

    Args:
        most_bytes: what it may hold.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most = most_bytes
        self._look_at = 0.0
        self._steps: list[tuple[str, datetime]] = []

    @property
    def goes_on(self) -> bool:
        """Whether there is more to remove than the last step did."""
        return bool(self._steps)

    async def step(self, connection: Any, queue: int) -> None:
        """Look, or remove some of what was found to be too much."""
        if not self._steps and time.monotonic() >= self._look_at:
            began = time.monotonic()
            await self._look(connection, queue)
            ended = time.monotonic()
            self._look_at = ended + max(_LEAST_PAUSE_SECONDS, _RESTRAINT * (ended - began))
        if self._steps:
            statement, before = self._steps[0]
            done = await connection.execute(statement, queue, before)
            if int(done.split()[-1]) < _AT_ONCE:
                self._steps.pop(0)

    async def _look(self, connection: Any, queue: int) -> None:
        if await connection.fetchval(SIZE, queue) <= self._most:
            return
        # Where not even the newest fits, all are older than "now".
        strip = await connection.fetchval(CUT, queue, int(_TARGET * self._most), None) or await connection.fetchval(
            "SELECT clock_timestamp()"
        )
        drop = await connection.fetchval(CUT_RECORDS, queue, int(_QUARTER * self._most), strip)
        self._steps = [(STRIP, strip)] + ([] if drop is None else [(DROP, drop)])
