"""The small process that owns the tasks and outlives the worker (architecture 6).

It spawns and reaps every task, kills what outlives its lease with the worker blocked, starved, stopped or dead, and
finds what left its process group. Standard library only, no asyncio: it must be small, and never be busy with
anything else. `protocol` is what worker and guardian say to each other, `start_process` what a child does before it
executes, `tasks` the trees, `loop`
the one thing that runs, `__main__` how it starts, and how it starts the worker again.
"""
