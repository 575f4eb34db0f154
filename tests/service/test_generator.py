"""The generator: three replicas behind a round-robin proxy tell one truth, and a stop may reach any of them."""

import asyncio
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.postgres.server import Database
from tests.service.round_robin import RoundRobin
from tests.service.server import HttpServer, running


class Asked:
    """Asks over the proxy, a new connection each time: so each answer is another replica's."""

    def __init__(self, proxy: RoundRobin) -> None:
        self._url = HttpServer("", Path())
        self._url.port = proxy.port

    async def __call__(self, method: str, path: str, body: object = None, code: int = 200) -> Any:
        status, value = await asyncio.to_thread(self._url.ask, method, f"/api/generator{path}", body)
        assert status == code, value
        return value

    async def until(self, wanted: Callable[[Any], bool], seconds: float = 20.0) -> Any:
        """Ask until three answers in a row, one of each replica, are as wanted."""
        end, seen = time.monotonic() + seconds, 0
        while seen < 3:
            assert time.monotonic() < end, await self("GET", "")
            found = await self("GET", "")
            seen = seen + 1 if wanted(found) else 0
            if not seen:
                await asyncio.sleep(0.1)
        return found


async def test_three_replicas_tell_one_truth(postgres: Database, tmp_path: Path) -> None:
    database = postgres.fresh()
    with ExitStack() as stack:
        servers = [stack.enter_context(running(database.spec("demo"), tmp_path))]  # it makes the tables
        more = [HttpServer(database.spec("demo"), tmp_path) for _ in range(2)]
        for server in more:
            stack.callback(server.kill)
        await asyncio.gather(*(asyncio.to_thread(server.start) for server in more))
        servers += more
        async with RoundRobin([server.port for server in servers]) as proxy:
            ask = Asked(proxy)
            assert (await ask("GET", ""))["state"] == "stopped"
            await ask("POST", "/start", {"rate": 50.0, "command": "true"}, 202)
            first = await ask.until(lambda told: told["state"] == "running" and told["pushed"] >= 10)
            runners = {(await ask("GET", ""))["runner"] for _ in range(6)}
            assert runners == {first["runner"]}, "exactly one replica runs it, and all say which"
            await ask("POST", "/stop", None, 202)
            stopped = await ask.until(lambda told: told["state"] == "stopped")
            ids = [row[0] for row in database.run("SELECT id FROM jobq.submission")]
            assert len(ids) == stopped["pushed"], "what was added is what every replica tells"
            await asyncio.sleep(1.0)
            assert database.run("SELECT count(*) FROM jobq.submission") == [(len(ids),)], "it has stopped"

            # The replica that runs it is killed: another one goes on where it was, and adds exactly what is wanted.
            await ask("POST", "/start", {"rate": 50.0, "command": "true", "total": 148}, 202)
            running_on = await ask.until(lambda told: told["state"] == "running" and told["pushed"] >= 10)
            victim = next(server for server in servers if _replica(server) == running_on["runner"])
            victim.kill()
            proxy.ports.remove(victim.port)
            await ask.until(lambda told: told["pushed"] == 148 and told["state"] == "stopped", 40.0)
            assert database.run("SELECT count(*) FROM jobq.submission WHERE id LIKE 'gen-2-%'") == [
                (148,)
            ]  # no multiple of what it adds at once
            assert min(proxy.served.values()) > 5, "void: each replica was asked"


def _replica(server: HttpServer) -> str:
    return f"replica {server.ask('GET', '/readyz')[1]['replica']}"
