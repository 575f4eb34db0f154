-- The embedded queue, schema version 1 (PRAGMA user_version), PRAGMA application_id 0x6a6f6271 ("jobq"). What later
-- versions added stands in files of its own, which `open_file.py` lists: leases.sql.
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
    only_row   INTEGER PRIMARY KEY CHECK (only_row = 1),
    machine_id TEXT NOT NULL,  -- the machine whose processes may open this file
    boot_id    TEXT NOT NULL,  -- the boot that expires_at counts from
    boottime   REAL NOT NULL,  -- CLOCK_BOOTTIME and wall time when that boot first opened the file
    wall       REAL NOT NULL
);

CREATE TABLE queue (
    queue_id   INTEGER PRIMARY KEY,
    name       TEXT NOT NULL UNIQUE,
    created_at REAL NOT NULL
);

CREATE TABLE task (
    seq             INTEGER PRIMARY KEY,      -- order of arrival
    queue_id        INTEGER NOT NULL REFERENCES queue,
    id              TEXT NOT NULL,
    state           TEXT NOT NULL CHECK (state IN ('ready', 'scheduled', 'leased', 'done', 'dead')),
    priority        INTEGER NOT NULL DEFAULT 0,
    available_at    REAL NOT NULL,            -- ready: since when; scheduled: from when
    body            BLOB NOT NULL CHECK (typeof(body) = 'blob'),  -- the wire format of jobq.task; empty once done
    fingerprint     BLOB,                     -- tells a repeated push from another payload (S8)
    deliveries      INTEGER NOT NULL DEFAULT 0 CHECK (typeof(deliveries) = 'integer'),  -- only rises (S3)
    receipt         TEXT,                     -- of the current lease
    expires_at      REAL,                     -- of the current lease
    settlements     TEXT NOT NULL DEFAULT '', -- the last few receipts and what was said of each, newest first: a
                                              -- repetition is answered alike (S5)
    checkpoint      TEXT,
    finished_at     REAL,
    reason          TEXT,                     -- of a dead letter
    description     TEXT
);

CREATE UNIQUE INDEX task_id ON task (queue_id, id);
-- Partial indexes keep the claim at O(log n) however many tasks are finished, leased or scheduled.
CREATE INDEX task_ready ON task (queue_id, priority DESC, available_at, seq) WHERE state = 'ready';
CREATE INDEX task_scheduled ON task (queue_id, available_at) WHERE state = 'scheduled';
CREATE INDEX task_leased ON task (queue_id, expires_at) WHERE state = 'leased';
CREATE INDEX task_dead ON task (queue_id, finished_at, seq) WHERE state = 'dead';
CREATE INDEX task_done ON task (queue_id, finished_at) WHERE state = 'done';
