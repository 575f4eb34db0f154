"""Where AMQP's port is closed: WebSockets, through a proxy too; and what a worker does without either."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from jobq.settlement import MoveToDeadLetters
from jobq.task import Task
from jobq_azure.service_bus.backend import ServiceBusBackend
from jobq_azure.service_bus.namespace import Namespace, place_of
from jobq_azure.service_bus.options import Options
from tests.sb.stage import NOW, QUEUE, Stage, staged
from tests.service_bus.leftovers import collected

pytestmark = pytest.mark.check

_WEBSOCKET = Options(stats_seconds=0.0, websocket=True)


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    """A stage whose locks outlast a first connection on a busy machine."""
    with collected():
        async with staged(tmp_path, lock_duration=60.0) as made:
            yield made


def _closed() -> int:
    """Return a port at which nobody listens."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def _without_amqp(stage: Stage) -> str:
    return stage.emulator.connection_string.replace(f"127.0.0.1:{stage.emulator.amqp_port};", f"127.0.0.1:{_closed()};")


@asynccontextmanager
async def _proxy() -> AsyncIterator[tuple[int, list[str]]]:
    """Pass on what is asked for by its whole address; tells the port, and what was asked for."""
    asked: list[str] = []

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        method, url, version = (await reader.readline()).decode().split()
        asked.append(url)
        parts = urlsplit(url)
        there, to = await asyncio.open_connection(parts.hostname, parts.port)
        to.write(f"{method} {parts.path} {version}\r\n".encode())
        await asyncio.gather(copy(reader, to), copy(there, writer))

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1], asked
    finally:
        server.close()


async def _bury_and_look(stage: Stage) -> None:
    place = place_of("emulator", QUEUE, _without_amqp(stage), "")
    async with ServiceBusBackend(Namespace(place), _WEBSOCKET) as backend:
        await stage.pushed()
        (delivery,) = await backend.receive(1, None, NOW)
        await delivery.settle(MoveToDeadLetters("failed", "over a WebSocket"))
        (letter,) = await backend.dead_letters(10)
        assert letter.description == "over a WebSocket"
        assert await backend.redrive([letter.id]) == [letter.id]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # the SDK's, of its TLS options
async def test_burials_go_over_websockets(stage: Stage) -> None:
    await _bury_and_look(stage)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # as above
async def test_websockets_go_through_the_proxy_of_the_environment(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with _proxy() as (port, asked):
        monkeypatch.setenv(
            "HTTP_PROXY", f"http://user:word@127.0.0.1:{port}"
        )  # of the emulator's ws://; else HTTPS_PROXY
        monkeypatch.setattr("jobq.formats.proxies.proxy_bypass", lambda _host: False)
        await _bury_and_look(stage)
    assert any("/$servicebus/websocket" in url for url in asked)


async def test_without_amqp_a_task_that_failed_for_good_runs_once(tmp_path: Path) -> None:
    """It ran four times: nothing could be told of its end, so each counted as a crash."""
    async with staged(tmp_path, lock_duration=5.0) as stage:
        ran = tmp_path / "ran"
        await stage.pushed(command=f"echo run >> {ran}; false", budgets={"retries": 0})
        blocked = {"JOBQ_CONNECTION_STRING": _without_amqp(stage), "JOBQ_GUARDIAN": "off"}
        worker = await stage.start("worker", **blocked)
        assert worker.stderr is not None
        told = ""
        async with asyncio.timeout(30):
            while "will not run again" not in told:
                line = await worker.stderr.readline()
                assert line, told
                told += line.decode()
        worker.kill()
        await worker.wait()
        assert "JOBQ_SERVICE_BUS_WEBSOCKET=1" in told
        assert (ran.read_text(), stage.dead.messages()) == ("run\n", [])
        (message,) = stage.queue.messages()
        assert Task.decode(message.content.body).counters.failures == 1
        # Its next delivery, where AMQP is open again, only buries it.
        stage.queue.cancel_scheduled([message.number])
        stage.queue.send([replace(message.content, scheduled_for=None, message_id="anew")])
        async with asyncio.timeout(60):
            while not stage.dead.messages():  # what the killed one waited with may be answered first: a lock that ends
                ended = await stage.run("worker")
                assert ended.code == 0, ended.err
        assert (ran.read_text(), len(stage.dead.messages())) == ("run\n", 1)
