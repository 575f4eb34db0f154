-- In which epoch tasks are pushed; part of the schema since version 7.

-- Above that of every task that this file has forgotten: an id that is pushed again goes on with higher tokens (S3).
ALTER TABLE host ADD COLUMN epoch INTEGER NOT NULL DEFAULT 0;
-- What an older jobq has forgotten nobody knows; no task was redriven as often as minutes have passed since 1970.
UPDATE host SET epoch = CAST(strftime('%s', 'now') AS INTEGER) / 60;

ALTER TABLE task ADD COLUMN epoch INTEGER NOT NULL DEFAULT 0;  -- as in its body, which is empty once it is done
CREATE TRIGGER task_forgotten AFTER DELETE ON task WHEN old.epoch >= (SELECT epoch FROM host)
BEGIN
    UPDATE host SET epoch = old.epoch + 1;
END;

-- The highest number of a row that is gone: SQLite would give it to a new task, and a clear that began before would take
-- that for what was there (S1).
ALTER TABLE host ADD COLUMN newest_gone INTEGER NOT NULL DEFAULT 0;
CREATE TRIGGER task_newest_gone AFTER DELETE ON task WHEN old.seq > (SELECT coalesce(max(seq), 0) FROM task)
BEGIN
    UPDATE host SET newest_gone = max(newest_gone, old.seq);
END;
