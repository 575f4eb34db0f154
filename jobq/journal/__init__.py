"""What happened to each task: the protocol of journals, what they record, and how they are read (architecture 8).

A queue on SQL keeps its journal in its own tables: where a task is now is the queue's own row, so it is never shown
twice; what an attempt came to is written in the transaction of its settle, so a result is there only with the settle
that was accepted (S5). Nothing here is imported by a backend but `records`, `store` and `retention`.
"""
