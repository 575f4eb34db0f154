-- What tasks ask for of a worker, each distinct request once; part of the schema since version 13.
--
-- `task.priority` holds the shape, too, since then: priority - (shape << 40), as jobq.resources.shapes has it. So the
-- index of what is ready is in the order of shapes, and of those that ask for nothing (shape 0) nothing has changed.

CREATE TABLE shape (
    shape           INTEGER PRIMARY KEY AUTOINCREMENT,  -- never used again: who has read it before knows what it asks for
    queue_id        INTEGER NOT NULL,
    request         TEXT NOT NULL,  -- JSON
    overtaken_seq   INTEGER,        -- the task of it that is next, when a worker took another one for want of room
    overtaken_since REAL            -- wall time at which that was first so
);

CREATE UNIQUE INDEX shape_request ON shape (queue_id, request);

-- The newest shape of the queue; 0 = none of its tasks asks for anything. Who has read its shapes sees by it whether there
-- are more.
ALTER TABLE queue ADD COLUMN newest_shape INTEGER NOT NULL DEFAULT 0;
