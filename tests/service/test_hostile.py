"""10,000 malformed requests and 500 connections that never finish a head: others are answered throughout (T9, A8)."""

import asyncio
import contextlib
import http.client
import random
import time
from collections.abc import Awaitable
from datetime import timedelta
from pathlib import Path
from typing import Final, TypeVar

import psutil
import pytest

from jobq.settlement import MoveToDeadLetters, Release
from jobq.task import Task
from jobq_http import HttpBackend, HttpConnection
from tests.service.server import HttpServer, running

pytestmark = pytest.mark.check

MALFORMED: Final = 10_000
_SOON_SECONDS: Final = 30.0  # it is 10 s; more on a busy machine
SLOW: Final = 500
ENDLESS: Final = 20
SENDERS: Final = 20
_NOW: Final = timedelta(0)
_T = TypeVar("_T")
MOST_GROWN_BYTES: Final = 50 * 1024 * 1024
WORST_SECONDS: Final = 3.0
_HEAD: Final = (
    "POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
)
_PATHS: Final = (
    *("/api/tasks", "/api/tasks/next", "/api/leases", "/api/queues/demo/redrive", "/api/generator/start"),
    *("/api/queues/demo/batches/s7/seal", "/api/queues/demo/hasten"),
    *("/api/queues/demo/views/tasks", "/api/queues/demo/notes/put", "/api/views/queues"),
)
_VALUES: Final = (
    b'{"tasks":[{"command":"true"}]}',
    b'{"max_tasks":1,"lease_seconds":10.0}',
    b'{"room":{"free":{"cpus":1000,"gpus":[1000]},"tags":["a"],"reserves_after":1.0}}',
    b'{"resource":"n","ttl":10.0}',
    b'{"ids":["a"]}',
    b'{"tasks":[{"command":1e999,"argv":[]}]}',
    b"[" * 5000,
    b'{"a":' * 2000,
    b"\xff\xfe\x00",
    b'{"max_tasks":NaN}',
    b'{"key":"\\ud800"}',
)


def malformed(chance: random.Random) -> bytes:
    """Return a request that is broken in its line, its headers or its body."""
    body = bytearray(chance.choice(_VALUES))
    for _ in range(chance.randrange(1, 8)):
        body[chance.randrange(len(body))] = chance.randrange(256)
    head = bytearray(_HEAD.format(path=chance.choice(_PATHS), length=len(body)).encode())
    kind = chance.randrange(5)
    if kind == 0:
        head[chance.randrange(len(head))] = chance.randrange(256)
    elif kind == 1:
        head = bytearray(chance.randbytes(chance.randrange(1, 300)))
    elif kind == 2:
        head = head.replace(
            b"Content-Length: ", b"Content-Length: 9" if chance.random() < 0.5 else b"Content-Length: -"
        )
    elif kind == 3:
        head = head.replace(b"\r\n\r\n", b"\r\nX: " + b"y" * chance.randrange(40_000) + b"\r\n\r\n")
    return bytes(head + body)


async def send(port: int, requests: list[bytes], answered: list[bytes]) -> None:
    for request in requests:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(request)
            writer.write_eof()
            answered.append(await reader.read(65536))
        except OSError:
            answered.append(b"")  # reset: an answer, too
        finally:
            writer.close()


async def never_finish(port: int, until: asyncio.Event) -> bool:
    """Send a head, a few bytes now and then, without an end; return whether the service has put an end to it soon."""
    began = time.monotonic()

    def is_soon() -> bool:
        return time.monotonic() - began < _SOON_SECONDS

    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(b"GET /api/tasks HTTP/1.1\r\nHost: localhost\r\n")
        while not until.is_set():
            writer.write(b"X-Slow: 1\r\n")
            try:
                async with asyncio.timeout(1.0):
                    await reader.read(1)
            except TimeoutError:
                continue
            else:
                return is_soon()
        return False
    except OSError:
        return is_soon()
    finally:
        writer.close()


