"""The worker's loop, its signals, what it receives."""
