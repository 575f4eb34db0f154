-- The PostgreSQL queue. `jobq QUEUE create` runs this file in one transaction, under an advisory lock (schema.py), where
-- the database has no tables of jobq. A change of it raises `schema.VERSION`. The schema's name is always `jobq`.
--
-- Where a task is:
--
--   ready ──claim──▶ leased ──complete──▶ (gone; jobq.submission remembers the id)
--     ▲                │ ├───dead_letter──▶ jobq.dead        kept whole until purged or redriven
--     │                │ └───requeue, release─┐
--     │◀───expiry──────┘                      │
--     └──────due────── scheduled ◀────────────┘
--
-- ready, scheduled and leased tasks are rows of jobq.task, the only hot table; one that has ended leaves it. Who claims
-- reads `position` upwards and remembers how far it has come (claimer.py), so what is dead below, and cannot be
-- vacuumed while someone holds an old snapshot, is not walked over again.
--
-- No foreign keys to jobq.queue: each would lock its row with every task, and queues are never deleted.
--
-- Times are the server's: clock_timestamp(), inside of the statement that decides (rules.md 1.3 rule 10).

CREATE TABLE jobq.version (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    version  integer NOT NULL                     -- `schema.VERSION` of the jobq that made these tables
);

CREATE TABLE jobq.queue (
    queue_id     integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name         text NOT NULL UNIQUE,
    created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    paused       text,                            -- JSON: since when, by whom and why nothing is handed out; NULL = it is
    -- The newest shape of the queue; 0 = none of its tasks asks for anything. Who has read its shapes sees by it whether
    -- there are more.
    newest_shape integer NOT NULL DEFAULT 0
);

-- In which epoch tasks are pushed: above that of every one that was forgotten, so that an id that is pushed again goes on
-- with higher tokens (S3). A sequence, because what it says depends on no snapshot, and no push waits for another.
CREATE SEQUENCE jobq.epoch AS bigint MINVALUE 0 START 0 CACHE 1;
SELECT setval('jobq.epoch', 0);

-- These run with the owner's rights: who pushes needs none on the sequence.
CREATE FUNCTION jobq.current_epoch() RETURNS bigint LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog
    AS 'SELECT last_value FROM jobq.epoch';

-- Every id that was accepted, for as long as it is remembered: its primary key alone decides what is new (S8).
CREATE TABLE jobq.submission (
    queue_id    integer NOT NULL,
    id          text NOT NULL,
    fingerprint bytea,                            -- tells a repeated push from another payload
    settlements text NOT NULL DEFAULT '',         -- the last few receipts and what was said of each, newest first: a
                                                  -- repetition is answered alike (S5)
    ended_at    timestamptz,                      -- when it was completed; forgotten 30 days later
    started_at  timestamptz,                      -- of a task that was completed
    outcome     text,                             -- of one that has ended: 'canceled', or NULL for done indeed
    epoch       bigint NOT NULL DEFAULT jobq.current_epoch(), -- as in the body of its task
    batch_id    integer,                          -- never changes, as in the other two
    params      text,                             -- JSON in ASCII, which holds no NUL
    PRIMARY KEY (queue_id, id)
);
CREATE INDEX submission_ended ON jobq.submission (queue_id, ended_at) WHERE ended_at IS NOT NULL;
CREATE INDEX submission_canceled ON jobq.submission (queue_id) WHERE outcome IS NOT NULL;
CREATE INDEX submission_of_batch ON jobq.submission (batch_id, id) WHERE batch_id IS NOT NULL;
CREATE INDEX submission_ended_of_batch ON jobq.submission (batch_id, ended_at) INCLUDE (outcome)
    WHERE batch_id IS NOT NULL;

-- At the end of a push, which by then has waited for whoever was forgetting its ids. It is repeated in the epoch of then.
CREATE FUNCTION jobq.check_epoch() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog AS $$
BEGIN
    IF EXISTS (SELECT FROM added WHERE epoch < (SELECT last_value FROM jobq.epoch)) THEN
        RAISE EXCEPTION 'ids were forgotten meanwhile' USING ERRCODE = 'JQ001';
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER submission_added AFTER INSERT ON jobq.submission REFERENCING NEW TABLE AS added
    FOR EACH STATEMENT EXECUTE FUNCTION jobq.check_epoch();

CREATE FUNCTION jobq.raise_epoch() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog AS $$
DECLARE
    highest bigint;
BEGIN
    SELECT max(epoch) INTO highest FROM forgotten;
    WHILE (SELECT last_value FROM jobq.epoch) <= highest LOOP -- once, but for a task that was redriven
        PERFORM nextval('jobq.epoch');
    END LOOP;
    RETURN NULL;
