"""Looking at a queue and tending its dead letters, as SQL; `settle` and `claimer` have the life of a task."""

import contextlib
import math
from collections.abc import Iterator, Sequence
from typing import Any, Final

from jobq.backend import DeadLetter, Hastened, Peeked, QueueStats
from jobq.clearing import Cleared
from jobq.errors import MalformedTask
from jobq.pausing import Pause
from jobq.servable import PAGE_BYTES
from jobq.task import Task
from jobq_postgres.settle import TELL_GONE
from jobq_postgres.shape_sql import PRIORITY, first_of_each
from jobq_postgres.stored_text import text_of
from jobq_postgres.task_listing import TASKS_AT_ONCE

_MOST_LETTERS: Final = 10_000  # of a page: their sizes are summed up
ROWS_AT_ONCE: Final = 500  # whose locks a renewal may wait for, and all that wait for their turn on the connection

# What a claim would find, in its order: the ready, then what it would make ready first.
PEEK: Final = f"""
    SELECT seq FROM (
        SELECT seq, {PRIORITY} AS priority, turn, position, since FROM (
            (SELECT ready.seq, ready.rank, 0 AS turn, ready.position, NULL::timestamptz AS since
                FROM {first_of_each("$2")})
            UNION ALL
            (SELECT seq, rank, 1, 0, due FROM jobq.task
                WHERE queue_id = $1 AND due <= statement_timestamp() ORDER BY due LIMIT $2)
            UNION ALL
            (SELECT seq, rank, 2, 0, expires_at FROM jobq.task
                WHERE queue_id = $1 AND expires_at <= statement_timestamp() ORDER BY expires_at LIMIT $2)
        ) AS found) AS first
    ORDER BY priority DESC, turn, position, since LIMIT $2
"""  # noqa: S608 - constants of ours, every value is bound; so below
_PEEKED: Final = "SELECT seq, id, body, deliveries FROM jobq.task WHERE seq = ANY ($1::bigint[])"
STATS: Final = """
    SELECT (SELECT count(*) FROM jobq.task WHERE queue_id = $1 AND position IS NOT NULL) AS ready,
        (SELECT count(*) FROM jobq.task WHERE queue_id = $1 AND due <= statement_timestamp()) AS due,
        (SELECT count(*) FROM jobq.task WHERE queue_id = $1 AND due > statement_timestamp()) AS scheduled,
        (SELECT count(*) FROM jobq.task WHERE queue_id = $1 AND expires_at <= statement_timestamp()) AS expired,
        (SELECT count(*) FROM jobq.task WHERE queue_id = $1 AND expires_at > statement_timestamp()) AS leased,
        (SELECT count(*) FROM jobq.dead WHERE queue_id = $1) AS dead,
        (SELECT paused FROM jobq.queue WHERE queue_id = $1) AS paused
"""
# Everyone who waits looks again, whatever it was that changed.
PAUSE: Final = """
    WITH former AS MATERIALIZED (SELECT paused FROM jobq.queue WHERE queue_id = $1 FOR UPDATE),
    marked AS (UPDATE jobq.queue SET paused = $2 WHERE queue_id = $1)
    SELECT former.paused, pg_notify($3, '') FROM former
"""
# A place at the end, as a retry that is due takes.
HASTEN: Final = """
    WITH held AS MATERIALIZED (
        SELECT seq FROM jobq.task WHERE queue_id = $1 AND id = ANY ($2::text[]) AND due > statement_timestamp()
        AND NOT cancel_requested ORDER BY seq FOR UPDATE)
    UPDATE jobq.task SET position = nextval('jobq.position'), due = NULL FROM held WHERE task.seq = held.seq
    RETURNING task.id, task.rank, task.position
"""
# Where the others are: who claims one that is to be canceled ends it.
NOT_PUT_OFF: Final = """
    SELECT id, CASE WHEN expires_at > statement_timestamp() THEN 'running'
        WHEN cancel_requested THEN 'ended' ELSE 'waiting' END AS answer
    FROM jobq.task WHERE queue_id = $1 AND id = ANY ($2::text[])
    UNION ALL SELECT id, 'ended' FROM jobq.dead WHERE queue_id = $1 AND id = ANY ($2::text[])
    UNION ALL SELECT id, 'ended' FROM jobq.submission WHERE queue_id = $1 AND id = ANY ($2::text[])
        AND ended_at IS NOT NULL
"""
# In the order of `seq`, as everyone locks the rows of jobq.task.
CLEAR: Final = f"""
    WITH held AS MATERIALIZED (
        SELECT seq FROM jobq.task WHERE queue_id = $1 AND seq > $2 AND seq <= $3 ORDER BY seq LIMIT $4 FOR UPDATE),
    gone AS (
        DELETE FROM jobq.task USING held WHERE task.seq = held.seq RETURNING task.queue_id, task.id, task.batch_id),
    noted AS (DELETE FROM jobq.attempt USING gone WHERE attempt.queue_id = gone.queue_id AND attempt.id = gone.id),
    {TELL_GONE.strip()},
    forgotten AS (
        DELETE FROM jobq.submission USING gone
        WHERE submission.queue_id = gone.queue_id AND submission.id = gone.id)
    SELECT (SELECT count(*) FROM gone) AS count, (SELECT max(seq) FROM held) AS last,
        EXISTS (SELECT FROM gone WHERE batch_id IS NOT NULL) AS tells
"""  # noqa: S608
NEWEST: Final = "SELECT coalesce(max(seq), 0) FROM jobq.task"
DEAD_LETTERS: Final = """
    SELECT id, reason, description, body, deliveries, extract(epoch FROM died_at)::float8 AS died,
        (extract(epoch FROM died_at) * 1000000)::bigint AS microseconds, size,
        (SELECT name FROM jobq.batch WHERE batch.batch_id = summed.batch_id) AS batch
    FROM (
        SELECT *, sum(octet_length(body) + octet_length(description))
            OVER (ORDER BY died_at, id ROWS UNBOUNDED PRECEDING) AS size
        FROM (
            SELECT * FROM jobq.dead
            WHERE queue_id = $1 AND (died_at, id) > ('epoch'::timestamptz + $3 * interval '1 microsecond', $4)
            ORDER BY died_at, id LIMIT $2) AS found) AS summed
    WHERE size - octet_length(body) - octet_length(description) < $5
    ORDER BY died_at, id
"""
BATCHES_OF_DEAD: Final = """
    SELECT DISTINCT batch_id FROM jobq.dead WHERE queue_id = $1 AND id = ANY ($2::text[])
"""
HOLD_BATCHES: Final = """
    SELECT batch_id FROM jobq.batch WHERE batch_id = ANY ($1::integer[]) ORDER BY batch_id FOR UPDATE
"""
# A letter of another batch came after the look: as if after the redrive.
HOLD_DEAD: Final = """
    SELECT id, body, deliveries, batch_id FROM jobq.dead WHERE queue_id = $1 AND id = ANY ($2::text[])
    AND (batch_id IS NULL OR batch_id = ANY ($3::integer[])) ORDER BY id FOR UPDATE
"""
NEXT_ROUND: Final = """
    UPDATE jobq.batch SET is_canceled = false, finished_at = NULL, round = round + 1, state = 'sealed'
    WHERE batch_id = ANY ($1::integer[]) AND state = 'finished'
"""
# A cancel that goes on is of what is put back, too: the next step ends that.
TELL_CANCELED: Final = """
    INSERT INTO jobq.outbox (queue_id, batch_id)
    SELECT queue_id, batch_id FROM jobq.batch WHERE batch_id = ANY ($1::integer[]) AND is_canceled ORDER BY batch_id
    RETURNING batch_id
"""
REDRIVE: Final = """
    WITH raised AS (
        DELETE FROM jobq.dead USING unnest($2::text[], $3::bytea[], $4::bigint[])
            WITH ORDINALITY AS u (id, body, epoch, number)
        WHERE dead.queue_id = $1 AND dead.id = u.id
        RETURNING dead.queue_id, dead.id, dead.batch_id, dead.rank, dead.deliveries, dead.checkpoint, u.body, u.epoch,
            u.number),
    answered AS (
        UPDATE jobq.submission SET epoch = greatest(submission.epoch, raised.epoch) FROM raised
        WHERE submission.queue_id = raised.queue_id AND submission.id = raised.id),
    added AS (
        INSERT INTO jobq.task (queue_id, id, batch_id, rank, deliveries, checkpoint, body)
        SELECT queue_id, id, batch_id, rank, deliveries, checkpoint, body FROM raised ORDER BY number
        RETURNING rank, position)
    SELECT rank, min(position) AS position FROM added GROUP BY rank
"""
PURGE: Final = f"""
    WITH gone AS (
        DELETE FROM jobq.dead WHERE queue_id = $1 AND id = ANY ($2::text[]) RETURNING queue_id, id, batch_id),
    {TELL_GONE.strip()},
    noted AS (DELETE FROM jobq.attempt USING gone WHERE attempt.queue_id = gone.queue_id AND attempt.id = gone.id),
    forgotten AS (
        DELETE FROM jobq.submission USING gone
        WHERE submission.queue_id = gone.queue_id AND submission.id = gone.id)
    SELECT id, batch_id FROM gone
"""  # noqa: S608


