"""`make bench OF=storage_queue`: jobq beside ai4s-jobq and the bare SDK on one Azurite, in one run; sides take turns.

The bare SDK shows where the emulator itself is the limit: it receives and deletes the same messages and runs nothing.
CPU is that of each side's own processes, without Azurite's.
"""

import asyncio
import contextlib
import itertools
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Final

from azure.core.exceptions import ResourceExistsError
from azure.storage.queue.aio import QueueClient

from benchmarks import sections
from benchmarks.commands import output, whole
from benchmarks.measure import Figure, Meter, Row, compared, in_turns
from benchmarks.sections import ROOT, Options
from jobq.queue import Queue
from jobq.settings import Settings
from jobq.spec import resolve
from jobq.task import Task
from tests.azure.emulator import ACCOUNT, Azurite

_PEER: Final = ROOT / ".peer/bin"
_AT_ONCE: Final = 16  # requests of the bare SDK: as many as ours keeps on their way
_NUMBERS: Final = itertools.count()


class Bench:
    """One emulator, and each side's way to it."""

    def __init__(self, azurite: Azurite, folder: Path) -> None:
        self.signed = azurite.connection_string
        self.folder = folder
        self.environment = {
            **os.environ,
            "JOBQ_CONNECTION_STRING": self.signed,
            "PEER_CONNECTION_STRING": self.signed,
            "JOBQ_SCHEDULED_EVENTS": "off",
            "JOBQ_DISABLE_SCHEDULED_EVENTS": "1",
            "JOBQ_HOME": str(folder),
            "PYTHONPATH": str(ROOT),  # the peer's script measures as we do
            "HOME": str(folder),
        }

    def queue(self) -> str:
        return f"bench-{next(_NUMBERS)}"

    def command(self, count: int, *argv: str) -> Figure:
        """Return what a whole command takes for so many units, its start and end included."""
        return whole(argv, self.environment, self.folder).figure(count)

    async def push(self, queue: str, count: int, command: str = "true") -> Figure:
        settings = Settings(connection_string=self.signed)
        async with resolve(f"{ACCOUNT}/{queue}", settings) as backend:
            await backend.create()
            tasks = [Task.new(command=command) for _ in range(count)]
            with Meter() as meter:
                await Queue(backend, settings).push(tasks)
        return meter.figure(count)

    async def bare_push(self, queue: str, count: int) -> Figure:
        async with QueueClient.from_connection_string(self.signed, queue) as client:
            with contextlib.suppress(ResourceExistsError):
                await client.create_queue()
            texts = iter([Task.new(command="true").encode().decode() for _ in range(count)])

            async def put() -> None:
                for text in texts:
                    await client.send_message(text, time_to_live=-1)

            with Meter() as meter:
                await asyncio.gather(*(put() for _ in range(_AT_ONCE)))
        return meter.figure(count)

    async def bare_drain(self, queue: str, count: int, slots: int) -> Figure:
        async with QueueClient.from_connection_string(self.signed, queue) as client:

            async def slot() -> None:
                while True:
                    found = [each async for each in client.receive_messages(max_messages=1, visibility_timeout=300)]
                    if not found:
                        return
                    await client.delete_message(found[0])

            with Meter() as meter:
                await asyncio.gather(*(slot() for _ in range(slots)))
        return meter.figure(count)

    def peer_push(self, queue: str, count: int, command: str = "true") -> Figure:
        """Return its own figure: without its start."""
        argv = (str(_PEER / "python"), "-m", "benchmarks.storage_queue_peer", queue, str(count), command)
        return Figure.printed(output(argv, self.environment, self.folder))

    def worker(self, queue: str, slots: int) -> list[str]:
        return [sys.executable, "-m", "jobq", f"{ACCOUNT}/{queue}", "worker", "-n", str(slots)]

    def peer_worker(self, queue: str, slots: int) -> list[str]:
        program = str(_PEER / "ai4s-jobq")
        return [program, f"{ACCOUNT}/{queue}", "worker", "-n", str(slots)]


def push_rate(bench: Bench, tasks: int, rounds: int) -> Iterable[Row]:
    sides: dict[str, Callable[[int], Figure]] = {
        "jobq": lambda _: asyncio.run(bench.push(bench.queue(), tasks)),
        "ai4s-jobq": lambda _: bench.peer_push(bench.queue(), tasks),
        "bare SDK": lambda _: asyncio.run(bench.bare_push(bench.queue(), tasks)),
    }
    yield compared(f"push of {tasks}", in_turns(rounds, sides))


