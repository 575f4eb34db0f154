-- The mark of a pause; part of the schema since version 9.

-- JSON: since when, by whom and why nothing is handed out; NULL = it is. An older jobq that has the file open does not
-- look here, and takes tasks.
ALTER TABLE queue ADD COLUMN paused TEXT;
