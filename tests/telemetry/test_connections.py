"""A worker's pages under strangers: those who connect and say nothing take neither its descriptors nor its turns."""

import asyncio
import contextlib
import logging
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from jobq.telemetry import connection_limits
from jobq.telemetry.endpoint import QueueWatch, served
from jobq.telemetry.metrics import QueueMetrics
from jobq.telemetry.worker_state import WorkerState

from .scraping import free_port, read

if TYPE_CHECKING:
    from jobq.backend import Backend

_HALF = b"GET /metrics HTTP/1.1\r\nX-Slow: "


class _Silent:
    """Stands for a backend that is asked for nothing but its counts, and knows none."""

    async def stats(self) -> None:
        raise TimeoutError


async def _half_a_request(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(_HALF)
    return reader, writer


async def _ended(reader: asyncio.StreamReader) -> None:
    with contextlib.suppress(ConnectionError):  # the other side of an abort
        assert await reader.read() == b""


def _accepted_by(port: int) -> int:
    """Return how many sockets of this process are a server's end of a connection to this port."""
    found = 0
    for entry in list(Path("/proc/self/fd").iterdir()):
        try:
            with socket.socket(fileno=os.dup(int(entry.name))) as one:
                found += one.getsockname()[1:2] == (port,) and not one.getsockopt(
                    socket.SOL_SOCKET, socket.SO_ACCEPTCONN
                )
        except (OSError, TypeError):
            continue  # no socket, or gone by now
    return found


async def test_half_requests_take_few_descriptors_and_none_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Renewals need descriptors of the same process (P1, L4)."""
    monkeypatch.setattr(connection_limits, "LIFE_SECONDS", 2.0)
    port = free_port()
    watch = QueueWatch(cast("Backend", _Silent()), QueueMetrics("q", "sqlite"))
    async with asyncio.timeout(30), served("127.0.0.1", port, watch, WorkerState(), lambda: b"figures"):
        guests = [await _half_a_request(port) for _ in range(4 * connection_limits.MOST_CONNECTIONS)]
        ends = {asyncio.create_task(_ended(reader)) for reader, _ in guests}
        while sum(end.done() for end in ends) < 3 * connection_limits.MOST_CONNECTIONS:
            await asyncio.wait({end for end in ends if not end.done()}, return_when=asyncio.FIRST_COMPLETED)
        assert _accepted_by(port) <= connection_limits.MOST_CONNECTIONS
        await asyncio.gather(*ends)  # those who were let in are sent away in their turn
        assert await asyncio.to_thread(read, port) == "figures"
        assert '"slots": 0' in await asyncio.to_thread(read, port, "/healthz")
        for _, writer in guests:
            writer.close()


async def test_what_is_no_http_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """A stranger must not write the worker's log."""
    port = free_port()
    watch = QueueWatch(cast("Backend", _Silent()), QueueMetrics("q", "sqlite"))
    async with asyncio.timeout(30), served("127.0.0.1", port, watch, WorkerState(), lambda: b"figures"):
        for _ in range(5):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /metrics HTTP/1.1\r\nX: " + b"a" * 20_000 + b"\r\n\r\n")
            assert (await reader.readline()).endswith(b"400 Bad Request\r\n")
            writer.close()
    assert len([record for record in caplog.records if record.levelno > logging.INFO]) <= 1
