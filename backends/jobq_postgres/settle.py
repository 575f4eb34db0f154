"""The verbs of a delivery as SQL, for many deliveries in one statement; each row is fenced by its own receipt (S4).

The compare is the same everywhere: the row, its receipt, and `expires_at > clock_timestamp()`, read by the server at
the moment it looks at the row (rules.md 1.3 rule 10).
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

from jobq.errors import LockLost
from jobq.journal.records import Attempt
from jobq.settlement import Complete, MoveToDeadLetters, Record, Release, Settlement
from jobq_postgres.stored_text import bytes_of

_OURS: Final = "task.seq = u.seq AND task.receipt = u.receipt AND task.expires_at > clock_timestamp()"
_REMEMBER: Final = """
    UPDATE jobq.submission SET settlements = left(x.receipt || ' ' || x.said || ';' || submission.settlements, 512)
"""
# What an attempt came to goes into the journal with its settle (S5); a NULL for a queue that keeps none.
_NOTED: Final = """
    noted AS (
        INSERT INTO jobq.attempt (queue_id, id, attempt, outcome, ended_at, record, output)
        SELECT queue_id, id, deliveries, outcome, clock_timestamp(), record, output FROM x WHERE record IS NOT NULL
        ON CONFLICT DO NOTHING)
"""
# The ends that nobody could record: their workers died, or lost the lease. Without a journal there is no holder.
LOST: Final = r"""
    INSERT INTO jobq.attempt (queue_id, id, attempt, outcome, ended_at, record, output)
    SELECT queue_id, id, deliveries, 'lock_lost', expires_at, json_build_object(
        'attempt', deliveries, 'outcome', 'lock_lost', 'then', 'lost',
        'started', extract(epoch FROM started_at)::float8, 'ended', extract(epoch FROM expires_at)::float8,
        'host', regexp_replace(holder, ':\d+$', ''), 'pid', coalesce(substring(holder FROM ':(\d+)$')::integer, 0),
        'detail', 'its lease ran out without a word: the worker died, or lost it')::text, ''::bytea
"""
# What ends tasks of batches leaves word of it, whatever state these are in (advance.py): somebody may be sealing one.
# Left out where none of the tasks has a batch, and simpler (a tenth of a settle) where all have one.
TELL: Final = """
    told AS (INSERT INTO jobq.outbox (queue_id, batch_id)
        SELECT DISTINCT queue_id, batch_id FROM {ended} WHERE batch_id IS NOT NULL)
"""
_TELL_ONE: Final = TELL.replace("DISTINCT ", "").replace("IS NOT NULL)", "IS NOT NULL LIMIT 1)")
# What deletes tasks of batches without an end counts them there, too; the batch's row is the business of who advances.
TELL_GONE: Final = """
    told AS (INSERT INTO jobq.outbox (queue_id, batch_id, gone)
        SELECT queue_id, batch_id, count(*) FROM gone WHERE batch_id IS NOT NULL GROUP BY queue_id, batch_id)
"""
_KNOWN: Final = "FROM x WHERE submission.queue_id = x.queue_id AND submission.id = x.id"
_GIVEN: Final = "unnest($1::bigint[], $2::uuid[], $3::text[]"

# A row that another session holds is passed over: the leases of all others are not to wait for it (S11).
RENEW: Final = f"""
    WITH held AS MATERIALIZED (
        SELECT u.* FROM unnest($1::bigint[], $2::uuid[], $3::interval[], $4::text[]) AS u (seq, receipt, lease, beat)
        JOIN jobq.task ON {_OURS} ORDER BY u.seq FOR NO KEY UPDATE OF task SKIP LOCKED)
    UPDATE jobq.task SET expires_at = clock_timestamp() + u.lease, heartbeat_at = clock_timestamp(),
        beat = coalesce(u.beat, task.beat)
    FROM held AS u WHERE {_OURS} RETURNING task.seq, task.cancel_requested
"""  # noqa: S608 - constants of ours, every value is bound; so below
STILL_OURS: Final = f"""
    SELECT u.seq FROM unnest($1::bigint[], $2::uuid[]) AS u (seq, receipt) JOIN jobq.task ON {_OURS}
"""  # noqa: S608
CHECKPOINT: Final = f"""
    UPDATE jobq.task SET checkpoint = u.value, checkpoint_order = task.deliveries::bigint << 32 | u.number
    FROM unnest($1::bigint[], $2::uuid[], $3::bytea[], $4::bigint[]) AS u (seq, receipt, value, number)
    WHERE {_OURS} AND (task.deliveries::bigint << 32 | u.number) >= task.checkpoint_order RETURNING task.seq
