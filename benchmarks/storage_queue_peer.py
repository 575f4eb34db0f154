"""Run by the peer's own Python: pushes commands with ai4s-jobq as it does best, and prints what it took."""

import asyncio
import os
import sys

from ai4s.jobq import JobQ, batch_enqueue  # type: ignore[import-not-found] # of another environment

from benchmarks.measure import Figure, Meter


async def fill(queue: str, count: int, command: str) -> Figure:
    signed = os.environ["PEER_CONNECTION_STRING"]
    async with JobQ.from_connection_string(queue, connection_string=signed) as jobs:
        with Meter() as meter:
            await batch_enqueue(jobs, [command] * count)
        return meter.figure(count)


print(asyncio.run(fill(sys.argv[1], int(sys.argv[2]), sys.argv[3])))
