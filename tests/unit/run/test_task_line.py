"""The worker's socket for its tasks: what a hostile one does with it costs the others nothing (S11)."""

import asyncio
import os
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from jobq.clock import Moment
from jobq.lease.keeper import LeaseKeeper
from jobq.lease.timing import LeaseTiming
from jobq.run.attempt.attempt_journal import AttemptJournal
from jobq.run.attempt.checkpoints import AttemptCheckpoints
from jobq.run.attempt.task_socket import TaskSocket
from jobq.run.process.task_folder import TaskFolder
from jobq.testing.clock import VirtualClock
from tests.unit.scripted_delivery import ScriptedDelivery

_HOLDS = """
import socket, sys
held = [socket.socket(socket.AF_UNIX) for _ in range(200)]
for each in held:
    try:
        each.connect(sys.argv[1])
    except OSError:
        pass
print("held", flush=True)
sys.stdin.read()
"""
_ASKS = """
import socket, sys
sys.stdin.readline()
line = socket.socket(socket.AF_UNIX)
line.connect(sys.argv[1])
line.sendall(b'{"token": "%s", "op": "progress", "share": 0.5}\\n' % sys.argv[2].encode())
print(line.makefile().readline().strip(), flush=True)
"""


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="whose a connection is only Linux says")
async def test_s11_a_task_that_holds_connections_keeps_no_neighbour_from_its_worker() -> None:
    """A task that held 64 had its neighbours' checkpoints refused."""
    clock = VirtualClock()
    keeper = LeaseKeeper(
        AttemptJournal(ScriptedDelivery(clock)), since=Moment.of(clock), timing=LeaseTiming(lease=60.0), clock=clock
    )
    folder = TaskFolder()
    line = TaskSocket(folder)
    processes: list[asyncio.subprocess.Process] = []
    try:
        checkpoints = [AttemptCheckpoints(ScriptedDelivery(clock), keeper, None, folder.new_folder) for _ in range(2)]
        admitted = [await line.admit(each) for each in checkpoints]
        path = admitted[0].partition("@")[2]
        for program, each in zip((_HOLDS, _ASKS), admitted, strict=True):
            argv = (sys.executable, "-I", "-c", program, path, each.partition("@")[0])
            process = await asyncio.create_subprocess_exec(*argv, stdin=-1, stdout=-1)
            processes.append(process)
            line.listen_to(each, process.pid)
        hostile, polite = processes
        assert hostile.stdout is not None
        assert await hostile.stdout.readline() == b"held\n"
        said, _ = await polite.communicate(b"\n")
        assert said == b"{}\n"
        assert checkpoints[1].progress == (0.5, "")
    finally:
        for process in processes:
            if process.returncode is None:
                process.kill()
            await process.communicate()
        line.close()
        folder.close()


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
        while sum(end.done() for end in ends) < 84:
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
