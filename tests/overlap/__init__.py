"""Two trees of one task never live at once, and a dead tree is gone before its lease expires (P1, S3, T4, T5)."""
