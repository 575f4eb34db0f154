"""One figure of one peer, printed; runs in .peer-postgres, which has both peers.

python -m benchmarks.postgres_peer WHICH DSN prepare
python -m benchmarks.postgres_peer WHICH DSN push COUNT AT_ONCE | bulk COUNT | work COUNT AT_ONCE | latency COUNT
"""
# mypy: ignore-errors
# ruff: noqa: ARG001, ARG002, PLC0415
# The peers are installed in another environment than the one that types are checked in.

import asyncio
import os
import sys
import time

from benchmarks.measure import Meter, median


class Procrastinate:
    """Its worker runs a task that does nothing; each task is a coroutine in the worker's process."""

    async def open(self, dsn):
        import procrastinate

        self.app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=dsn, min_size=8, max_size=60))
        self.called = 0
        self.at = None
        self.event = asyncio.Event()

        @self.app.task(name="nothing")
        async def nothing(number):
            self.called += 1
            self.at = time.perf_counter()
            self.event.set()

        self.task = nothing
        await self.app.open_async()

    async def prepare(self):
        await self.app.schema_manager.apply_schema_async()

    async def push(self, number):
        await self.task.defer_async(number=number)

    async def bulk(self, count):
        await self.task.batch_defer_async(*({"number": number} for number in range(count)))

    async def work(self, at_once, wait):
        await self.app.run_worker_async(concurrency=at_once, wait=wait, install_signal_handlers=False)


class PgQueuer:
    """Its queue manager runs an entry point that does nothing; `at_once` is its batch size."""

    async def open(self, dsn):
        import asyncpg
        from pgqueuer import PgQueuer as Manager
        from pgqueuer.db import AsyncpgDriver

        self.connection = await asyncpg.connect(dsn)
        self.manager = Manager(AsyncpgDriver(self.connection))
        self.queries = self.manager.qm.queries
        self.called = 0
        self.at = None
        self.event = asyncio.Event()
        # Pushes that run beside a worker have a connection of their own, as they would in another process.
        from pgqueuer.queries import Queries

        self.pushing = Queries(AsyncpgDriver(await asyncpg.connect(dsn)))

        @self.manager.entrypoint("nothing")
        async def nothing(job):
            self.called += 1
            self.at = time.perf_counter()
            self.event.set()

    async def prepare(self):
        await self.queries.install()

    async def push(self, number):
        await self.pushing.enqueue("nothing", b"x")

    async def bulk(self, count):
        await self.pushing.enqueue(["nothing"] * count, [b"x"] * count, [0] * count)

    async def work(self, at_once, wait):
        from pgqueuer.types import QueueExecutionMode as Mode

        await self.manager.qm.run(batch_size=at_once, mode=Mode.continuous if wait else Mode.drain)


async def main(which, dsn, verb, *numbers):
    peer = {"procrastinate": Procrastinate, "pgqueuer": PgQueuer}[which]()
    await peer.open(dsn)
    if verb == "prepare":
        return await peer.prepare()
    count, at_once = map(int, numbers)
    if verb == "latency":
        return await latency(peer, count)
    meter = Meter()
    if verb == "push":
        numbers = iter(range(count))

        async def some():
            for number in numbers:
                await peer.push(number)

        with meter:
            await asyncio.gather(*(some() for _ in range(at_once)))
    elif verb == "bulk":
        with meter:
            await peer.bulk(count)
    else:
        await peer.bulk(count)
        with meter:
            began = time.perf_counter()
            await peer.work(at_once, wait=False)
        meter.seconds = peer.at - began  # until the last one, not until its worker ends
        assert peer.called == count, peer.called
    return meter.figure(count)


async def latency(peer, count):
    working = asyncio.create_task(peer.work(1, wait=True))
    await asyncio.sleep(2)
    figures = []
    for number in range(count):
        peer.event.clear()
        with Meter() as meter:
            await peer.push(number)
            await asyncio.wait_for(peer.event.wait(), 60)
        figures.append(meter.figure(1))
        await asyncio.sleep(0.05)
    working.cancel()
    return median(figures)


print(asyncio.run(main(*sys.argv[1:])), flush=True)
os._exit(0)  # a worker of theirs may leave threads behind
