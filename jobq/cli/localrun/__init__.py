"""`jobq run`: a file of commands, worked here."""
