-- The highest epoch that a task has; part of the schema since version 10.

-- A queue that is deleted gives its ids free at once, before its rows are gone: what is pushed under them has to begin
-- above all of them (S3), and to look at each row would take too long. Only a redrive raises a task's epoch.
ALTER TABLE host ADD COLUMN highest_epoch INTEGER NOT NULL DEFAULT 0;
UPDATE host SET highest_epoch = (SELECT coalesce(max(epoch), 0) FROM task);
CREATE TRIGGER task_redriven AFTER UPDATE OF epoch ON task WHEN new.epoch > (SELECT highest_epoch FROM host)
BEGIN
    UPDATE host SET highest_epoch = new.epoch;
END;
