-- Named leases and their cursors; part of the schema since version 2.
--
-- One row a name, which is never deleted: its token only rises (S3), and fences every write (S4).
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
    PRIMARY KEY (queue, name)
);
