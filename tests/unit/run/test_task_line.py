"""The worker's socket for its tasks: what a hostile one does with it costs the others nothing (S11)."""

import asyncio
import os
from contextlib import suppress

from jobq.clock import Moment
from jobq.lease.keeper import LeaseKeeper
from jobq.lease.timing import LeaseTiming
from jobq.run.attempt.attempt_journal import AttemptJournal
from jobq.run.attempt.checkpoints import AttemptCheckpoints
from jobq.run.attempt.task_socket import TaskSocket
from jobq.run.process.task_folder import TaskFolder
from jobq.testing.clock import VirtualClock
from tests.unit.scripted_delivery import ScriptedDelivery


async def test_whoever_opens_many_connections_is_hung_up_on() -> None:
    """And a share that is no number of a float's size is answered."""
    clock = VirtualClock()
    keeper = LeaseKeeper(
        AttemptJournal(ScriptedDelivery(clock)), since=Moment.of(clock), timing=LeaseTiming(lease=60.0), clock=clock
    )
    folder = TaskFolder()
    checkpoints = AttemptCheckpoints(ScriptedDelivery(clock), keeper, None, folder.new_folder)
    line = TaskSocket(folder)
    opened: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
    try:
        admitted = await line.admit(checkpoints)
        line.listen_to(admitted, os.getpid())
        token, _, path = admitted.partition("@")
        opened += [await asyncio.open_unix_connection(path) for _ in range(100)]
        ends = [asyncio.create_task(reader.read()) for reader, _ in opened]
        while sum(end.done() for end in ends) < 36:
            await asyncio.sleep(0.01)
        for end in ends:
            end.cancel()
        for _, writer in opened:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()
        told = b""
        while not told:  # until the worker has seen that they are gone
            reader, writer = await asyncio.open_unix_connection(path)
            writer.write(b'{"token": "%s", "op": "progress", "share": 1%s}\n' % (token.encode(), b"0" * 390))
            with suppress(OSError):
                told = await reader.readline()
            writer.close()
        assert b"ConfigurationError" in told
        assert checkpoints.progress == (None, "")
    finally:
        line.close()
        folder.close()
