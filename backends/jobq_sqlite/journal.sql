-- The journal; part of the schema since version 4 (architecture 8).
--
-- Where a task is stands in its row of the table task. What its attempts came to stands here, written in the
-- transaction of the settle (S5), or of whoever finds that a lease ran out. Rows go with their task, or after JOBQ_KEEP.

ALTER TABLE task ADD COLUMN holder TEXT;      -- of the current lease: HOST:PID, for display only
ALTER TABLE task ADD COLUMN beat TEXT;        -- what the running attempt told with its last renewal, as JSON
ALTER TABLE task ADD COLUMN cancel_requested INTEGER NOT NULL DEFAULT 0;
ALTER TABLE task ADD COLUMN outcome TEXT;     -- of a task that is done: 'canceled', or NULL for done indeed

CREATE INDEX task_canceled ON task (queue_id) WHERE outcome IS NOT NULL;

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
