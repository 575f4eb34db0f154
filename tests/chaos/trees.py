"""T6: eight kinds of hostile trees below a real worker, killed in each of five ways; then who lives on is counted."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from jobq.task import Budgets, Task
from tests.chaos.blows import boottime
from tests.chaos.crew import Member
from tests.chaos.record import Record, head
from tests.chaos.store_truth import Attempt
from tests.chaos.stores import SqliteStore
from tests.guardian.hostile import TREES
from tests.guardian.stage import gone, hostile, living, marker, until_async

KINDS: Final = (
    *("double_fork", "setsid", "nohup", "ignores_term"),
    *("storm", "closed_stdio", "traced", "holds_pipe"),
)
WAYS: Final = ("kill worker", "kill guardian", "stop worker to its deadline", "cancel", "time limit")
AFTER_SECONDS: Final = 1.0
_LONG_SECONDS: Final = 60.0  # until trees must have grown, or ended, on a loaded machine
_TIME_LIMIT_SECONDS: Final = 8.0


async def kill_trees(folder: Path, progress: Callable[[str], None]) -> Record:
    """Kill each kind in each way; return how many were killed and who survived.

    A kill of a process leaves a second; a deadline, until the lease expires in the store; what the worker itself
    ends is dead once it is settled.
    """
    survivors: list[str] = []
    killed: dict[str, int] = {}
    for number, way in enumerate(WAYS):
        progress(way)
        place = folder / str(number)
        place.mkdir()
        found = await survivors_of(place, way)
        killed[way] = len(KINDS)
        survivors += [f"{way}: {count} processes of {kind}" for kind, count in found.items()]
    return {
        **head("T6", "sqlite"),
        "killed": killed,
        "kinds": list(KINDS),
        "failing": {"survivors": len(survivors)},
        "violations": survivors,
        "void": [],
    }


async def survivors_of(folder: Path, way: str) -> dict[str, int]:
    """Grow one tree of each kind below a worker, kill them in one way, and return who lives on, by kind."""
    store = SqliteStore(folder)
    await store.start()
    marks = {marker(): kind for kind in KINDS}
    limit = _TIME_LIMIT_SECONDS if way == "time limit" else None
    tasks = [
        Task.new(argv=hostile(kind, mark), timeout=limit, budgets=Budgets(retries=0, preemptions=0, crashes=0))
        for mark, kind in marks.items()
    ]
    try:
        queue = await store.queue()
        await queue.push(tasks)
        member = await Member.hired(store, len(tasks), None)
        try:
            await until_async(lambda: all(len(living(mark)) >= TREES[kind][1] for mark, kind in marks.items()))
            member.processes.aim()
            end = boottime() + AFTER_SECONDS
            match way:
                case "kill worker" | "kill guardian":
                    member.processes.send(signal.SIGKILL, way.removeprefix("kill "))
                case "stop worker to its deadline":
                    member.processes.send(signal.SIGSTOP, "worker")
                    end = await _expiry(store, tasks)
                case _:
                    if way == "cancel":
                        await queue.cancel([task.id for task in tasks])
                    await _all_ended(store)
            found = await asyncio.to_thread(gone, list(marks), max(0.0, end - boottime()))
        finally:
            await member.dismissed()
    finally:
        await store.stop()
        for mark in marks:
            for pid in living(mark):
                os.kill(pid, signal.SIGKILL)  # a survivor: it carries a marker of ours
    return {marks[mark]: count for mark, count in found.items()}


async def _expiry(store: SqliteStore, tasks: list[Task]) -> float:
    """Return when the last of the leases expires that the store has granted."""
    leases = await store.leases()
    return max(leases[Attempt(task.id, 1)].expiries[-1] for task in tasks)


async def _all_ended(store: SqliteStore) -> None:
    end = boottime() + _LONG_SECONDS
    while any(states[0] == "leased" for states in (await store.ends()).values()):
        if boottime() > end:
            print("tasks that were to be killed do not end", file=sys.stderr)
            return
        await asyncio.sleep(0.02)  # the store says nothing by itself
