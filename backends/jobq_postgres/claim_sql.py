"""The statements of a claim, and of the sweep that makes ready what is due; claimer.py decides which is sent."""

from typing import Final

from jobq.resources.shapes import PRIORITIES, RANKS_BITS
from jobq_postgres.settle import LOST

SWEPT_AT_ONCE: Final = 500

_UPDATE: Final = """
    UPDATE jobq.task SET position = NULL, receipt = ($4::uuid[])[numbered.number],
        expires_at = clock_timestamp() + $3, deliveries = deliveries + 1,
        started_at = clock_timestamp(), heartbeat_at = NULL, holder = {holder}
    FROM numbered WHERE task.seq = numbered.seq {more}
    RETURNING task.seq, task.id, task.body, task.deliveries, task.checkpoint, task.receipt, task.rank,
        numbered.position, task.cancel_requested, task.batch_id
"""
_TAKE: Final = f"""
    , numbered AS (SELECT seq, position, row_number() OVER () AS number FROM found)
    {_UPDATE.format(holder="{holder}", more="")}
"""  # noqa: S608 - constants of ours, every value is bound; so below
CLAIM: Final = f"""
    WITH found AS MATERIALIZED (
        SELECT ready.seq, ready.position FROM unnest($5::bigint[], $6::bigint[]) AS floor (rank, position),
        LATERAL (SELECT seq, position FROM jobq.task WHERE queue_id = $1 AND rank = floor.rank
            AND position >= floor.position ORDER BY position LIMIT $2 FOR UPDATE SKIP LOCKED) AS ready
        LIMIT $2)
    {_TAKE.format(holder="$7::text")}
"""  # noqa: S608
# Of what asks for nothing: the first that asks for something may have come since the sweep looked.
CLAIM_FROM_THE_BEGINNING: Final = f"""
    WITH found AS MATERIALIZED (
        SELECT seq, position FROM jobq.task WHERE queue_id = $1 AND position IS NOT NULL AND rank <= {PRIORITIES}
        ORDER BY rank, position LIMIT $2 FOR UPDATE SKIP LOCKED)
    {_TAKE.format(holder="$5::text")}
"""  # noqa: S608
# Of several shapes: what comes first of each rank is read without a lock, put in order, and only then locked by its
# number and looked at again; a lock on all of it would have other claims pass it over. What is taken fits together: no
# more than the least of how often each of it fits (Choice.together). $9 bounds what is read, and `heads` says how much
# it was: where that was the bound and nothing is taken, all of it is held by others, and there may be more.
#
# A rank that fits no time has no room now, and is reserved for: where the first of all is of one, and has been that for
# $10, it is taken alone; where it has not, `overtaken_seq` is it, unless that is noted.
CLAIM_FITTING: Final = f"""
    WITH given AS MATERIALIZED (
        SELECT rank, position, shape, fits, (shape << {RANKS_BITS}) - rank AS priority
        FROM unnest($5::bigint[], $6::bigint[], $7::bigint[], $8::bigint[]) AS u (rank, position, shape, fits)),
    heads AS MATERIALIZED (
        SELECT ready.seq, ready.position, given.priority, given.fits FROM given,
        LATERAL (SELECT seq, position FROM jobq.task WHERE queue_id = $1 AND rank = given.rank
            AND position >= given.position ORDER BY position LIMIT $9) AS ready
        WHERE given.fits > 0 ORDER BY given.priority DESC, ready.position LIMIT $9),
    overtaken AS MATERIALIZED (
        SELECT blocked.*, shape.overtaken_seq IS DISTINCT FROM blocked.seq AS is_new,
            CASE WHEN shape.overtaken_seq = blocked.seq THEN shape.overtaken_since
                ELSE statement_timestamp() END AS since
        FROM (SELECT ready.seq, ready.position, given.priority, given.shape FROM given,
            LATERAL (SELECT seq, position FROM jobq.task WHERE queue_id = $1 AND rank = given.rank
                AND position >= given.position ORDER BY position LIMIT 1) AS ready
            WHERE given.fits = 0 ORDER BY given.priority DESC, ready.position LIMIT 1) AS blocked
        JOIN jobq.shape ON shape.shape = blocked.shape
        WHERE NOT EXISTS (SELECT FROM heads WHERE heads.priority > blocked.priority
            OR heads.priority = blocked.priority AND heads.position < blocked.position)),
    reserved AS MATERIALIZED (
        SELECT task.seq, task.position, overtaken.priority, 1::bigint AS fits
        FROM overtaken JOIN jobq.task ON task.seq = overtaken.seq AND task.position = overtaken.position
        WHERE overtaken.since <= statement_timestamp() - $10::interval FOR UPDATE OF task SKIP LOCKED),
    found AS MATERIALIZED (
        SELECT task.seq, task.position, heads.priority, heads.fits
        FROM heads JOIN jobq.task ON task.seq = heads.seq AND task.position = heads.position
        WHERE NOT EXISTS (SELECT FROM reserved)
        ORDER BY heads.priority DESC, heads.position LIMIT $2 FOR UPDATE OF task SKIP LOCKED),
    numbered AS (
        SELECT seq, position, row_number() OVER ordered AS number, min(fits) OVER ordered AS fit_together
        FROM (SELECT * FROM reserved UNION ALL SELECT * FROM found) AS held
        WINDOW ordered AS (ORDER BY priority DESC, position ROWS UNBOUNDED PRECEDING)),
    taken AS ({_UPDATE.format(holder="$11::text", more="AND numbered.number <= numbered.fit_together")})
    SELECT taken.*, (SELECT count(*) FROM heads) AS heads, overtaken.shape AS overtaken_shape,
        overtaken.seq AS overtaken_seq
    FROM (SELECT) AS one LEFT JOIN taken ON true LEFT JOIN overtaken ON overtaken.is_new
"""  # noqa: S608
# What a claim whose answer was lost has taken, for who sent it: the lease is renewed, and counts from now.
TAKE_AGAIN: Final = """
    UPDATE jobq.task SET expires_at = clock_timestamp() + $3 WHERE seq IN (
        SELECT seq FROM jobq.task WHERE queue_id = $1 AND expires_at > statement_timestamp() AND receipt = ANY ($4)
        ORDER BY expires_at LIMIT $2 FOR UPDATE) AND expires_at > clock_timestamp()
    RETURNING seq, id, body, deliveries, checkpoint, receipt, cancel_requested, batch_id
"""
# What a former claim of the service holds, for who lost its answer: with new receipts, so that who still gives back
# what was claimed with the old ones changes nothing (S4).
TAKE_OVER: Final = """
    WITH held AS MATERIALIZED (
        SELECT seq FROM jobq.task WHERE queue_id = $1 AND expires_at > statement_timestamp()
        AND left(replace(receipt::text, '-', ''), 16) = ANY ($5::text[]) ORDER BY seq LIMIT $2 FOR UPDATE),
    numbered AS (SELECT seq, row_number() OVER () AS number FROM held)
    UPDATE jobq.task SET expires_at = clock_timestamp() + $3, receipt = ($4::uuid[])[numbered.number]
    FROM numbered WHERE task.seq = numbered.seq AND task.expires_at > clock_timestamp()
    RETURNING task.seq, task.id, task.body, task.deliveries, task.checkpoint, task.receipt, task.cancel_requested
"""
# Bounded at both ends by times that an index can use; the fence of a settle asks the clock itself.
SWEEP: Final = f"""
    WITH due AS MATERIALIZED (
        SELECT seq FROM jobq.task WHERE queue_id = $1 AND due BETWEEN $2 AND statement_timestamp()
        ORDER BY due LIMIT {SWEPT_AT_ONCE} FOR UPDATE SKIP LOCKED),
    expired AS MATERIALIZED (
        SELECT seq, queue_id, id, deliveries, started_at, expires_at, holder
        FROM jobq.task WHERE queue_id = $1 AND expires_at BETWEEN $2 AND statement_timestamp()
        ORDER BY expires_at LIMIT {SWEPT_AT_ONCE} FOR UPDATE SKIP LOCKED),
    lost AS ({LOST} FROM expired WHERE holder IS NOT NULL ON CONFLICT DO NOTHING),
    ready AS (
        UPDATE jobq.task SET position = nextval('jobq.position'), due = NULL, expires_at = NULL, receipt = NULL,
            holder = NULL, beat = NULL
        FROM (SELECT seq FROM due UNION ALL SELECT seq FROM expired) AS found WHERE task.seq = found.seq
        RETURNING task.seq, task.rank, task.position, task.cancel_requested)
    SELECT version.version, statement_timestamp() AS at, (SELECT last_value FROM jobq.position) AS last,
        (SELECT extract(epoch FROM min(due) - statement_timestamp())::float8 FROM jobq.task
            WHERE queue_id = $1 AND due > statement_timestamp()) AS next_due,
        (SELECT paused IS NOT NULL FROM jobq.queue WHERE queue_id = $1) AS is_paused,
        (SELECT newest_shape FROM jobq.queue WHERE queue_id = $1) AS newest_shape,
        CASE WHEN $3 THEN EXISTS (SELECT FROM jobq.outbox WHERE queue_id = $1) END AS is_told,
        ready.rank, ready.position, ready.tasks, ready.canceled
    FROM jobq.version
    LEFT JOIN (SELECT rank, min(position) AS position, count(*) AS tasks,
        array_agg(seq) FILTER (WHERE cancel_requested) AS canceled FROM ready GROUP BY rank) AS ready ON true
"""  # noqa: S608
