-- The embedded queue: PRAGMA user_version is `open_file.SCHEMA_VERSION`, PRAGMA application_id 0x6a6f6271 ("jobq"). A
-- change of this file raises the version; a file of another one is refused.
--
-- One file holds many queues. A task is one row; its state is one of
--
--   ready ──claim──▶ leased ──complete──▶ done       kept without its body for dedup (S8) and repeated settles (S5)
--     ▲                │ ├───dead_letter──▶ dead       kept whole until purged or redriven
--     │                │ └───requeue, release─┐
--     │◀───expiry──────┘                      │
--     └──────due────── scheduled ◀────────────┘       waits until available_at
--
-- Times: `available_at`, `finished_at`, `created_at` are wall time in seconds since the epoch, for people and delays.
-- `expires_at` is CLOCK_BOOTTIME in seconds, valid for the boot named in `host`, and alone decides a lease
-- (rules.md 1.3 rule 10); `file_clock.py` says what another boot of the same machine makes of it.

CREATE TABLE host (
    only_row      INTEGER PRIMARY KEY CHECK (only_row = 1),
    machine_id    TEXT NOT NULL,    -- the machine whose processes may open this file
    boot_id       TEXT NOT NULL,    -- the boot that expires_at counts from
    boottime      REAL NOT NULL,    -- CLOCK_BOOTTIME and wall time when that boot first opened the file
    wall          REAL NOT NULL,
    identity      TEXT NOT NULL,    -- random, of this file, which tells it from another in its place; a copy has it too
    -- In which epoch tasks are pushed: above that of every task that this file has forgotten, so that an id that is pushed
    -- again goes on with higher tokens (S3).
    epoch         INTEGER NOT NULL DEFAULT 0,
    -- The highest number of a row that is gone: SQLite would give it to a new task, and a clear that began before would
    -- take that for what was there (S1).
    newest_gone   INTEGER NOT NULL DEFAULT 0,
    -- The highest epoch that a task has. A queue that is deleted gives its ids free at once, before its rows are gone: what
    -- is pushed under them has to begin above all of them (S3), and to look at each row would take too long.
    highest_epoch INTEGER NOT NULL DEFAULT 0
);

CREATE TABLE queue (
    queue_id     INTEGER PRIMARY KEY,
    name         TEXT NOT NULL UNIQUE,
    created_at   REAL NOT NULL,
    paused       TEXT,              -- JSON: since when, by whom and why nothing is handed out; NULL = it is
    -- The newest shape of the queue; 0 = none of its tasks asks for anything. Who has read its shapes sees by it whether
    -- there are more.
    newest_shape INTEGER NOT NULL DEFAULT 0
);

CREATE TABLE task (
    seq              INTEGER PRIMARY KEY,     -- order of arrival
    queue_id         INTEGER NOT NULL REFERENCES queue,
    id               TEXT NOT NULL,
    state            TEXT NOT NULL CHECK (state IN ('ready', 'scheduled', 'leased', 'done', 'dead')),
    -- priority - (shape << 40), as jobq.resources.shapes has it: the index of what is ready is in the order of shapes.
    priority         INTEGER NOT NULL DEFAULT 0,
    available_at     REAL NOT NULL,           -- ready: since when; scheduled: from when
    body             BLOB NOT NULL CHECK (typeof(body) = 'blob'),  -- the wire format of jobq.task; empty once done
    fingerprint      BLOB,                    -- tells a repeated push from another payload (S8)
    deliveries       INTEGER NOT NULL DEFAULT 0 CHECK (typeof(deliveries) = 'integer'),  -- only rises (S3)
    receipt          TEXT,                    -- of the current lease
    expires_at       REAL,                    -- of the current lease
    settlements      TEXT NOT NULL DEFAULT '', -- the last few receipts and what was said of each, newest first: a
                                              -- repetition is answered alike (S5)
    checkpoint       TEXT,
    finished_at      REAL,
    reason           TEXT,                    -- of a dead letter
    description      TEXT,
    started_at       REAL,                    -- wall time when it was last claimed, for people
    heartbeat_at     REAL,                    -- wall time when that lease was last renewed
    holder           TEXT,                    -- of the current lease: HOST:PID, for display only
    beat             TEXT,                    -- what the running attempt told with its last renewal, as JSON
    cancel_requested INTEGER NOT NULL DEFAULT 0,
    outcome          TEXT,                    -- of a task that is done: 'canceled', or NULL for done indeed
    -- Of the checkpoint: the delivery that saved it, and in the lower 32 bits its number there. Only rises (S9).
    checkpoint_order INTEGER NOT NULL DEFAULT 0,
    epoch            INTEGER NOT NULL DEFAULT 0,  -- as in its body, which is empty once it is done
    -- The receipt of the lease, a space, and the id that the holder's processes and tasks carry, which tells others of this
    -- machine whether all of them are dead. With another receipt, or NULL, it says nothing, and the lease stands to its end.
    worker           TEXT,
    batch_id         INTEGER,
    params           TEXT                     -- JSON
);

