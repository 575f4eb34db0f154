"""Who starts a task's processes: the guardian, or this process."""
