"""Tables of what the tasks of a batch came to."""
