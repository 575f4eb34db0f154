"""Run by the peer's own Python: one task, by ai4s-jobq's worker. Argument: queue."""

import asyncio
import os
import sys
from datetime import timedelta

from ai4s.jobq import JobQ  # type: ignore[import-not-found] # of another environment
from ai4s.jobq.work import ShellCommandProcessor  # type: ignore[import-not-found] # as above


async def work(queue: str) -> None:
    jobs = JobQ.from_connection_string(queue, connection_string=os.environ["PEER_CONNECTION_STRING"])
    async with jobs as queued, ShellCommandProcessor() as run, queued.get_worker_interface() as interface:
        await queued.pull_and_execute(run, visibility_timeout=timedelta(seconds=10), worker_interface=interface)


if __name__ == "__main__":  # its processes import this file again
    asyncio.run(work(sys.argv[1]))
