"""Claims over HTTP that say what there is room for: what is refused, what a lost one holds, who does not select."""

import asyncio
import json
import random
import time
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any, Final

import aiohttp
import pytest
from aiohttp import web

from jobq.errors import BackendUnavailable, ConfigurationError
from jobq.resources.request import UNIT, Resources
from jobq.resources.room import MOST_AMOUNT, MOST_TAGS, ResourceRequest, Room, Space
from jobq.selecting import WaitingShape, waiting_shapes
from jobq.settlement import Complete
from jobq.task import Task, TaskResult
from jobq_http import HttpBackend, HttpConnection
from tests.service.server import HttpServer
from tests.support.http_proxy import HttpProxy
from tests.support.tcp_proxy import TcpProxy, TcpStrike

NOW: Final = timedelta(0)
LEASE: Final = timedelta(seconds=30)
LONG: Final = timedelta(seconds=60)
MOST_SECONDS: Final = 3.0


def room(cpus: int, **more: Any) -> Room:
    space = Space(cpus=cpus * UNIT)
    return Room(free=space, total=space, **more)


@pytest.mark.parametrize(
    ("given", "where"),
    [
        ([], "room"),
        ("all", "room"),
        ({"whole": {}}, "room.whole"),
        ({"free": 4}, "room.free"),
        ({"free": {"free": {"cpus": 1}}}, "room.free.free"),
        ({"free": {"cpus": -1}}, "room.free.cpus"),
        ({"free": {"cpus": 0.5}}, "room.free.cpus"),
        ({"free": {"cpus": True}}, "room.free.cpus"),
        ({"free": {"cpus": 1e300}}, "room.free.cpus"),
        ({"total": {"mem": 2**63}}, "room.total.mem"),
        ({"total": {"gpus": [UNIT] * 1_000_000}}, ""),  # too many values of any request
        ({"total": {"gpus": [UNIT]}}, "room.total.gpus"),
        ({"total": {"parts": {"0": UNIT}}}, "room.total.parts"),
        ({"tags": ["a b"]}, "room.tags.0"),
        ({"tags": ["a100\n"]}, "room.tags.0"),
        ({"tags": ["a"] * (MOST_TAGS + 1)}, "room.tags"),
        ({"counts_slots": 1}, "room.counts_slots"),
        ({"reserves_after": -1}, "room.reserves_after"),
        ({"reserves_after": 1e300}, "room.reserves_after"),
        ({"reserves_after": 10**400}, ""),  # no number of JSON, as we read it; so below
        ({"reserves_after": float("nan")}, ""),
        ({"reserves_after": float("inf")}, ""),
    ],
)
def test_a_room_that_is_none_is_refused_by_name(server: HttpServer, queue: str, given: object, where: str) -> None:
    status, answer = server.ask("POST", f"/api/tasks/next?queue={queue}", {"room": given})
    assert status == (413 if answer["error"]["code"] == "too_large" else 400), answer
    assert answer["error"]["message"].startswith(where and f"{where}: "), answer
    assert len(answer["error"]["message"]) < 300
    assert "incident" not in server.logged()


async def test_the_largest_room_is_taken(near: HttpBackend) -> None:
    """What a worker can say, the service takes."""
    space = Space(cpus=MOST_AMOUNT, mem=MOST_AMOUNT, gpus=MOST_AMOUNT, parts=MOST_AMOUNT)
    tags = [f"tag-{number}" for number in range(MOST_TAGS)]
    largest = Room(free=space, total=space, tags=tags, counts_slots=True, reserves_after=0.0)
    await near.push([Task.new(command="true", cpus=1, gpus=1, needs=["tag-7"]), Task.new(command="true", gpus=2)])
    assert len(await near.receive_fitting(largest, 2, LEASE, NOW)) == 2


async def test_what_waits_is_counted(near: HttpBackend) -> None:
    asked: list[dict[str, Any]] = [{"cpus": 2, "mem": "1G"}, {"gpus": 1, "needs": ["eu", "a100"]}, {}, {}]
    await near.push([Task.new(command="true", **each) for each in asked])
    wanted = [
        WaitingShape(request=ResourceRequest(), count=2),
        WaitingShape(request=ResourceRequest(Resources(cpus=2000, mem=1024**3)), count=1),
        WaitingShape(request=ResourceRequest(Resources(gpus=1000), ("a100", "eu")), count=1),
    ]
    assert sorted(await near.waiting_shapes(), key=repr) == sorted(wanted, key=repr)


async def test_a_claim_that_was_lost_comes_first_whatever_the_room_is_now(
    near: HttpBackend, far: HttpBackend, proxy: TcpProxy
) -> None:
    """It is held for this worker already, and would come back only with its lease, at the cost of a delivery."""
    await near.push([Task.new(command="true", id="large", cpus=4), Task.new(command="true", id="small", cpus=1)])
    await far.stats()
    proxy.strike(TcpStrike.LOSE_ANSWER, lambda sent: b"/api/tasks/next" in sent)
    with pytest.raises(BackendUnavailable):
        await far.receive_fitting(room(4), 1, LEASE, NOW)
    (large,) = await far.receive_fitting(room(1), 1, LEASE, NOW)
    (small,) = await far.receive_fitting(room(1), 1, LEASE, NOW)
    assert [(each.id, each.deliveries) for each in (large, small)] == [("large", 1), ("small", 1)]


