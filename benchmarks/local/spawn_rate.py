"""Processes per second through each spawner, beside a bare vfork loop that starts the same program as often at once.

All run `/bin/true` in a session of its own, with three descriptors of their own, from start to reap. The bare loop is
`subprocess.Popen`, which forks by vfork, on one thread, and waits for whichever child ends next.
"""

import asyncio
import os
import subprocess
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.measure import Figure, Meter, Row, compared, in_turns, live_children
from benchmarks.sections import Options
from jobq.run.process.spawner import Launch, Spawner
from jobq.run.spawn.asyncio_spawner import AsyncioSpawner
from jobq.run.spawn.guardian_spawner import GuardianSpawner

AT_ONCE = (1, 8, 64)
PROGRAM = ("/bin/true",)
STARTS = 600


def measure(_: Path, options: Options) -> Iterator[Row]:
    """Yield a row for each number at once and each spawner."""
    starts = options.scaled(STARTS)
    for at_once in AT_ONCE:
        yield from beside_bare(
            f"spawn, true, {at_once} at once",
            options.rounds,
            partial(_bare, starts, at_once),
            partial(_ours, starts, at_once),
        )


def beside_bare(
    what: str, rounds: int, bare: Callable[[], Figure], ours: Callable[[Spawner], Coroutine[Any, Any, Figure]]
) -> Iterator[Row]:
    """Yield a row for each spawner; the bare side and both of ours take turns."""
    found = in_turns(
        rounds,
        {
            "bare": lambda _: bare(),
            "guardian": lambda _: asyncio.run(ours(GuardianSpawner())),
            "asyncio": lambda _: asyncio.run(ours(AsyncioSpawner())),
        },
    )
    for spawner in ("asyncio", "guardian"):
        yield compared(f"{what}, {spawner}", {"jobq": found[spawner], "bare": found["bare"]})


def _bare(starts: int, at_once: int) -> Figure:
    null = os.open("/dev/null", os.O_RDWR)
    children: dict[int, subprocess.Popen[bytes]] = {}
    with Meter() as meter:
        for _ in range(starts):
            if len(children) == at_once:
                _reap(children)
            child = subprocess.Popen(PROGRAM, stdin=null, stdout=null, stderr=null, start_new_session=True)
            children[child.pid] = child
        while children:
            _reap(children)
    os.close(null)
    return meter.figure(starts)


def _reap(children: dict[int, subprocess.Popen[bytes]]) -> None:
    ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
    assert ended is not None
    assert children.pop(ended.si_pid).wait() == 0


async def _ours(starts: int, at_once: int, spawner: Spawner) -> Figure:
    null = os.open("/dev/null", os.O_RDWR)
    launch = Launch(argv=PROGRAM, env=dict(os.environ), stdout=null, stderr=null)
    left = iter(range(starts))

    async def slot() -> None:
        for _ in left:
            process = await spawner.spawn(launch)
            assert (await process.wait()).exit_code == 0

    async with spawner:
        await _warm(spawner, launch)
        with Meter(*live_children()) as meter:  # the guardian lives on
            await asyncio.gather(*(slot() for _ in range(at_once)))
    os.close(null)
    return meter.figure(starts)


async def _warm(spawner: Spawner, launch: Launch) -> None:
    """Start one process that is not counted: the spawner's own start is another figure."""
    await (await spawner.spawn(launch)).wait()
