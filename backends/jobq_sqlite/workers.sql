-- Which worker holds a lease; part of the schema since version 8.

-- The receipt of the lease, a space, and the id that the holder's processes and tasks carry, which tells others of this
-- machine whether all of them are dead. With another receipt, or NULL, it says nothing, and the lease stands to its end: an
-- older jobq that has the file open takes tasks without a word here.
ALTER TABLE task ADD COLUMN worker TEXT;
