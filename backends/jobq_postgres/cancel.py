"""Canceling tasks whose rows are held: what nobody runs ends, and who runs one is asked to end it."""

from collections.abc import Sequence
from typing import Any, Final

from jobq_postgres import settle

END_EXPIRED: Final = f"""
    WITH expired AS (SELECT * FROM jobq.task WHERE seq = ANY ($1::bigint[]) AND expires_at <= clock_timestamp()),
    lost AS ({settle.LOST} FROM expired WHERE holder IS NOT NULL ON CONFLICT DO NOTHING)
    UPDATE jobq.task SET due = clock_timestamp(), expires_at = NULL, receipt = NULL, holder = NULL,
        beat = NULL FROM expired WHERE task.seq = expired.seq
"""  # noqa: S608 - constants of ours
REQUEST: Final = "UPDATE jobq.task SET cancel_requested = true WHERE seq = ANY ($1::bigint[])"


async def cancel_held(connection: Any, rows: Sequence[Any]) -> bool:
    """Cancel tasks, in the transaction that has locked their rows; return whether some that ended are of batches.

    Args:
        connection: of asyncpg.
        rows: of jobq.task: `seq`, and `is_live` for one whose lease has not run out.
    """
    idle = [row["seq"] for row in rows if not row["is_live"]]
    await connection.execute(REQUEST, [row["seq"] for row in rows if row["is_live"]])
    await connection.execute(END_EXPIRED, idle)
    ended = await connection.fetch(settle.CANCEL_IDLE, idle)
    return any(row["batch_id"] is not None for row in ended)