async def peek(
    connection: Any, queue: int, skipped: int, limit: int, *, most_bytes: float = PAGE_BYTES
) -> tuple[list[Peeked], int | None]:
    """Return what a claim would return, in the order of delivery; see `Servable.peek_page`."""
    seqs = [row[0] for row in await connection.fetch(PEEK, queue, skipped + max(0, limit) + 1)][skipped:]
    tasks: list[Peeked] = []
    size = 0
    at_once = TASKS_AT_ONCE if most_bytes < math.inf else ROWS_AT_ONCE
    for start in range(0, len(seqs), at_once):
        some = seqs[start : start + at_once]
        rows = {row["seq"]: row for row in await connection.fetch(_PEEKED, some)}
        for number, seq in enumerate(some, skipped + start):
            if len(tasks) >= limit or size >= most_bytes:
                return tasks, number
            if (row := rows.get(seq)) is not None:  # else it has gone meanwhile
                tasks.append(Peeked(id=row["id"], body=row["body"], deliveries=row["deliveries"]))
                size += len(tasks[-1].body)
    return tasks, None


async def stats(connection: Any, queue: int) -> QueueStats:
    """Count, with what is due or expired counted as visible."""
    row = await connection.fetchrow(STATS, queue)
    return QueueStats(
        visible=row["ready"] + row["due"] + row["expired"],
        scheduled=row["scheduled"],
        leased=row["leased"],
        dead=row["dead"],
        paused=Pause.decode(row["paused"]),
    )


