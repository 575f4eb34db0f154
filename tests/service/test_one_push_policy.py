"""The same lost answer has the same end through the library and each way of the command line (S1, S8)."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

import jobq
from jobq.errors import JobqError
from jobq_http import HttpBackend
from tests.cli.conftest import Jobq
from tests.service.server import HttpServer
from tests.support.tcp_proxy import TcpProxy, TcpStrike

Ending = tuple[int, str]  # the exit code, and the error
LINES = ("echo 1", "echo 2")
LISTED = f"async def tasks():\n    for line in {LINES!r}:\n        yield line\n"


def of_library(push: Callable[[jobq.Queue], Awaitable[object]]) -> Callable[[Path, str], Awaitable[Ending]]:
    async def pushed(_folder: Path, spec: str) -> Ending:
        async with jobq.connect(spec) as queue:
            try:
                await push(queue)
            except JobqError as error:
                return error.exit_code, type(error).__name__
        return 0, ""

    return pushed


def of_command_line(*arguments: str) -> Callable[[Path, str], Awaitable[Ending]]:
    async def pushed(folder: Path, spec: str) -> Ending:
        (folder / "lines").write_text("".join(f"{line}\n" for line in LINES))
        (folder / "listed.py").write_text(LISTED)
        result = await asyncio.to_thread(Jobq(folder), spec, *arguments, "--json", code=None)
        errors = [line for line in result.err.splitlines() if line.startswith("{")]
        return result.code, json.loads(errors[-1])["error"] if errors else ""

    return pushed


async def listed() -> AsyncIterator[str]:
    for line in LINES:
        yield line


WAYS = {
    "library, many": of_library(lambda queue: queue.push(LINES)),
    "library, iterator": of_library(lambda queue: queue.push(listed())),
    "push -c": of_command_line("push", "-c", LINES[0], "-c", LINES[1]),
    "push FILE": of_command_line("push", "lines"),
    "push --resume": of_command_line("push", "--resume", "one", "lines"),
    "push --spec": of_command_line("push", "--spec", "listed:tasks"),
    "fanout": of_command_line("fanout", "one", "--lines", "lines", "-c", 'echo "$PARAM_line"'),
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize(
    ("strike", "losses", "queued", "ending"),
    [
        (TcpStrike.LOSE_ANSWER, 1, 2, (0, "")),
        (TcpStrike.BREAK, 1, 2, (0, "")),
        (TcpStrike.LOSE_ANSWER, 2, 2, (75, "PushUnknown")),
        (TcpStrike.BREAK, 2, 0, (75, "PushUnknown")),
    ],
)
async def test_a_service_that_knows_ids_again_is_asked_once_more(
    near: HttpBackend,
    proxy: TcpProxy,
    tmp_path: Path,
    way: Callable[[Path, str], Awaitable[Ending]],
    strike: TcpStrike,
    losses: int,
    queued: int,
    ending: Ending,
) -> None:
    """Lost twice it is unknown, and nothing is told as queued."""
    proxy.strike(strike, lambda sent: b'{"tasks":[' in sent, count=losses)
    assert await way(tmp_path, f"http://127.0.0.1:{proxy.port}/{near.name}") == ending
    assert proxy.struck == losses
    assert (await near.stats()).visible == queued


async def test_an_iterator_of_large_tasks_goes_in_several(near: HttpBackend, server: HttpServer) -> None:
    async def large() -> AsyncIterator[str]:
        for _ in range(200):
            yield "x" * 100_000

    async with jobq.connect(f"{server.url}/{near.name}") as queue:
        assert await queue.push(large()) == 200
    assert (await near.stats()).visible == 200
