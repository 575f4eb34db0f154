"""One attempt at a task, from its delivery to its settlement."""
