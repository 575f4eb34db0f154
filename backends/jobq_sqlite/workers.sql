-- Which worker holds a lease; part of the schema since version 8.

-- Of the current lease: the id that the holder's processes and tasks carry, which tells others of this machine whether
-- all of them are dead; NULL = nobody can tell, and the lease stands to its end.
ALTER TABLE task ADD COLUMN worker TEXT;
