"""Claims over the wire: nothing is taken twice, too large to arrive, or kept by who left; and no stranger answers."""

import asyncio
import json
import math
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from jobq.errors import BackendUnavailable, PushUnknown, SettlementUnknown
from jobq.settlement import Complete, Release
from jobq.task import Task, TaskResult
from jobq_http import HttpBackend, HttpConnection
from jobq_http.delivery import HttpDelivery
from tests.service.server import HttpServer
from tests.support.http_proxy import HttpProxy
from tests.support.tcp_proxy import TcpProxy, TcpStrike

if TYPE_CHECKING:
    from collections.abc import Awaitable

NOW = timedelta(0)
LEASE = timedelta(seconds=30)


async def test_several_receivers_of_one_handle_take_nothing_from_each_other(near: HttpBackend) -> None:
    """S4: a poll that waits, or whose answer is on its way, is no former one; each task goes to one of them, once."""
    pushed = [f"t{number}" for number in range(40)]
    received: list[str] = []

    async def receive() -> None:
        while len(received) < len(pushed):
            for held in await near.receive(2, LEASE, timedelta(seconds=0.5)):
                received.append(held.id)
                await asyncio.sleep(0.01)
                await held.settle(Complete(TaskResult(exit_code=0)))

    async def push() -> None:
        for id_ in pushed:
            await near.push([Task.new(command="true", id=id_)])
            await asyncio.sleep(0.02)

    await asyncio.gather(push(), *(receive() for _ in range(4)))
    assert sorted(received) == sorted(pushed)


@pytest.mark.parametrize("status", [200, 202, 404, 409, 503])
async def test_what_a_proxy_says_in_place_of_the_service_counts_for_nothing(status: int) -> None:
    """A bare 200 is no success, a bare 404 or 409 no loss of the lease."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(65536)
        body = b'{"ids":["a"],"tasks":[],"accepted":true}'
        writer.write(b"HTTP/1.1 %d Fine\r\nContent-Type: application/json\r\n" % status)
        writer.write(b"Content-Length: %d\r\nConnection: close\r\n\r\n" % len(body) + body)
        writer.close()

    stranger = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = stranger.sockets[0].getsockname()[1]
    async with stranger, HttpBackend(HttpConnection(f"http://127.0.0.1:{port}"), "q") as queue:
        calls: list[tuple[type[Exception], Awaitable[Any]]] = [
            (PushUnknown, queue.push([Task.new(command="true")])),
            (BackendUnavailable, queue.receive(1, LEASE, NOW)),
            (BackendUnavailable, queue.stats()),
            (SettlementUnknown, queue.leases.release("one", 1)),
        ]
        for error, call in calls:
            with pytest.raises(error, match="not from a jobq service"):
                await call


async def test_an_answer_that_is_too_large_to_arrive_is_asked_for_in_parts(far: HttpBackend, proxy: TcpProxy) -> None:
    """A hundred tasks of 1 MB over a slow link: each claim took over what the last one held, and none ever arrived."""
    ids = await far.push([Task.new(command="true") for _ in range(8)])
    proxy.strike(TcpStrike.LOSE_ANSWER, lambda sent: b'"max_tasks":8,' in sent, count=math.inf)
    with pytest.raises(BackendUnavailable):
        await far.receive(8, LEASE, NOW)
    found = await far.receive(8, LEASE, NOW)
    found += await far.receive(8 - len(found), LEASE, NOW)
    assert sorted(each.id for each in found) == sorted(ids)
    assert all(each.deliveries == 1 for each in found), "they were held all the time"
    await far.push([Task.new(command="true") for _ in range(12)])
    assert [len(await far.receive(12, LEASE, NOW)) for _ in range(2)] == [5, 6], "it dares more, by and by"


async def test_s7_who_leaves_gives_back_what_a_poll_that_it_gave_up_has_claimed(
    server: HttpServer, near: HttpBackend, queue: str
) -> None:
    """A worker that stops puts its task back, and its own poll, whose end a proxy did not pass on, took it again."""
    async with HttpProxy(server.port) as proxy:
        async with HttpBackend(HttpConnection(f"http://127.0.0.1:{proxy.port}"), queue) as worker:
            await near.push([Task.new(command="true") for _ in range(3)])
            helds = await worker.receive(3, LEASE, NOW)
            polling = asyncio.create_task(worker.receive(3, LEASE, timedelta(seconds=15)))
            async with asyncio.timeout(10):
                while sum(request.path == "/api/tasks/next" for request in proxy.requests) < 2:
                    await asyncio.sleep(0.01)
            polling.cancel()
            await asyncio.gather(*(held.settle(Release()) for held in helds))
            async with asyncio.timeout(10):
                while (await near.stats()).leased == 0:  # by that poll
                    await asyncio.sleep(0.01)
        assert (await near.stats()).visible == 3
        await near.push([Task.new(command="true")])
        assert (await near.stats()).visible == 4, "that poll waits no more"


async def test_who_puts_back_sends_counters_and_no_task(server: HttpServer, near: HttpBackend, queue: str) -> None:
    """Who may settle cannot change what runs."""
    await near.push([Task.new(command="true", id="old")])
    (held,) = await near.receive(1, LEASE, NOW)
    assert isinstance(held, HttpDelivery)
    task = json.loads(held.task.requeued(failures=1).encode())
    receipt = {"receipt": held._receipt}
    for counted, message in [
        ({}, "counters: Field required"),
        ({"counters": task["counters"], "task": task}, "task: Extra inputs are not permitted"),
        ({"task": task}, "counters: Field required"),
        ({"counters": {"ends": -1}}, "counters.ends: "),
    ]:
        status, refused = server.ask("PUT", f"/api/tasks/old/requeue?queue={queue}", receipt | counted)
        assert (status, message in refused["error"]["message"]) == (400, True), refused