@pytest.mark.parametrize("passes_on", [True, False], ids=["at once", "behind a proxy that keeps it"])
async def test_a_claim_that_is_cut_costs_neither_time_nor_a_lease(
    server: HttpServer, near: HttpBackend, queue: str, passes_on: bool
) -> None:
    """A worker gives up a claim when something is freed, wherever that is on its way, and asks with what is free."""
    chance = random.Random(26)
    async with (
        HttpProxy(server.port) as proxy,
        HttpBackend(HttpConnection(server.url if passes_on else f"http://127.0.0.1:{proxy.port}"), queue) as worker,
    ):
        for number in range(20):
            waiting = asyncio.create_task(worker.receive_fitting(room(1), 1, LEASE, LONG))
            await asyncio.sleep(0.05)
            pushing = asyncio.create_task(near.push([Task.new(command="true", id=f"t{number}", cpus=1)]))
            await asyncio.sleep(chance.uniform(0, 0.02))
            began = time.monotonic()
            waiting.cancel()
            await asyncio.wait([waiting])
            found = [] if waiting.cancelled() else waiting.result()
            (held,) = found or await worker.receive_fitting(room(2), 1, LEASE, LONG)
            assert time.monotonic() - began < MOST_SECONDS
            assert held.id == f"t{number}"
            assert held.deliveries - 1 == held.task.counters.ends, "no crash is counted"
            await held.settle(Complete(TaskResult()))
            await pushing


async def test_who_leaves_takes_nothing_more(server: HttpServer, near: HttpBackend, queue: str) -> None:
    """It asks for what a poll holds that it gave up, and for nothing else."""
    async with HttpBackend(HttpConnection(server.url), queue) as worker:
        waiting = asyncio.create_task(worker.receive_fitting(room(1), 1, LEASE, LONG))
        await asyncio.sleep(0.2)
        waiting.cancel()
        await asyncio.sleep(0.5)  # the service has heard it
        await near.push([Task.new(command="true"), Task.new(command="true", cpus=1)])
    assert [each.deliveries for each in await near.peek(10)] == [0, 0]


@pytest.fixture
async def before(server: HttpServer, queue: str) -> AsyncIterator[HttpBackend]:
    """The same service as of a store that does not select."""
    headers = {"Jobq-Service": "1"}

    async def answer(request: web.Request) -> web.Response:
        body = await request.read()
        refused: tuple[int, str, str] | None = None
        if request.path.endswith("/shapes"):
            refused = 404, "no_such_path", "there is nothing here; /openapi.json has what there is"
        elif request.path == "/api/tasks/next" and "room" in json.loads(body):
            refused = 400, "malformed_request", "room: Extra inputs are not permitted"
        if refused is not None:
            status, code, message = refused
            error = {"error": {"code": code, "message": message}}
            return web.json_response(error, status=status, headers=headers)
        sent = {"Content-Type": "application/json"} if body else {}
        url = f"{server.url}{request.path_qs}"
        async with session.request(request.method, url, data=body or None, headers=sent) as answered:
            return web.Response(status=answered.status, body=await answered.read(), headers=headers)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app)
    async with aiohttp.ClientSession() as session:
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        port = runner.addresses[0][1]
        try:
            async with HttpBackend(HttpConnection(f"http://127.0.0.1:{port}"), queue) as made:
                yield made
        finally:
            await runner.cleanup()


async def test_a_service_that_does_not_select_hands_out_what_comes_first(
    near: HttpBackend, before: HttpBackend
) -> None:
    """The worker sees to what does not fit; and is not told that the service counts what waits."""
    await near.push([Task.new(command="true", id="large", cpus=4), Task.new(command="true", id="small", cpus=1)])
    assert near.capabilities.selects
    (large,) = await before.receive_fitting(room(1), 1, LEASE, NOW)
    assert (large.id, large.deliveries) == ("large", 1)
    assert not before.capabilities.selects
    (small,) = await before.receive_fitting(room(1), 1, LEASE, NOW)
    assert small.id == "small"
    with pytest.raises(ConfigurationError, match="does not tell tasks apart"):
        await waiting_shapes(before)
    with pytest.raises(ConfigurationError, match="the service is older"):
        await before.waiting_shapes()


async def test_a_client_that_says_no_room_gets_what_comes_first(server: HttpServer, near: HttpBackend) -> None:
    await near.push([Task.new(command="true", id="large", cpus=4), Task.new(command="true", id="small", cpus=1)])
    claim = {"max_tasks": 2, "lease_seconds": 30.0, "raw": True}
    held = server.ask("POST", f"/api/tasks/next?queue={near.name}", claim)[1]["tasks"]
    assert [each["id"] for each in held] == ["large", "small"]