END $$;
CREATE TRIGGER submission_forgotten AFTER DELETE ON jobq.submission REFERENCING OLD TABLE AS forgotten
    FOR EACH STATEMENT EXECUTE FUNCTION jobq.raise_epoch();

-- The order in which tasks became ready: a task that comes back takes a new number, at the end.
CREATE SEQUENCE jobq.position AS bigint CACHE 1;

CREATE TABLE jobq.task (
    seq        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    queue_id   integer NOT NULL,
    id         text NOT NULL,
    -- (shape << 40) - priority, as jobq.resources.shapes has it: lower is served first. Shape 0 asks for nothing.
    rank       bigint NOT NULL DEFAULT 0,
    position   bigint DEFAULT nextval('jobq.position'), -- of a ready task
    due        timestamptz,                       -- of a scheduled task
    expires_at timestamptz,                       -- of a leased task
    receipt    uuid,                              -- of a leased task; never leaves the worker
    deliveries integer NOT NULL DEFAULT 0,        -- only rises (S3)
    checkpoint bytea,                             -- UTF-8; bytea because text cannot hold a NUL
    body       bytea NOT NULL,                    -- the wire format of jobq.task
    started_at       timestamptz,                 -- when it was last claimed
    heartbeat_at     timestamptz,                 -- when that lease was last renewed
    holder           text,                        -- of the current lease: HOST:PID, for display only
    beat             text,                        -- what the running attempt told with its last renewal, as JSON
    cancel_requested boolean NOT NULL DEFAULT false,
    -- Of the checkpoint: the delivery that saved it, and in the lower 32 bits its number there. Only rises (S9).
    checkpoint_order bigint NOT NULL DEFAULT 0,
    batch_id         integer,
    CONSTRAINT task_is_somewhere CHECK (num_nonnulls(position, due, expires_at) = 1),
    CONSTRAINT task_is_leased_by_receipt CHECK ((receipt IS NULL) = (expires_at IS NULL))
) WITH (fillfactor = 90, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX task_ready ON jobq.task (queue_id, rank, position) WHERE position IS NOT NULL;
CREATE INDEX task_scheduled ON jobq.task (queue_id, due) WHERE due IS NOT NULL;
CREATE INDEX task_leased ON jobq.task (queue_id, expires_at) WHERE expires_at IS NOT NULL;
CREATE INDEX task_by_id ON jobq.task (queue_id, id);
CREATE INDEX task_of_batch ON jobq.task (batch_id, seq) WHERE batch_id IS NOT NULL;

CREATE TABLE jobq.dead (
    queue_id    integer NOT NULL,
    id          text NOT NULL,
    rank        bigint NOT NULL,
    deliveries  integer NOT NULL,
    checkpoint  bytea,
    body        bytea NOT NULL,
    reason      text NOT NULL,
    description bytea NOT NULL,                   -- UTF-8; holds the end of the output, so perhaps a NUL
    died_at     timestamptz NOT NULL,
    started_at  timestamptz,
    batch_id    integer,
    PRIMARY KEY (queue_id, id)
);
CREATE INDEX dead_by_age ON jobq.dead (queue_id, died_at, id);
CREATE INDEX dead_of_batch ON jobq.dead (batch_id, id) WHERE batch_id IS NOT NULL;

-- What tasks ask for of a worker, each distinct request once.
CREATE TABLE jobq.shape (
    -- Never used again, so who has read it once knows what it asks for; more do not fit into a rank.
    shape           integer GENERATED ALWAYS AS IDENTITY (MAXVALUE 8388607) PRIMARY KEY,
    queue_id        integer NOT NULL,
    request         text NOT NULL,                -- JSON, in ASCII
    overtaken_seq   bigint,                       -- the task of it that is next, when a worker took another one for want
    overtaken_since timestamptz,                  -- of room; and when that was first so
    UNIQUE (queue_id, request)
) WITH (fillfactor = 70);

-- The numbers of requests, made where they are new; none for those that would be more than `most`. Until its transaction
-- ends nobody drops them. Who makes one holds the row of the queue: before any row of jobq.submission, and never waiting
-- for a row of jobq.shape. With the owner's rights: who pushes may not change what tasks ask for.
CREATE FUNCTION jobq.number_shapes(of_queue integer, requests text[], most integer)
    RETURNS TABLE (request text, shape integer)
    LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog AS $$
#variable_conflict use_column
DECLARE
    there integer;
    held integer[];
BEGIN
    PERFORM FROM jobq.shape WHERE queue_id = of_queue AND request = ANY (requests) FOR KEY SHARE;
    GET DIAGNOSTICS there = ROW_COUNT;
    IF there < cardinality(requests) THEN
        PERFORM FROM jobq.queue WHERE queue_id = of_queue FOR NO KEY UPDATE;
        IF (SELECT count(*) FROM jobq.shape WHERE queue_id = of_queue AND request <> ALL (requests)) + cardinality(requests)
            > most THEN
            -- Locked first, and looked for in a statement of its own: a push of one may have been committed meanwhile.
            held := ARRAY(SELECT shape FROM jobq.shape WHERE queue_id = of_queue AND request <> ALL (requests)
                FOR UPDATE SKIP LOCKED);
            WITH used AS MATERIALIZED (
                SELECT (rank + (1::bigint << 39)) >> 40 AS shape FROM jobq.task WHERE queue_id = of_queue AND due IS NOT NULL
                UNION SELECT (rank + (1::bigint << 39)) >> 40 FROM jobq.task
                    WHERE queue_id = of_queue AND expires_at IS NOT NULL
                UNION SELECT (rank + (1::bigint << 39)) >> 40 FROM jobq.dead WHERE queue_id = of_queue)
            DELETE FROM jobq.shape WHERE shape = ANY (held) AND shape NOT IN (SELECT used.shape FROM used)
                AND NOT EXISTS (SELECT FROM jobq.task WHERE task.queue_id = of_queue AND position IS NOT NULL
                    AND rank BETWEEN (shape.shape::bigint << 40) - (1::bigint << 31)
                    AND (shape.shape::bigint << 40) + (1::bigint << 31));
        END IF;
        INSERT INTO jobq.shape (queue_id, request)
            SELECT of_queue, u.request FROM unnest(requests) WITH ORDINALITY AS u (request, number)
            WHERE u.request NOT IN (SELECT known.request FROM jobq.shape AS known WHERE known.queue_id = of_queue)
            ORDER BY number
            LIMIT greatest(0, most - (SELECT count(*) FROM jobq.shape AS known WHERE known.queue_id = of_queue));
        IF FOUND THEN
            UPDATE jobq.queue SET newest_shape = (SELECT max(shape) FROM jobq.shape WHERE queue_id = of_queue)
                WHERE queue_id = of_queue;
        END IF;
    END IF;
    RETURN QUERY SELECT known.request, known.shape FROM jobq.shape AS known
        WHERE known.queue_id = of_queue AND known.request = ANY (requests) FOR KEY SHARE;
END $$;

REVOKE EXECUTE ON FUNCTION jobq.number_shapes FROM PUBLIC;

-- For people, and for whatever scales workers by the length of the queue. What nobody is handed now, since the queue is
-- paused, is for later: no worker need be started for it.
CREATE VIEW jobq.waiting AS
SELECT name AS queue, task.id, (((task.rank + (1::bigint << 39)) >> 40) << 40) - task.rank AS priority,
       task.deliveries, task.due, task.expires_at,
       CASE WHEN task.position IS NOT NULL OR task.due <= clock_timestamp() OR task.expires_at <= clock_timestamp()
            THEN CASE WHEN queue.paused IS NULL THEN 'ready' ELSE 'scheduled' END
            WHEN task.expires_at IS NULL THEN 'scheduled' ELSE 'leased' END AS state
FROM jobq.task JOIN jobq.queue USING (queue_id);

-- What the attempts of a task came to, written in the transaction of the settle (S5), or of whoever finds that a lease ran
-- out. Rows go with their task, or after JOBQ_KEEP.
CREATE TABLE jobq.attempt (
    queue_id integer NOT NULL,
    id       text NOT NULL,
    attempt  integer NOT NULL,                    -- the delivery's number
    outcome  text NOT NULL,
    ended_at timestamptz NOT NULL,
    record   text NOT NULL,                       -- jobq.journal.records.Attempt as JSON, in ASCII
    output   bytea NOT NULL,                      -- UTF-8: the end of what it printed
    PRIMARY KEY (queue_id, id, attempt)
);
-- So that what ended within a minute is counted at the cost of as many. A BRIN index has in time all pages in each minute:
-- rows that are forgotten leave room for new ones in pages of old times.
CREATE INDEX attempt_by_end ON jobq.attempt (queue_id, ended_at);

-- A named set of tasks of one queue. Its row is locked before any task of it, by who seals it, puts back a dead letter of
-- it, or finishes it (advance.py). Who pushes to it shares an advisory lock, which a seal waits for (batch_push.py).
CREATE TABLE jobq.batch (
    batch_id    integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    queue_id    integer NOT NULL,
    name        text NOT NULL,
    state       text NOT NULL DEFAULT 'open' CHECK (state IN ('open', 'sealed', 'finished')),
    round       integer NOT NULL DEFAULT 1,
    is_canceled boolean NOT NULL DEFAULT false,   -- in this round
    plan        text NOT NULL,                    -- jobq.batch_plan.Plan as JSON, in ASCII
    created_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    sealed_at   timestamptz,
    finished_at timestamptz,                      -- of this round
    gone        integer NOT NULL DEFAULT 0,       -- tasks that were cleared, purged or forgotten; more in jobq.outbox
    rounds      text NOT NULL DEFAULT '[]',       -- those that have finished, see jobq.batches.rounds_with
    UNIQUE (queue_id, name)
) WITH (fillfactor = 50);

-- What whoever ends or deletes tasks of a batch leaves in its own transaction, one row a statement and batch: that its
-- batch is to be looked at once that is committed. Whoever comes takes it away (advance.py).
CREATE TABLE jobq.outbox (
    n        bigint GENERATED ALWAYS AS IDENTITY,
    queue_id integer NOT NULL,
    batch_id integer,
    gone     integer NOT NULL DEFAULT 0,          -- tasks of it that this statement has deleted without an end
    PRIMARY KEY (queue_id, n)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);

-- An id whose time is over is a new one to a push. With the owner's rights: who pushes may forget nothing else.
CREATE FUNCTION jobq.forget_expired(queue integer, ids text[], kept interval) RETURNS void
    LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog AS $$
    WITH held AS MATERIALIZED (
        SELECT queue_id, id FROM jobq.submission WHERE queue_id = queue AND id = ANY (ids)
        AND ended_at < statement_timestamp() - greatest(kept, '30 days') ORDER BY id COLLATE "C" FOR UPDATE),
    gone AS (
        DELETE FROM jobq.submission USING held WHERE submission.queue_id = held.queue_id AND submission.id = held.id
        RETURNING submission.queue_id, submission.id, submission.batch_id),
    noted AS (DELETE FROM jobq.attempt USING gone WHERE attempt.queue_id = gone.queue_id AND attempt.id = gone.id)
    INSERT INTO jobq.outbox (queue_id, batch_id, gone)
    SELECT queue_id, batch_id, count(*) FROM gone WHERE batch_id IS NOT NULL GROUP BY queue_id, batch_id
$$;

-- One row a name, which is never deleted: its token only rises (S3), and fences every write (S4). A name that is held
-- and past expires_at is not held (S10). Queues need not exist to have leases.
CREATE TABLE jobq.lease (
    queue        text NOT NULL,                   -- the queue's name
    name         text NOT NULL,
    token        bigint NOT NULL CHECK (token > 0), -- of the latest grant
    request      text NOT NULL,                   -- the key of the request that got it: a repetition is answered alike
    holder       text NOT NULL,                   -- for display only
    state        text NOT NULL CHECK (state IN ('held', 'released', 'confirmed')),
    expires_at   timestamptz NOT NULL,
    acquired_at  timestamptz NOT NULL,
    renewals     integer NOT NULL DEFAULT 0,      -- of the latest grant
    is_revoked   boolean NOT NULL DEFAULT false,  -- it may not be renewed
    cursor       bytea,                           -- UTF-8; bytea because text cannot hold a NUL
    version      bigint NOT NULL DEFAULT 0,       -- of the cursor; only rises (S9)
    confirmation bytea,                           -- UTF-8
    ends         text NOT NULL DEFAULT '',        -- how the last few grants ended, newest first
    ttl          interval NOT NULL DEFAULT '0',   -- how long it lasts from its grant or latest renewal
    PRIMARY KEY (queue, name)
) WITH (fillfactor = 50);                         -- renewals then stay on their page

-- What `jobq serve` has to remember.
CREATE TABLE jobq.document (
    name    text PRIMARY KEY,
    version bigint NOT NULL CHECK (version > 0),  -- each write raises it, and names the one it has read
    value   bytea NOT NULL
);

-- What is seen of a queue from time to time: jobq.journal.observations. Nothing of a task depends on it.
CREATE TABLE jobq.observation (
    queue_id integer NOT NULL,
    kind     text COLLATE "C" NOT NULL,
    key      text COLLATE "C" NOT NULL,
    at       timestamptz NOT NULL,                -- when it was written
    value    text NOT NULL,                       -- JSON, in ASCII
    PRIMARY KEY (queue_id, kind, key)
) WITH (fillfactor = 70);                         -- each worker writes its row anew twice a minute
