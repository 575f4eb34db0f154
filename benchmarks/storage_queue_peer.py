"""Run by the peer's own Python: pushes commands with ai4s-jobq as it does best, and prints the seconds it took."""

import asyncio
import os
import sys
import time

from ai4s.jobq import JobQ, batch_enqueue  # type: ignore[import-not-found] # of another environment


async def fill(queue: str, count: int, command: str) -> float:
    signed = os.environ["PEER_CONNECTION_STRING"]
    async with JobQ.from_connection_string(queue, connection_string=signed) as jobs:
        began = time.perf_counter()
        await batch_enqueue(jobs, [command] * count)
        return time.perf_counter() - began


print(asyncio.run(fill(sys.argv[1], int(sys.argv[2]), sys.argv[3])))