def worker_rate(bench: Bench, tasks: int, slots: int, rounds: int) -> Iterable[Row]:
    """Compare whole runs of the command lines, their start and end included."""

    def ours(_: int) -> Figure:
        asyncio.run(bench.push(queue := bench.queue(), tasks))
        return bench.command(tasks, *bench.worker(queue, slots))

    def peer(_: int) -> Figure:
        bench.peer_push(queue := bench.queue(), tasks)
        return bench.command(tasks, *bench.peer_worker(queue, slots))

    def bare(_: int) -> Figure:
        asyncio.run(bench.bare_push(queue := bench.queue(), tasks))
        return asyncio.run(bench.bare_drain(queue, tasks, slots))

    sides = {"jobq": ours, "ai4s-jobq": peer, "bare SDK": bare}
    yield compared(f"worker over {tasks} `true`, {slots} slots", in_turns(rounds, sides))


def memory(bench: Bench, slots: int) -> Iterable[Row]:
    """Compare resident megabytes of all processes of a worker whose slots are taken; the tasks do not count."""
    mine, theirs = bench.queue(), bench.queue()
    asyncio.run(bench.push(mine, slots, "exec sleep 1000"))
    bench.peer_push(theirs, slots, "exec sleep 1000")
    ours = _resident(bench, bench.worker(mine, slots), slots)
    peer = _resident(bench, bench.peer_worker(theirs, slots), slots)
    yield {
        "what": f"memory, {slots} slots",
        "jobq": {"MB": ours[0], "processes": ours[1]},
        "ai4s-jobq": {"MB": peer[0], "processes": peer[1]},
        "to ai4s-jobq": {"x": ours[0] / peer[0]},
    }


def start(bench: Bench, rounds: int) -> Iterable[Row]:
    sides: dict[str, Callable[[int], Figure]] = {
        "jobq": lambda _: bench.command(1, sys.executable, "-m", "jobq", "--help"),
        "ai4s-jobq": lambda _: bench.command(1, str(_PEER / "ai4s-jobq"), "--help"),
    }
    yield compared("start (--help)", in_turns(max(5, rounds), sides), "ms")


def _resident(bench: Bench, argv: list[str], slots: int) -> tuple[float, int]:
    import psutil  # noqa: PLC0415 - for this figure alone

    # A session of its own: what is ended is what was started here.
    with subprocess.Popen(
        argv, env=bench.environment, cwd=bench.folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as worker:
        root = psutil.Process(worker.pid)
        family: list[psutil.Process] = []
        try:
            end = time.monotonic() + 120
            while True:
                family = [root, *root.children(recursive=True)]
                sleeping = [each for each in family if _name(each) == "sleep"]
                if len(sleeping) >= slots:
                    break
                assert time.monotonic() < end, f"{len(sleeping)} of {slots} tasks run"
                time.sleep(0.2)
            own = [each for each in family if _name(each) not in ("sleep", "bash", "sh")]
            return sum(each.memory_info().rss for each in own) / 1e6, len(own)
        finally:
            for each in reversed(family):
                try:
                    each.kill()
                except psutil.NoSuchProcess:
                    continue


def _name(process: object) -> str:
    import psutil  # noqa: PLC0415 - as above

    assert isinstance(process, psutil.Process)
    try:
        return process.name()
    except psutil.NoSuchProcess:
        return ""


def _prepare(options: Options, stack: ExitStack) -> Mapping[str, sections.Section]:
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="jobq-bench-")))
    azurite = Azurite(folder)
    stack.callback(azurite.kill)
    azurite.start()
    bench = Bench(azurite, folder)
    tasks, rounds = options.scaled(2000), options.rounds
    return {
        "start": partial(start, bench, rounds),
        "push": partial(push_rate, bench, tasks, rounds),
        "worker-1": partial(worker_rate, bench, options.scaled(500), 1, rounds),
        **{f"worker-{slots}": partial(worker_rate, bench, tasks, slots, rounds) for slots in (8, 32)},
        **{f"memory-{slots}": partial(memory, bench, slots) for slots in (8, 32)},
    }


if __name__ == "__main__":
    sections.main(__doc__, _prepare, rounds=1, peer=_PEER / "python")
