"""The generator: three replicas behind a round-robin proxy tell one truth, and a stop may reach any of them."""

import asyncio
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from jobq.server.load_generator import Wanted
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


@pytest.mark.night("three services and their generators: 12 s")
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


def test_lengths_are_random_and_those_of_a_task_always_the_same(server: HttpServer) -> None:
    """Two runners, or a lost answer, add a task twice: another payload under its id would be an error (S8)."""
    request = {"rate": 100.0, "total": 20, "min_seconds": 1.5, "max_seconds": 2.5}
    assert server.ask("POST", "/api/generator/start", {"min_seconds": 3.0, "max_seconds": 2.5})[0] == 400
    told = server.ask("POST", "/api/generator/start", request)[1]
    assert (told["command"], told["max_seconds"]) == ("sleep {seconds}", 2.5)
    end = time.monotonic() + 20
    while server.ask("GET", "/api/generator")[1]["pushed"] < 20:
        assert time.monotonic() < end
        time.sleep(0.05)
    claimed = server.ask("POST", "/api/tasks/next", {"max_tasks": 100})[1]["tasks"]
    commands = {each["id"]: each["task"]["command"] for each in claimed if each["id"].startswith("gen-")}
    seconds = [float(command.removeprefix("sleep ")) for command in commands.values()]
    assert len(set(seconds)) > 15
    assert all(1.5 <= each <= 2.5 for each in seconds)
    again, run = Wanted(command="sleep {seconds}", min_seconds=1.5, max_seconds=2.5), told["run"]
    assert commands == {f"gen-{run}-{number}": again.task(run, number).command for number in range(20)}