CREATE UNIQUE INDEX task_id ON task (queue_id, id);
-- Partial indexes keep the claim at O(log n) however many tasks are finished, leased or scheduled.
CREATE INDEX task_ready ON task (queue_id, priority DESC, available_at, seq) WHERE state = 'ready';
CREATE INDEX task_scheduled ON task (queue_id, available_at) WHERE state = 'scheduled';
CREATE INDEX task_leased ON task (queue_id, expires_at) WHERE state = 'leased';
CREATE INDEX task_dead ON task (queue_id, finished_at, seq) WHERE state = 'dead';
CREATE INDEX task_done ON task (queue_id, finished_at) WHERE state = 'done';
CREATE INDEX task_canceled ON task (queue_id) WHERE outcome IS NOT NULL;
CREATE INDEX task_of_batch ON task (batch_id, id) WHERE batch_id IS NOT NULL;
CREATE INDEX task_state_in_batch ON task (batch_id, state, outcome) WHERE batch_id IS NOT NULL;

CREATE TRIGGER task_forgotten AFTER DELETE ON task WHEN old.epoch >= (SELECT epoch FROM host)
BEGIN
    UPDATE host SET epoch = old.epoch + 1;
END;
CREATE TRIGGER task_newest_gone AFTER DELETE ON task WHEN old.seq > (SELECT coalesce(max(seq), 0) FROM task)
BEGIN
    UPDATE host SET newest_gone = max(newest_gone, old.seq);
END;
-- Only a redrive raises a task's epoch.
CREATE TRIGGER task_redriven AFTER UPDATE OF epoch ON task WHEN new.epoch > (SELECT highest_epoch FROM host)
BEGIN
    UPDATE host SET highest_epoch = new.epoch;
END;

-- Named leases and their cursors. One row a name, which is never deleted: its token only rises (S3), and fences every
-- write (S4).
--
--   held ──release──▶ released        held and past expires_at = expired: nobody holds it (S10)
--     └───confirm───▶ confirmed       never expires; released by its token only
--
-- `expires_at` is CLOCK_BOOTTIME as in the table task. Queues need not exist to have leases.
CREATE TABLE lease (
    queue        TEXT NOT NULL,
    name         TEXT NOT NULL,
    token        INTEGER NOT NULL CHECK (typeof(token) = 'integer' AND token > 0),  -- of the latest grant
    request      TEXT NOT NULL,      -- the key of the request that got it: a repetition is answered alike
    holder       TEXT NOT NULL,      -- for display only
    state        TEXT NOT NULL CHECK (state IN ('held', 'released', 'confirmed')),
    expires_at   REAL NOT NULL,
    acquired_at  REAL NOT NULL,      -- wall time, for people
    renewals     INTEGER NOT NULL,   -- of the latest grant
    is_revoked   INTEGER NOT NULL,   -- it may not be renewed
    cursor       TEXT,
    version      INTEGER NOT NULL,   -- of the cursor; only rises (S9)
    confirmation TEXT,
    ends         TEXT NOT NULL,      -- how the last few grants ended, newest first
    ttl          REAL NOT NULL,      -- seconds that it lasts from its grant or latest renewal
    PRIMARY KEY (queue, name)
);

-- What `jobq serve` has to remember.
CREATE TABLE document (
    name    TEXT PRIMARY KEY,
    version INTEGER NOT NULL CHECK (version > 0),  -- each write raises it, and names the one it has read
    value   BLOB NOT NULL
);

