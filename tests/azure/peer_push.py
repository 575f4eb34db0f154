"""Run by the peer's own Python: fills a queue with ai4s-jobq. Arguments: queue, folder of the tasks, how many."""

import asyncio
import os
import sys

from ai4s.jobq import JobQ  # type: ignore[import-not-found] # of another environment


async def fill(queue: str, folder: str, count: int) -> None:
    signed = os.environ["PEER_CONNECTION_STRING"]
    async with JobQ.from_connection_string(queue, connection_string=signed) as jobs:
        for number in range(count):
            await jobs.push({"cmd": f"echo {number} $COLOR >> done", "env": {"COLOR": "grün"}, "cwd": folder})
        await jobs.push("exit 3", num_retries=1)


asyncio.run(fill(sys.argv[1], sys.argv[2], int(sys.argv[3])))