"""  # noqa: S608
COMPLETE: Final = f"""
    WITH x AS (
        DELETE FROM jobq.task USING {_GIVEN}, $4::text[], $5::text[], $6::text[], $7::bytea[])
            AS u (seq, receipt, said, final, outcome, record, output)
        WHERE {_OURS}
        RETURNING task.seq, task.queue_id, task.id, task.batch_id, task.deliveries, task.started_at, u.receipt,
            u.said, u.final, u.outcome, u.record, u.output),
    answered AS (
        {_REMEMBER}, ended_at = clock_timestamp(), started_at = x.started_at, outcome = x.final
        {_KNOWN}),
    {_NOTED}
    SELECT seq FROM x
"""  # noqa: S608
REQUEUE: Final = f"""
    WITH x AS (
        UPDATE jobq.task SET receipt = NULL, expires_at = NULL, holder = NULL, beat = NULL,
            body = u.body,
            position = CASE WHEN u.delay <= interval '0' THEN coalesce(u.place, nextval('jobq.position')) END,
            due = CASE WHEN u.delay > interval '0' THEN clock_timestamp() + u.delay END
        FROM {_GIVEN}, $4::bytea[], $5::interval[], $6::bigint[], $7::text[], $8::text[], $9::bytea[])
            AS u (seq, receipt, said, body, delay, place, outcome, record, output)
        WHERE {_OURS}
        RETURNING task.seq, task.queue_id, task.id, task.deliveries, task.rank, task.position, task.cancel_requested,
            u.receipt, u.said, u.outcome, u.record, u.output),
    answered AS ({_REMEMBER} {_KNOWN}),
    {_NOTED}
    SELECT seq, rank, position, cancel_requested FROM x
"""  # noqa: S608
BURY: Final = f"""
    WITH x AS (
        DELETE FROM jobq.task USING {_GIVEN}, $4::text[], $5::bytea[], $6::text[], $7::text[], $8::bytea[])
            AS u (seq, receipt, said, reason, description, outcome, record, output)
        WHERE {_OURS}
        RETURNING task.*, u.receipt AS used, u.said, u.reason, u.description, u.outcome, u.record, u.output),
    answered AS (
        UPDATE jobq.submission SET settlements = left(x.used || ' ' || x.said || ';' || submission.settlements, 512)
        {_KNOWN}),
    buried AS (
        INSERT INTO jobq.dead (
            queue_id, id, batch_id, rank, deliveries, checkpoint, body, reason, description, started_at, died_at)
        SELECT queue_id, id, batch_id, rank, deliveries, checkpoint, body, reason, description, started_at,
            clock_timestamp()
        FROM x),
    {_NOTED}
    SELECT seq FROM x
"""  # noqa: S608
_TOLD: Final = f", {TELL.format(ended='x').strip()} SELECT seq, batch_id FROM x"  # noqa: S608
_TOLD_ONE: Final = f", {_TELL_ONE.format(ended='x').strip()} SELECT seq, batch_id FROM x"  # noqa: S608
WITH_BATCHES: Final = {each: each.replace("SELECT seq FROM x", _TOLD) for each in (COMPLETE, BURY)}
WITH_ONE_BATCH: Final = {each: each.replace("SELECT seq FROM x", _TOLD_ONE) for each in (COMPLETE, BURY)}
SAID_BEFORE: Final = """
    SELECT u.seq FROM unnest($1::bigint[], $2::integer[], $3::text[], $4::text[]) AS u (seq, queue_id, id, said)
    JOIN jobq.submission USING (queue_id, id) WHERE strpos(submission.settlements, u.said) > 0
"""
# Tasks that nobody runs have ended with this.
CANCEL_IDLE: Final = f"""
    WITH gone AS (
        DELETE FROM jobq.task WHERE seq = ANY ($1::bigint[]) AND expires_at IS NULL RETURNING queue_id, id, batch_id),
    {TELL.format(ended="gone").strip()}
    UPDATE jobq.submission SET ended_at = clock_timestamp(), outcome = 'canceled'
    FROM gone WHERE submission.queue_id = gone.queue_id AND submission.id = gone.id
    RETURNING submission.id, gone.batch_id