async def hasten(connection: Any, queue: int, ids: Sequence[str]) -> tuple[dict[str, Hastened], dict[int, int]]:
    """Let tasks that are put off be due now, in one transaction.

    Returns:
        What is to be answered of each that is known, and what became ready, by rank.
    """
    async with connection.transaction():
        moved = await connection.fetch(HASTEN, queue, list(ids))
        others = await connection.fetch(NOT_PUT_OFF, queue, list(ids))
    lowest: dict[int, int] = {}
    for row in moved:
        lowest[row["rank"]] = min(row["position"], lowest.get(row["rank"], row["position"]))
    answers = {row["id"]: Hastened(row["answer"]) for row in others} | {row["id"]: Hastened.DUE for row in moved}
    return answers, lowest


async def clear_some(connection: Any, queue: int, cursor: tuple[int, int] | None) -> tuple[Cleared, bool]:
    """Delete some of what waits or is leased, in the order of arrival, up to the row that was the newest at first.

    Returns:
        That, and whether some of it was of batches.
    """
    after, last = cursor or (0, await connection.fetchval(NEWEST))
    row = await connection.fetchrow(CLEAR, queue, after, last, ROWS_AT_ONCE)
    return Cleared(row["count"], None if row["last"] is None else f"{row['last']}-{last}"), row["tells"]


