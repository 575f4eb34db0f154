"""Processes per second through each spawner, beside a bare vfork loop that starts the same program as often at once.

All run `/bin/true` in a session of its own, with three descriptors of their own, from start to reap. The bare loop is
`subprocess.Popen`, which forks by vfork, on one thread, and waits for whichever child ends next.
"""

import asyncio
import os
import statistics
import subprocess
import time
from pathlib import Path

from jobq.run.asyncio_spawner import AsyncioSpawner
from jobq.run.guardian_spawner import GuardianSpawner
from jobq.run.process import Launch, Spawner

AT_ONCE = (1, 8, 64)
PROGRAM = ("/bin/true",)
STARTS = 600


def measure(folder: Path, rounds: int) -> list[dict[str, object]]:  # noqa: ARG001 - every section gets a folder
    """Return the rates and their ratios to the bare loop; sides take turns."""
    rows: list[dict[str, object]] = []
    for at_once in AT_ONCE:
        rates: dict[str, list[float]] = {"bare": [], "guardian": [], "asyncio": []}
        for _ in range(rounds):
            rates["bare"].append(_bare(at_once))
            rates["guardian"].append(asyncio.run(_ours(GuardianSpawner(), at_once)))
            rates["asyncio"].append(asyncio.run(_ours(AsyncioSpawner(), at_once)))
        bare = statistics.median(rates["bare"])
        for spawner in ("asyncio", "guardian"):
            ours = statistics.median(rates[spawner])
            rows.append(
                {
                    "what": f"spawn, true, {at_once} at once, {spawner}".ljust(42),
                    "jobq": ours,
                    "unit": "/s   bare",
                    "bare": bare,
                    "rel": "/s   ratio",
                    "ratio": ours / bare,
                }
            )
    return rows


def _bare(at_once: int) -> float:
    null = os.open("/dev/null", os.O_RDWR)
    children: dict[int, subprocess.Popen[bytes]] = {}
    began = time.perf_counter()
    for _ in range(STARTS):
        if len(children) == at_once:
            _reap(children)
        child = subprocess.Popen(PROGRAM, stdin=null, stdout=null, stderr=null, start_new_session=True)
        children[child.pid] = child
    while children:
        _reap(children)
    seconds = time.perf_counter() - began
    os.close(null)
    return STARTS / seconds


def _reap(children: dict[int, subprocess.Popen[bytes]]) -> None:
    ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
    assert ended is not None
    assert children.pop(ended.si_pid).wait() == 0


async def _ours(spawner: Spawner, at_once: int) -> float:
    null = os.open("/dev/null", os.O_RDWR)
    launch = Launch(argv=PROGRAM, env=dict(os.environ), stdout=null, stderr=null)
    left = iter(range(STARTS))

    async def slot() -> None:
        for _ in left:
            process = await spawner.spawn(launch)
            assert (await process.wait()).exit_code == 0

    async with spawner:
        await _warm(spawner, launch)
        began = time.perf_counter()
        await asyncio.gather(*(slot() for _ in range(at_once)))
        seconds = time.perf_counter() - began
    os.close(null)
    return STARTS / seconds


async def _warm(spawner: Spawner, launch: Launch) -> None:
    """Start one process that is not counted: the spawner's own start is another figure."""
    await (await spawner.spawn(launch)).wait()
