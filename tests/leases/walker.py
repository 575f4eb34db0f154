"""Walks through the numbers up to COUNT and appends each that it handles to a file; to be killed by a test.

python walker.py SPEC NAME COUNT BATCH FILE
"""

import asyncio
import os
import sys
from datetime import timedelta
from typing import Any

import jobq
from jobq.lease.traversal import Page
from jobq.settings import Settings


async def main(spec: str, name: str, count: int, batch: int, path: str) -> None:
    async def fetch(after: Any, limit: int) -> Page[int]:
        first = 0 if after is None else after + 1
        numbers = range(first, min(first + limit, count))
        return Page(numbers, numbers[-1] if numbers else after, is_last=first + limit >= count)

    settings = Settings(
        allow_short_lease=True, kill_margin=timedelta(seconds=0.2), schedule_margin=timedelta(seconds=0.1)
    )
    handled = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    async with (
        jobq.connect(spec, settings=settings) as queue,
        queue.traversal(name, fetch, batch_size=batch, ttl=timedelta(seconds=2)) as walk,
    ):
        async for page in walk:
            os.write(handled, b"".join(b"%d %d\n" % (walk.lease.token, number) for number in page.items))
    print("done", walk.progress.handled, flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5]))
