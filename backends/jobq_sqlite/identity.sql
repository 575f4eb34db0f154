-- What tells this file from another one that is put in its place; part of the schema since version 5.

ALTER TABLE host ADD COLUMN identity TEXT NOT NULL DEFAULT '';  -- random, of this file; a copy has it too
UPDATE host SET identity = lower(hex(randomblob(16)));
