"""`make bench-service-bus`: jobq beside ai4s-jobq on one Service Bus emulator, under the same 503 and the same 404.

Also which way of pushing is faster, batches over REST or the SDK's over AMQP.
"""

import argparse
import asyncio
import json
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient

from benchmarks.bench import show
from jobq.task import Task
from jobq.testing.service_bus.access import ALL_RIGHTS, Claim
from jobq.testing.service_bus.description import Description
from jobq.testing.service_bus.emulator import Emulator
from jobq.testing.service_bus.faults import Fault, Operation
from jobq_azure.service_bus_backend import ServiceBusBackend
from jobq_azure.service_bus_namespace import Namespace, place_of
from jobq_azure.service_bus_options import Options

_ROOT: Final = Path(__file__).parents[1]
_PEER: Final = _ROOT / ".peer/bin/python"
_TOKEN: Final = "token-of-the-peer"
_LOCK_SECONDS: Final = 30.0
_WATCH_SECONDS: Final = 40.0  # how long a task is watched that should be dead
_STOP_SECONDS: Final = 30.0
# Ends by itself, for a side that leaves it behind.
_TICKS: Final = "for i in $(seq 1500); do cut -d' ' -f1 /proc/uptime >> ticks || exit; sleep 0.05; done"
_STATUSES: Final = (503, 403, 413, 429, 500)


class Bench:
    """One emulator, and each side's way to it."""

    def __init__(self, emulator: Emulator, folder: Path) -> None:
        self.emulator = emulator
        self.folder = folder
        emulator.access.bearers[_TOKEN] = Claim("", ALL_RIGHTS, math.inf)

    def queue(self, name: str) -> str:
        self.emulator.broker.create(Description(name, lock_duration=_LOCK_SECONDS, max_delivery_count=1000))
        (self.folder / name).mkdir()
        return name

    async def start(self, queue: str, *argv: str, **more: str) -> asyncio.subprocess.Process:
        environment = {
            **os.environ,
            "JOBQ_CONNECTION_STRING": self.emulator.connection_string,
            "PEER_URL": self.emulator.rest_url,
            "PEER_TOKEN": _TOKEN,
            "JOBQ_SCHEDULED_EVENTS": "off",
            "JOBQ_DISABLE_SCHEDULED_EVENTS": "1",
            "HOME": str(self.folder),
            **more,
        }
        told = asyncio.subprocess.PIPE if "push" in argv else asyncio.subprocess.DEVNULL
        return await asyncio.create_subprocess_exec(
            *argv, env=environment, cwd=self.folder / queue, stdout=told, stderr=asyncio.subprocess.DEVNULL
        )

    async def peer_push(self, queue: str, command: str = "true") -> dict[str, Any]:
        pushing = await self.start(
            queue, str(_PEER), str(Path(__file__).with_name("service_bus_peer.py")), "push", queue, PEER_COMMAND=command
        )
        out, _ = await pushing.communicate()
        assert out.strip(), f"the peer says nothing and ends with {pushing.returncode}: it does not run here"
        told: dict[str, Any] = json.loads(out.splitlines()[-1])
        return told

    async def push(self, queue: str, command: str = "true") -> dict[str, Any]:
        pushing = await self.start(
            queue, sys.executable, "-m", "jobq", f"sb://emulator/{queue}", "push", "--json", "-c", command
        )
        out, _ = await pushing.communicate()
        return json.loads(out) if out.strip() else {"error": f"exit code {pushing.returncode}"}


async def pushes_under(bench: Bench, status: int) -> dict[str, object]:
    """Push through a service that refuses everything: what is told, and what is there."""
    row: dict[str, object] = {"what": f"push under {status}".ljust(42)}
    for side, push in (("jobq", bench.push), ("ai4s-jobq", bench.peer_push)):
        queue = bench.queue(f"push-{status}-{side}")
        bench.emulator.faults.plan(Fault(status), Operation.SEND, count=math.inf)
        told = await push(queue)
        bench.emulator.faults.clear()
        there = len(bench.emulator.broker.queue(queue).messages())
        verdict = "LOST, told as sent" if "id" in told and not there else "told"
        row[side] = f"{side}: {verdict} ({told.get('error', 'an id')}, {there} in the queue)  "
    return row


