-- Which checkpoint is the newest; part of the schema since version 6.

-- Of the checkpoint: the delivery that saved it, and in the lower 32 bits its number there. Only rises (S9).
ALTER TABLE task ADD COLUMN checkpoint_order INTEGER NOT NULL DEFAULT 0;
