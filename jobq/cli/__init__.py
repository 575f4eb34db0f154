"""The command line: one file per command family; parses and prints only."""
