"""How values are written as text: durations, sizes, JSON, checkpoints, trace contexts, the peer's messages."""
