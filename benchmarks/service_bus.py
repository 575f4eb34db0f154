"""`make bench-service-bus`: jobq beside ai4s-jobq on one Service Bus emulator, under the same 503 and the same 404.

Also which way of pushing is faster, batches over REST or the SDK's over AMQP. The emulator is in the same process, so
its CPU is part of both sides'.
"""

import asyncio
import itertools
import json
import math
import os
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Final

from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient

from benchmarks import sections
from benchmarks.measure import Figure, Meter, Row, compared, in_turns
from benchmarks.sections import ROOT
from jobq.task import Task
from jobq_azure.service_bus.backend import ServiceBusBackend
from jobq_azure.service_bus.namespace import Namespace, place_of
from jobq_azure.service_bus.options import Options
from tests.emulators.service_bus.access import ALL_RIGHTS, Claim
from tests.emulators.service_bus.description import Description
from tests.emulators.service_bus.emulator import Emulator
from tests.emulators.service_bus.faults import Fault, Operation

_PEER: Final = ROOT / ".peer/bin/python"
_TOKEN: Final = "token-of-the-peer"
_LOCK_SECONDS: Final = 30.0
_WATCH_SECONDS: Final = 40.0  # how long a task is watched that should be dead
_STOP_SECONDS: Final = 30.0
# Ends by itself, for a side that leaves it behind.
_TICKS: Final = "for i in $(seq 1500); do cut -d' ' -f1 /proc/uptime >> ticks || exit; sleep 0.05; done"
_STATUSES: Final = (503, 403, 413, 429, 500)
_NUMBERS: Final = itertools.count()


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


async def pushes_under(bench: Bench, status: int) -> Row:
    """Push through a service that refuses everything: what is told, and what is there."""
    row: Row = {"what": f"push under {status}"}
    for side, push in (("jobq", bench.push), ("ai4s-jobq", bench.peer_push)):
        queue = bench.queue(f"push-{status}-{side}")
        bench.emulator.faults.plan(Fault(status), Operation.SEND, count=math.inf)
        told = await push(queue)
        bench.emulator.faults.clear()
        there = len(bench.emulator.broker.queue(queue).messages())
        verdict = "LOST, told as sent" if "id" in told and not there else "told"
        row[side] = f"{verdict} ({told.get('error', 'an id')}, {there} in the queue)"
    return row


async def lock_lost(bench: Bench) -> Row:
    """Let one renewal answer 404 in the middle of a task; return for how long its process goes on, to 0.05 s.

    Zero is a task that was killed before it wrote its next line.
    """
    row: Row = {"what": "a task goes on after a 404 on its lock"}
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
        row[side] = {"s": max(0.0, _last(ticks) - refused)}
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


async def _push_rest(bench: Bench, tasks: list[Task]) -> Figure:
    place = place_of("emulator", bench.queue(f"rest-{next(_NUMBERS)}"), bench.emulator.connection_string, "")
    async with ServiceBusBackend(Namespace(place), Options()) as backend:
        with Meter() as meter:
            await backend.push(tasks)
    return meter.figure(len(tasks))


async def _push_amqp(bench: Bench, tasks: list[Task]) -> Figure:
    bus = ServiceBusClient.from_connection_string(bench.emulator.connection_string)
    async with bus, bus.get_queue_sender(bench.queue(f"amqp-{next(_NUMBERS)}")) as sender:
        await sender.create_message_batch()  # connects
        with Meter() as meter:
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
    return meter.figure(len(tasks))


def _prepare(options: sections.Options, stack: ExitStack) -> Mapping[str, sections.Section]:
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="jobq-bench-")))
    runner = stack.enter_context(asyncio.Runner())
    emulator = Emulator()
    runner.run(emulator.__aenter__())
    stack.callback(lambda: runner.run(emulator.__aexit__(None, None, None)))
    bench = Bench(emulator, folder)

    def push_rate() -> Iterator[Row]:
        tasks = [Task.new(command="true") for _ in range(options.scaled(2000))]
        sides: dict[str, Callable[[int], Figure]] = {
            "REST batches": lambda _: runner.run(_push_rest(bench, tasks)),
            "SDK batches": lambda _: runner.run(_push_amqp(bench, tasks)),
        }
        yield compared(f"push of {len(tasks)}", in_turns(options.rounds, sides))

    def one(measure: Callable[[], Coroutine[Any, Any, Row]]) -> Iterator[Row]:
        yield runner.run(measure())

    return {
        "push": push_rate,
        **{f"under-{status}": partial(one, partial(pushes_under, bench, status)) for status in _STATUSES},
        "lock": partial(one, partial(lock_lost, bench)),
    }


if __name__ == "__main__":
    sections.main(__doc__, _prepare, rounds=3, peer=_PEER)
