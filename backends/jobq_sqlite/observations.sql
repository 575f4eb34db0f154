-- What is seen of a queue from time to time: jobq.journal.observations; part of the schema since version 12.
--
-- Rows go with their queue. Nothing of a task depends on them, and an older jobq that has the file open knows nothing of
-- them.

CREATE TABLE observation (
    queue_id INTEGER NOT NULL,
    kind     TEXT NOT NULL,
    key      TEXT NOT NULL,
    at       REAL NOT NULL,  -- wall time of when it was written
    value    TEXT NOT NULL,  -- JSON
    PRIMARY KEY (queue_id, kind, key)
) WITHOUT ROWID;