-- The journal (architecture 8). Where a task is stands in its row of the table task. What its attempts came to stands
-- here, written in the transaction of the settle (S5), or of whoever finds that a lease ran out. Rows go with their task,
-- or after JOBQ_KEEP.
CREATE TABLE attempt (
    queue_id INTEGER NOT NULL,
    seq      INTEGER NOT NULL,                -- of the task
    attempt  INTEGER NOT NULL,                -- the delivery's number
    outcome  TEXT NOT NULL,
    ended_at REAL NOT NULL,                   -- wall time
    record   TEXT NOT NULL,                   -- jobq.journal.records.Attempt as JSON
    output   TEXT NOT NULL                    -- the end of what it printed; last, for it may be long
);
CREATE UNIQUE INDEX attempt_of ON attempt (seq, attempt);
CREATE INDEX attempt_ended ON attempt (queue_id, ended_at, outcome);

-- Batches (jobq.batches).
CREATE TABLE batch (
    batch_id    INTEGER PRIMARY KEY AUTOINCREMENT,  -- none comes again: a task of one that is forgotten may be left
    queue_id    INTEGER NOT NULL,
    name        TEXT NOT NULL,
    state       TEXT NOT NULL CHECK (state IN ('open', 'sealed', 'finished')),
    round       INTEGER NOT NULL DEFAULT 1,
    is_canceled INTEGER NOT NULL DEFAULT 0,
    plan        TEXT NOT NULL,                      -- jobq.batch_plan.Plan as JSON
    created_at  REAL NOT NULL,                      -- wall time, as all here
    sealed_at   REAL,
    finished_at REAL,                               -- of this round
    gone        INTEGER NOT NULL DEFAULT 0,         -- tasks that were cleared, purged, or are forgotten
    rounds      TEXT NOT NULL DEFAULT '[]'          -- those that have finished: jobq.batches.rounds_with
);
CREATE UNIQUE INDEX batch_name ON batch (queue_id, name);

-- Batches that may have finished, or have tasks to cancel. `batch_sql.advance` looks, within the same transaction.
CREATE TABLE outbox (batch_id INTEGER PRIMARY KEY);

CREATE TRIGGER batch_gone AFTER DELETE ON batch
BEGIN
    DELETE FROM outbox WHERE batch_id = old.batch_id;
END;

-- Here once, not in each statement that ends a task.
CREATE TRIGGER task_ended_in_batch AFTER UPDATE OF state ON task
WHEN new.batch_id IS NOT NULL AND new.state IN ('done', 'dead')
BEGIN
    INSERT OR IGNORE INTO outbox SELECT batch_id FROM batch WHERE batch_id = new.batch_id AND state = 'sealed';
END;
CREATE TRIGGER task_gone_from_batch AFTER DELETE ON task WHEN old.batch_id IS NOT NULL
BEGIN
    UPDATE batch SET gone = gone + 1 WHERE batch_id = old.batch_id;
    INSERT OR IGNORE INTO outbox SELECT batch_id FROM batch WHERE batch_id = old.batch_id AND state = 'sealed';
END;
CREATE TRIGGER task_back_in_batch AFTER UPDATE OF state ON task
WHEN new.batch_id IS NOT NULL AND old.state = 'dead' AND new.state <> 'dead'
BEGIN
    UPDATE batch SET state = 'sealed', is_canceled = 0, round = round + 1, finished_at = NULL
    WHERE batch_id = new.batch_id AND state = 'finished';
    INSERT OR IGNORE INTO outbox SELECT batch_id FROM batch  -- a cancel that goes on is of this task, too
    WHERE batch_id = new.batch_id AND state = 'sealed' AND is_canceled;
END;

-- What is seen of a queue from time to time: jobq.journal.observations. Rows go with their queue, and nothing of a task
-- depends on them.
CREATE TABLE observation (
    queue_id INTEGER NOT NULL,
    kind     TEXT NOT NULL,
    key      TEXT NOT NULL,
    at       REAL NOT NULL,  -- wall time of when it was written
    value    TEXT NOT NULL,  -- JSON
    PRIMARY KEY (queue_id, kind, key)
) WITHOUT ROWID;

-- What tasks ask for of a worker, each distinct request once.
CREATE TABLE shape (
    shape           INTEGER PRIMARY KEY AUTOINCREMENT,  -- never used again: who has read it before knows what it asks for
    queue_id        INTEGER NOT NULL,
    request         TEXT NOT NULL,  -- JSON
    overtaken_seq   INTEGER,        -- the task of it that is next, when a worker took another one for want of room
    overtaken_since REAL            -- wall time at which that was first so
);

CREATE UNIQUE INDEX shape_request ON shape (queue_id, request);
