"""The sections of `make bench`: jobq on this machine beside what is bare of it."""
