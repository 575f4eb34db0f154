"""An end that answers whoever waits: SIGTERM while long polls are open, and a service that goes away under a client."""

import asyncio
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest

from jobq.errors import BackendUnavailable
from jobq.settlement import MoveToDeadLetters, Release
from jobq.task import Task
from jobq_http import HttpBackend, HttpConnection
from tests.service.server import HttpServer

LONG = timedelta(seconds=20)


async def test_sigterm_answers_the_long_polls_that_are_open(tmp_path: Path) -> None:
    server = HttpServer(f"sqlite://{tmp_path}/jobs.db/demo", tmp_path)
    server.start()
    polls: list[asyncio.Task[object]] = []
    pool = ThreadPoolExecutor(20)
    try:
        polls = [asyncio.create_task(_poll(server, pool)) for _ in range(20)]
        await _until(server, "jobq_http_requests_waiting 21.0")
        began = time.monotonic()
        code = await asyncio.to_thread(server.stop)
        assert code == 0
        assert time.monotonic() - began < 5
        answers = await asyncio.gather(*polls)
        assert answers == [(200, {"tasks": []})] * 20
    finally:
        server.kill()
        await asyncio.gather(*polls, return_exceptions=True)
        pool.shutdown()


async def _poll(server: HttpServer, pool: ThreadPoolExecutor) -> object:
    ask = partial(server.ask, "POST", "/api/tasks/next", {"wait_seconds": 30.0})
    return await asyncio.get_running_loop().run_in_executor(pool, ask)


async def _until(server: HttpServer, line: str) -> None:
    end = time.monotonic() + 20
    while line not in await asyncio.to_thread(_metrics, server):
        assert time.monotonic() < end
        await asyncio.sleep(0.05)


def _metrics(server: HttpServer) -> str:
    with urllib.request.urlopen(f"{server.url}/metrics") as answer:
        return str(answer.read().decode())


async def test_a_client_that_hangs_up_leaves_nothing_leased(tmp_path: Path) -> None:
    """What is claimed for nobody is given back at once, and costs no budget (S7)."""
    server = HttpServer(f"sqlite://{tmp_path}/jobs.db/demo", tmp_path)
    server.start()
    try:
        async with (
            HttpBackend(HttpConnection(server.url), "demo") as gone,
            HttpBackend(HttpConnection(server.url), "demo") as here,
        ):
            for _ in range(10):
                waiting = asyncio.create_task(gone.receive(1, None, LONG))
                await asyncio.sleep(0.05)  # it may be anywhere on its way
                waiting.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await waiting
                await here.push([Task.new(command="true")])
                (delivery,) = await here.receive(1, None, LONG)
                assert delivery.deliveries - 1 <= delivery.task.counters.ends
                await delivery.settle(Release())
                (again,) = await here.receive(1, None, LONG)
                await again.settle(MoveToDeadLetters("failed", "by the test"))
    finally:
        server.kill()


async def test_a_service_that_is_gone_is_told_from_one_that_refuses(tmp_path: Path) -> None:
    server = HttpServer(f"sqlite://{tmp_path}/jobs.db/demo", tmp_path)
    server.start()
    server.kill()
    async with HttpBackend(HttpConnection(server.url), "demo") as queue:
        for call in (queue.push([Task.new(command="true")]), queue.stats(), queue.receive(1, None, timedelta(0))):
            with pytest.raises(BackendUnavailable, match="cannot be reached"):
                await call
