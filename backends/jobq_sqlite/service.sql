-- What `jobq serve` shows of a task, and what it has to remember; part of the schema since version 3.
--
-- Times are wall time in seconds since the epoch, for people.

ALTER TABLE task ADD COLUMN started_at REAL;    -- when it was last claimed
ALTER TABLE task ADD COLUMN heartbeat_at REAL;  -- when that lease was last renewed
ALTER TABLE task ADD COLUMN result BLOB;        -- JSON, of one that was completed through the service

CREATE TABLE document (
    name    TEXT PRIMARY KEY,
    version INTEGER NOT NULL CHECK (version > 0),  -- each write raises it, and names the one it has read
    value   BLOB NOT NULL
);

-- Seconds that a lease lasts from its grant or latest renewal.
ALTER TABLE lease ADD COLUMN ttl REAL NOT NULL DEFAULT 0;
