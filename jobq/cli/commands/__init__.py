"""One file a command, or a family of them: each parses its arguments and prints."""