async def never_end(port: int, until: asyncio.Event) -> bool:
    """Send a body of which nobody wants to know, a byte now and then; return whether that was ended."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(b"POST /api/nothing HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n")
        await reader.readuntil(b"}}")  # answered before its end
        while not until.is_set():
            writer.write(b"x")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    if not await reader.read(1):
                        return True
        return False
    except OSError:
        return True
    finally:
        writer.close()


async def others(url: str, warm: asyncio.Event, until: asyncio.Event) -> list[list[float]]:
    """Push, claim and settle, round after round; return how long each took once all had been done before."""
    rounds: list[list[float]] = []

    async def timed(request: Awaitable[_T]) -> _T:
        began = time.monotonic()
        answer = await request
        rounds[-1].append(time.monotonic() - began)
        return answer

    async with HttpBackend(HttpConnection(url), "good") as queue:
        await queue.create()
        while not until.is_set():
            rounds.append([])
            await timed(queue.push([Task.new(command="true")]))
            (delivery,) = await timed(queue.receive(1, None, _NOW))
            await timed(delivery.settle(Release()))
            (again,) = await timed(queue.receive(1, None, _NOW))
            await timed(again.settle(MoveToDeadLetters("failed", "by the test")))
            warm.set()
    return rounds[1:]


@pytest.mark.slow("a service and its clients, each a process")
async def test_others_are_answered_meanwhile(tmp_path: Path) -> None:
    with running(f"sqlite://{tmp_path}/jobs.db/demo", tmp_path, "--rate-limit", "100000") as server:
        await _attack(server)


async def test_a_body_of_many_values_holds_up_nobody(tmp_path: Path) -> None:
    """Whoever may send a body must not make everyone else lose a lease (S11, A8)."""
    body = b'{"tasks":[{"call":"m:f","kwargs":{"a":[' + b",".join([b"0.5"] * 900_000) + b"]}}]}"
    warm, until = asyncio.Event(), asyncio.Event()
    with running(f"sqlite://{tmp_path}/jobs.db/demo", tmp_path) as server:
        honest = asyncio.create_task(others(server.url, warm, until))
        await warm.wait()
        began = time.monotonic()
        assert await asyncio.to_thread(post, server.port, body) == 400
        large = time.monotonic() - began
        until.set()
        worst = max(seconds for round_ in await honest for seconds in round_)
        assert worst < large / 2, "it is read aside, and others are answered meanwhile"


def post(port: int, body: bytes) -> int:
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
        connection.request("POST", "/api/tasks", body, {"Content-Type": "application/json"})
        return connection.getresponse().status


async def _attack(server: HttpServer) -> None:
    assert server.process is not None
    process = psutil.Process(server.process.pid)
    warm, until = asyncio.Event(), asyncio.Event()
    honest = asyncio.create_task(others(server.url, warm, until))
    slow = [asyncio.create_task(never_finish(server.port, until)) for _ in range(SLOW)]
    slow += [asyncio.create_task(never_end(server.port, until)) for _ in range(ENDLESS)]
    chance = random.Random(8)
    answered: list[bytes] = []
    await send(server.port, [malformed(chance) for _ in range(500)], answered)  # warm
    before = process.memory_info().rss
    share = (MALFORMED - len(answered)) // SENDERS
    await asyncio.gather(
        *(send(server.port, [malformed(chance) for _ in range(share)], answered) for _ in range(SENDERS))
    )
    ended = await asyncio.gather(*slow)
    until.set()
    took = [sum(round_) for round_ in await honest]
    assert len(answered) == MALFORMED
    assert len(took) > 50
    assert max(took) < WORST_SECONDS, f"others waited {max(took):.1f} s"
    assert sum(ended) == SLOW + ENDLESS, "a head or a body without an end is not waited for"
    statuses = {answer[9:12] for answer in answered if answer}
    assert not {status for status in statuses if status.startswith(b"5")}, statuses
    assert process.memory_info().rss - before < MOST_GROWN_BYTES
    log = server.logged()
    assert "Traceback" not in log, log[-4000:]
    assert not any(b"Traceback" in answer for answer in answered)
