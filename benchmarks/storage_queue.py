"""`make bench-azure`: jobq beside ai4s-jobq and the bare SDK on one Azurite, in one run; sides take turns.

The bare SDK shows where the emulator itself is the limit: it receives and deletes the same messages and runs nothing.
"""

import argparse
import asyncio
import contextlib
import itertools
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from azure.core.exceptions import ResourceExistsError
from azure.storage.queue.aio import QueueClient

from benchmarks.bench import show
from jobq.queue import Queue
from jobq.settings import Settings
from jobq.spec import resolve
from jobq.task import Task
from tests.azure.emulator import ACCOUNT, Azurite

if TYPE_CHECKING:
    from collections.abc import Callable

_ROOT: Final = Path(__file__).parents[1]
_PEER: Final = _ROOT / ".peer/bin"
_AT_ONCE: Final = 16  # requests of the bare SDK: as many as ours keeps on their way
_LIMIT_SECONDS: Final = 900.0
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
            "HOME": str(folder),
        }

    def queue(self) -> str:
        return f"bench-{next(_NUMBERS)}"

    def seconds(self, *argv: str) -> float:
        began = time.perf_counter()
        subprocess.run(
            argv, env=self.environment, cwd=self.folder, check=True, capture_output=True, timeout=_LIMIT_SECONDS
        )
        return time.perf_counter() - began

    async def push(self, queue: str, count: int, command: str = "true") -> float:
        settings = Settings(connection_string=self.signed)
        async with resolve(f"{ACCOUNT}/{queue}", settings) as backend:
            await backend.create()
            tasks = [Task.new(command=command) for _ in range(count)]
            began = time.perf_counter()
            await Queue(backend, settings).push(tasks)
            return time.perf_counter() - began

    async def bare_push(self, queue: str, count: int) -> float:
        async with QueueClient.from_connection_string(self.signed, queue) as client:
            with contextlib.suppress(ResourceExistsError):
                await client.create_queue()
            texts = iter([Task.new(command="true").encode().decode() for _ in range(count)])

            async def put() -> None:
                for text in texts:
                    await client.send_message(text, time_to_live=-1)

            began = time.perf_counter()
            await asyncio.gather(*(put() for _ in range(_AT_ONCE)))
            return time.perf_counter() - began

    async def bare_drain(self, queue: str, slots: int) -> float:
        async with QueueClient.from_connection_string(self.signed, queue) as client:

            async def slot() -> None:
                while True:
                    found = [each async for each in client.receive_messages(max_messages=1, visibility_timeout=300)]
                    if not found:
                        return
                    await client.delete_message(found[0])

            began = time.perf_counter()
            await asyncio.gather(*(slot() for _ in range(slots)))
            return time.perf_counter() - began

    def peer_push(self, queue: str, count: int, command: str = "true") -> float:
        """Return its own figure: without its start."""
        program = str(Path(__file__).with_name("storage_queue_peer.py"))
        told = subprocess.run(
            [str(_PEER / "python"), program, queue, str(count), command],
            env=self.environment,
            cwd=self.folder,
            check=True,
            capture_output=True,
            text=True,
        )
        return float(told.stdout.split()[-1])

    def worker(self, queue: str, slots: int) -> list[str]:
        return [sys.executable, "-m", "jobq", f"{ACCOUNT}/{queue}", "worker", "-n", str(slots)]

    def peer_worker(self, queue: str, slots: int) -> list[str]:
        program = str(_PEER / "ai4s-jobq")
        return [program, f"{ACCOUNT}/{queue}", "worker", "-n", str(slots)]


def push_rate(bench: Bench, tasks: int) -> dict[str, object]:
    ours = asyncio.run(bench.push(bench.queue(), tasks))
    bare = asyncio.run(bench.bare_push(bench.queue(), tasks))
    peer = bench.peer_push(bench.queue(), tasks)
    return _row(f"push of {tasks}", tasks / ours, tasks / peer, tasks / bare)


def worker_rate(bench: Bench, tasks: int, slots: int) -> dict[str, object]:
    """Compare whole runs of the command lines, their start and end included."""
    mine, theirs, bare = bench.queue(), bench.queue(), bench.queue()
    asyncio.run(bench.push(mine, tasks))
    ours = bench.seconds(*bench.worker(mine, slots))
    bench.peer_push(theirs, tasks)
    peer = bench.seconds(*bench.peer_worker(theirs, slots))
    asyncio.run(bench.bare_push(bare, tasks))
    alone = asyncio.run(bench.bare_drain(bare, slots))
    return _row(f"worker over {tasks} `true`, {slots} slots", tasks / ours, tasks / peer, tasks / alone)


def memory(bench: Bench, slots: int) -> dict[str, object]:
    """Compare resident megabytes of all processes of a worker whose slots are taken; the tasks do not count."""
    mine, theirs = bench.queue(), bench.queue()
    asyncio.run(bench.push(mine, slots, "exec sleep 1000"))
    bench.peer_push(theirs, slots, "exec sleep 1000")
    ours = _resident(bench, bench.worker(mine, slots), slots)
    peer = _resident(bench, bench.peer_worker(theirs, slots), slots)
    return {
        "what": f"memory, {slots} slots".ljust(42),
        "jobq": ours[0],
        "u": f"MB in {ours[1]} processes   ai4s-jobq",
        "peer": peer[0],
        "v": f"MB in {peer[1]}   ratio",
        "ratio": ours[0] / peer[0],
    }


def start(bench: Bench) -> dict[str, object]:
    rounds = range(5)
    ours = statistics.median(bench.seconds(sys.executable, "-m", "jobq", "--help") for _ in rounds)
    peer = statistics.median(bench.seconds(str(_PEER / "ai4s-jobq"), "--help") for _ in rounds)
    return {
        "what": "start (--help)".ljust(42),
        "jobq": ours,
        "u": "s   ai4s-jobq",
        "peer": peer,
        "v": "s   ratio",
        "ratio": ours / peer,
    }


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


def _row(what: str, ours: float, peer: float, bare: float) -> dict[str, object]:
    return {
        "what": what.ljust(42),
        "jobq": ours,
        "u": "/s   ai4s-jobq",
        "peer": peer,
        "v": "/s   bare SDK",
        "bare": bare,
        "w": "/s   to the peer",
        "ratio": ours / peer,
        "x": "  to bare",
        "to_bare": ours / bare,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure jobq beside ai4s-jobq and the bare SDK on one Azurite.")
    parser.add_argument("--tasks", type=int, default=2000)
    tasks = parser.parse_args().tasks
    with tempfile.TemporaryDirectory(prefix="jobq-bench-") as folder:
        azurite = Azurite(Path(folder))
        azurite.start()
        try:
            bench = Bench(azurite, Path(folder))
            measures: list[Callable[[], dict[str, object]]] = [
                lambda: start(bench),
                lambda: push_rate(bench, tasks),
                lambda: worker_rate(bench, tasks // 4, 1),
                *(lambda slots=slots: worker_rate(bench, tasks, slots) for slots in (8, 32)),
                *(lambda slots=slots: memory(bench, slots) for slots in (8, 32)),
            ]
            for measure in measures:
                print(show(measure()), flush=True)
        finally:
            azurite.kill()


if __name__ == "__main__":
    main()