"""  # noqa: S608


PASSED_OVER: Final = "passed over"  # of a renewal: another session holds the row, and nothing was changed
UNKNOWN_BATCH: Final = -1  # of a row of which only the receipt is known


@dataclass(frozen=True, slots=True)
class LeasedRow:
    """A claimed row.

    Attributes:
        position: where it waited before; None = not known, as of a claim whose answer was lost.
    """

    seq: int
    queue: int
    id: str
    body: bytes
    deliveries: int
    checkpoint: bytes | None
    receipt: UUID
    cancel_requested: bool = False
    batch: int | None = UNKNOWN_BATCH
    position: int | None = None


@dataclass(frozen=True, slots=True)
class Change:
    """What a verb does to a row: the values of its statement after seq and receipt; the first of a settle is `said`."""

    row: LeasedRow
    values: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Ready:
    """A task that a requeue made ready: where it now waits."""

    rank: int
    position: int


def settling(
    settlement: Settlement,
    body: bytes,
    said: str,
    attempt: int | None = None,
    *,
    place: int | None = None,
) -> tuple[Any, ...]:
    """Return the verb that ends a delivery, and its values.

    Args:
        settlement: how it ends.
        body: of a task that goes back, as it is stored from now on.
        said: what distinguishes this settle from another one with the same receipt (S5).
        attempt: the delivery's number, for the journal; None = none is kept.
        place: where a release puts it; None = behind all others.
    """
    if attempt is None:
        noted = _noted(None)
    elif isinstance(settlement, Release):
        noted = _noted(Record(Attempt.released(attempt, time.time())))
    else:
        noted = _noted(settlement.record)
    match settlement:
        case Complete():
            return "complete", said, settlement.final, *noted
        case MoveToDeadLetters(reason, description):
            return "dead_letter", said, str(reason), bytes_of(description), *noted
    kept = place if isinstance(settlement, Release) else None
    return "requeue", said, body, max(settlement.delay, timedelta(0)), kept, *noted


def _noted(record: Record | None) -> tuple[str | None, str | None, bytes | None]:
    """Return outcome, record and output, the last three values of a settle; None where nothing is journaled."""
    if record is None:
        return None, None, None
    return record.attempt.outcome, record.attempt.encode(), record.output.encode("utf-8", "surrogatepass")


async def change(connection: Any, statement: str, changes: Sequence[Change]) -> list[object]:
    """Run a verb that may be repeated at will (renew, checkpoint); None, or LockLost, for each."""
    done = {row[0] for row in await _rows(connection, statement, changes)}
    return [None if each.row.seq in done else _lost(each.row) for each in changes]


async def renew(connection: Any, statement: str, changes: Sequence[Change]) -> list[object]:
    """Renew leases; for each whether the task is to be canceled, or `PASSED_OVER`, or LockLost."""
    canceled = {row[0]: row[1] for row in await _rows(connection, statement, changes)}
    missing = [each.row for each in changes if each.row.seq not in canceled]
    passed: set[int] = set()
    if missing:  # in a statement of its own: one that is ours and was not renewed was held by another session
        given = [row.seq for row in missing], [row.receipt for row in missing]
        passed = {row[0] for row in await connection.fetch(STILL_OURS, *given)}
    return [
        canceled[each.row.seq]
        if each.row.seq in canceled
        else PASSED_OVER
        if each.row.seq in passed
        else _lost(each.row)
        for each in changes
    ]


async def settle(connection: Any, statement: str, changes: Sequence[Change]) -> tuple[list[object], bool]:
    """Run a verb that ends the delivery.

    Returns:
        None, `Ready`, or LockLost, for each; and whether it has ended tasks of batches.
    """
    batches = {each.row.batch for each in changes} - {None}
    if batches:
        is_one = len(changes) == 1 or (len(batches) == 1 and UNKNOWN_BATCH not in batches)
        statement = (WITH_ONE_BATCH if is_one else WITH_BATCHES).get(statement, statement)
    rows = await _rows(connection, statement, changes)
    done = {
        row["seq"]: Ready(row["rank"], row["position"]) if row.get("position") is not None else None for row in rows
    }
    refused = [each for each in changes if each.row.seq not in done]
    repeated: set[int] = set()
    if refused:  # S5: the same settle again is answered like the first, without a second effect
        found = await connection.fetch(
            SAID_BEFORE,
            [each.row.seq for each in refused],
            [each.row.queue for each in refused],
            [each.row.id for each in refused],
            [f"{each.row.receipt} {each.values[0]};" for each in refused],
        )
        repeated = {row[0] for row in found}
    # A statement of its own: should it not come to it, who claims such a task ends it unstarted.
    if canceled := [row["seq"] for row in rows if row.get("cancel_requested")]:
        rows = await connection.fetch(CANCEL_IDLE, canceled)
    answers: list[object] = [
        done[each.row.seq] if each.row.seq in done else None if each.row.seq in repeated else _lost(each.row)
        for each in changes
    ]
    return answers, any(row.get("batch_id") is not None for row in rows)


async def _rows(connection: Any, statement: str, changes: Sequence[Change]) -> list[Any]:
    # In one order everywhere, so that two statements that lock the same rows never wait for each other.
    ordered = sorted(changes, key=lambda each: each.row.seq)
    columns: list[list[Any]] = [[each.row.seq for each in ordered], [each.row.receipt for each in ordered]]
    columns += [list(column) for column in zip(*(each.values for each in ordered), strict=True)]
    found: list[Any] = await connection.fetch(statement, *columns)
    return found


def _lost(row: LeasedRow) -> LockLost:
    return LockLost(
        f"the lease on task {row.id} is no longer ours: it expired, the task was settled or cleared,"
        " or a newer checkpoint was saved"
    )