async def lock_lost(bench: Bench) -> dict[str, object]:
    """Let one renewal answer 404 in the middle of a task; return for how long its process goes on, to 0.05 s.

    Zero is a task that was killed before it wrote its next line.
    """
    row: dict[str, object] = {"what": "a task goes on after a 404 on its lock".ljust(42)}
    program = str(Path(__file__).with_name("service_bus_peer.py"))
    for side in ("jobq", "ai4s-jobq"):
        queue = bench.queue(f"lock-{side}")
        await (bench.push if side == "jobq" else bench.peer_push)(queue, _TICKS)
        argv = (
            (sys.executable, "-m", "jobq", f"sb://emulator/{queue}", "worker")
            if side == "jobq"
            else (str(_PEER), program, "work", queue)
        )
        worker = await bench.start(queue, *argv)
        ticks = bench.folder / queue / "ticks"
        await _until(ticks.exists)
        assert ticks.exists(), f"the task of {side} does not run"
        bench.emulator.faults.plan(Fault(404), Operation.RENEW, path=queue)
        await _until(lambda: _refused(bench, queue) is not None)  # noqa: B023 - waited for
        refused = time.clock_gettime(time.CLOCK_BOOTTIME)
        # Its message is locked still: what ticks now is the task that should be dead, or nothing.
        await _until(lambda: _last(ticks) < time.clock_gettime(time.CLOCK_BOOTTIME) - 1, _WATCH_SECONDS)  # noqa: B023
        row[side] = f"{side}: {max(0.0, _last(ticks) - refused):.2f} s  "
        await _stop(worker)
        bench.emulator.faults.clear()
    return row


async def _stop(worker: asyncio.subprocess.Process) -> None:
    worker.terminate()
    try:
        async with asyncio.timeout(_STOP_SECONDS):
            await worker.wait()
    except TimeoutError:
        worker.kill()
        await worker.wait()


def _refused(bench: Bench, queue: str) -> float | None:
    return next(
        (
            each.at
            for each in bench.emulator.gate.requests
            if each.operation is Operation.RENEW and each.path == queue and each.status == 404
        ),
        None,
    )


def _last(ticks: Path) -> float:
    return float(ticks.read_text().splitlines()[-2])  # the last line may not be whole yet


async def _until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        await asyncio.sleep(0.02)


async def push_rate(bench: Bench, count: int) -> dict[str, object]:
    """Compare batches over REST with the SDK's over AMQP; both connected."""
    rest, amqp = [], []
    for round_ in range(3):
        queue = bench.queue(f"rest-{round_}")
        place = place_of("emulator", queue, bench.emulator.connection_string, "")
        tasks = [Task.new(command="true") for _ in range(count)]
        async with ServiceBusBackend(Namespace(place), Options()) as backend:
            began = time.perf_counter()
            await backend.push(tasks)
            rest.append(count / (time.perf_counter() - began))
        queue = bench.queue(f"amqp-{round_}")
        bus = ServiceBusClient.from_connection_string(bench.emulator.connection_string)
        async with bus, bus.get_queue_sender(queue) as sender:
            await sender.create_message_batch()  # connects
            began = time.perf_counter()
            batch = await sender.create_message_batch()
            for task in tasks:
                message = ServiceBusMessage(task.encode(), message_id=task.id)
                try:
                    batch.add_message(message)
                except ValueError:
                    await sender.send_messages(batch, timeout=30)
                    batch = await sender.create_message_batch()
                    batch.add_message(message)
            await sender.send_messages(batch, timeout=30)
            amqp.append(count / (time.perf_counter() - began))
    return {
        "what": f"push of {count}".ljust(42),
        "rest": statistics.median(rest),
        "u": "/s in REST batches   SDK batches",
        "amqp": statistics.median(amqp),
        "v": "/s",
    }


async def run(tasks: int, folder: Path) -> None:
    async with Emulator() as emulator:
        bench = Bench(emulator, folder)
        print(show(await push_rate(bench, tasks)), flush=True)
        for status in _STATUSES:
            print(show(await pushes_under(bench, status)), flush=True)
        print(show(await lock_lost(bench)), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Show jobq and ai4s-jobq under the same faults of Service Bus.")
    parser.add_argument("--tasks", type=int, default=2000)
    with tempfile.TemporaryDirectory(prefix="jobq-bench-") as folder:
        asyncio.run(run(parser.parse_args().tasks, Path(folder)))


if __name__ == "__main__":
    main()