async def dead_page(
    connection: Any, queue: int, after: tuple[int, str] | None, limit: int
) -> tuple[list[DeadLetter], str | None]:
    """Return dead letters, oldest first, from behind when one died and its id, and the next such place."""
    limit = min(limit, _MOST_LETTERS)
    rows = await connection.fetch(DEAD_LETTERS, queue, limit, *(after or (0, "")), PAGE_BYTES)
    letters = [
        DeadLetter(
            id=row["id"],
            reason=row["reason"],
            description=text_of(row["description"]),
            body=row["body"],
            deliveries=row["deliveries"],
            died=row["died"],
            batch=row["batch"],
        )
        for row in rows
    ]
    is_full = len(rows) == limit or (rows and rows[-1]["size"] >= PAGE_BYTES)
    return letters, f"{rows[-1]['microseconds']}:{rows[-1]['id']}" if is_full else None


def batches(ids: Sequence[str]) -> Iterator[list[str]]:
    """Yield the different ids, as many as belong into one transaction."""
    different = list(dict.fromkeys(ids))
    for start in range(0, len(different), ROWS_AT_ONCE):
        yield different[start : start + ROWS_AT_ONCE]


async def redrive(connection: Any, queue: int, ids: Sequence[str]) -> tuple[list[str], dict[int, int], bool]:
    """Put dead letters back with a raised epoch (S3), in one transaction; bytes that are no task go back as they are.

    Their batches are locked first: none of them finishes meanwhile, and one that has is in its next round.

    Returns:
        The ids that were found, what became ready, by rank, and whether some are of batches that are being canceled.
    """
    tells = False
    async with connection.transaction():
        numbers = [row[0] for row in await connection.fetch(BATCHES_OF_DEAD, queue, list(ids)) if row[0] is not None]
        if numbers:
            await connection.fetch(HOLD_BATCHES, numbers)
        held = {row["id"]: row for row in await connection.fetch(HOLD_DEAD, queue, list(ids), numbers)}
        if touched := {row["batch_id"] for row in held.values()} - {None}:
            await connection.execute(NEXT_ROUND, sorted(touched))
            tells = bool(await connection.fetch(TELL_CANCELED, sorted(touched)))
        found = [id_ for id_ in dict.fromkeys(ids) if id_ in held]
        redriven = [_redriven(held[id_]["body"], held[id_]["deliveries"]) for id_ in found]
        bodies, epochs = [body for body, _ in redriven], [epoch for _, epoch in redriven]
        rows = await connection.fetch(REDRIVE, queue, found, bodies, epochs)
    return found, {row["rank"]: row["position"] for row in rows}, tells


def _redriven(body: bytes, deliveries: int) -> tuple[bytes, int]:
    with contextlib.suppress(MalformedTask):  # goes back as it is: the next worker may be newer and able to read it
        task = Task.decode(body).redriven(deliveries=deliveries)
        return task.encode(), task.epoch
    return body, 0


async def purge_dead(connection: Any, queue: int, ids: Sequence[str]) -> tuple[list[str], bool]:
    """Delete dead letters for good; their ids are forgotten. Return those, and whether some were of batches."""
    gone = {row["id"]: row["batch_id"] for row in await connection.fetch(PURGE, queue, list(ids))}
    return [id_ for id_ in dict.fromkeys(ids) if id_ in gone], any(batch is not None for batch in gone.values())
