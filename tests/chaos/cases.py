"""Named blows to several workers at once, with one beside them that takes what they lose (P1 to P3)."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Final

from jobq.run.spawn.dead_workers import kill_what_dead_workers_left
from jobq.task import Budgets, Task
from tests.chaos import task_program
from tests.chaos.blows import boottime
from tests.chaos.checker import Evidence, Interruption
from tests.chaos.crew import SHORT, SHORT_SECONDS, Member, carriers, environment
from tests.chaos.history import History
from tests.chaos.processes import THREE, Blow, Case
from tests.chaos.stores import SqliteStore
from tests.guardian.stage import until_async

BLOW_SECONDS: Final = 1.25 * SHORT_SECONDS  # what lives on unguarded has outlived its lease by then
FINISH_SECONDS: Final = 30.0
_PROCESSES: Final = 3  # of a task
_ANY: Final = Budgets(retries=10**6, preemptions=10**6, crashes=10**6)


async def strike(folder: Path, cases: Sequence[Case], **settings: str) -> Evidence:
    """Strike as many workers, each with one task; return what came of it, for the checker.

    Where one lost all its three processes another worker is started at once, on another queue.
    """
    history, own = folder / "history", {**SHORT, **settings}
    folder.mkdir(exist_ok=True)
    history.touch()
    async with AsyncExitStack() as stack:
        store = SqliteStore(folder)
        stack.push_async_callback(store.stop)
        await store.start()
        queue = await store.queue()
        members = await asyncio.gather(*(Member.hired(store, 1, None, own) for _ in cases))
        for member in members:
            stack.push_async_callback(member.dismissed)
        argv = (sys.executable, "-I", "-S", task_program.__file__, str(history), "600", "ok-again")
        tasks = [Task.new(argv=argv, budgets=_ANY) for _ in cases]
        await queue.push(tasks)
        await until_async(lambda: _begun(history) == _PROCESSES * len(tasks))
        for member in members:
            member.processes.aim()
        rival = await Member.hired(store, len(cases), None, own)
        stack.push_async_callback(rival.dismissed)
        began, threads = boottime(), []
        for member, case in zip(members, cases, strict=True):
            threads += member.processes.strike(case, BLOW_SECONDS)
        if any({Blow("kill", name) for name in THREE} <= set(case) for case in cases):
            await asyncio.to_thread(_start_elsewhere, folder, own)
        await asyncio.to_thread(time.sleep, max(0.0, began + BLOW_SECONDS - boottime()))  # the time itself is the blow
        for thread in threads:
            await asyncio.to_thread(thread.join)
        until = boottime()
        for member in members:
            member.processes.resume()
        history.with_name("history.end").touch()
        end = boottime() + FINISH_SECONDS  # those that are unfinished then are reported by the checker
        while set(map(tuple, (await store.ends()).values())) != {("done",)} and boottime() < end:
            await asyncio.sleep(0.05)  # the store says nothing by itself
        unasked = int(rival.has_ended)
        leases, ends = await store.leases(), await store.ends()
    left = carriers(history)
    for pid in left:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)  # a survivor: it has our history among its arguments
    kill_what_dead_workers_left()  # control groups that are empty, and were left to the next start
    with history.open() as lines:
        lives = History.read(lines)
    return Evidence(
        history=lives,
        leases=leases,
        ends=ends,
        acknowledged={task.id: 1 for task in tasks},
        interruptions=[
            Interruption(", then ".join(map(str, case)), member.processes.guardian, began, until)
            for member, case in zip(members, cases, strict=True)
        ],
        lease_seconds=SHORT_SECONDS,
        left=len(left),
        ended_unasked=unasked,
    )


def _begun(history: Path) -> int:
    return sum(line.split(" ")[4] in ("start", "child") for line in history.read_text().splitlines())


def _start_elsewhere(folder: Path, own: dict[str, str]) -> None:
    for words in (("create",), ("worker",)):
        command = [sys.executable, "-m", "jobq", f"sqlite://{folder}/elsewhere.db/q", *words]
        subprocess.run(command, env=environment(folder, own), check=True, capture_output=True)
