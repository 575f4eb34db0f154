-- Batches (jobq.batches); part of the schema since version 11.

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

-- Batches that may have finished, or have tasks to cancel. `batch_sql.advance` looks, within the same transaction; what an
-- older jobq leaves, which has the file open and knows nothing of this, the next one that writes looks after.
CREATE TABLE outbox (batch_id INTEGER PRIMARY KEY);

ALTER TABLE task ADD COLUMN batch_id INTEGER;
ALTER TABLE task ADD COLUMN params TEXT;            -- JSON
CREATE INDEX task_of_batch ON task (batch_id, id) WHERE batch_id IS NOT NULL;
CREATE INDEX task_state_in_batch ON task (batch_id, state, outcome) WHERE batch_id IS NOT NULL;

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
