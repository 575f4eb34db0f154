"""More connections than the service takes: who says nothing makes room for who asks (A8)."""

import asyncio
import http.client
import logging
import resource
import socket
import ssl
import subprocess
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, closing, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from jobq.server import run_server, slow_client_limits
from jobq.server.run_server import ListenOptions
from jobq.server.slow_client_limits import MOST_CONNECTIONS
from tests.service.server import running

FILES = MOST_CONNECTIONS + 500


@pytest.fixture
def files() -> Iterator[None]:
    """As many as this test needs open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < FILES:
        pytest.skip(f"only {hard} files may be open here; this needs {FILES}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, FILES), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("files")
def test_silent_connections_keep_nobody_out(tmp_path: Path) -> None:
    """Anybody could open as many as there may be, without a token, and every other request was answered with 503."""
    with running(f"sqlite://{tmp_path}/jobs.db/demo", tmp_path, is_open=False) as server, ExitStack() as held:
        asks = held.enter_context(closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)))
        asks.request("GET", "/healthz")
        asks.getresponse().read()
        first = held.enter_context(closing(socket.create_connection(("127.0.0.1", server.port), timeout=30)))
        asks.request("GET", "/healthz")  # so that it is younger than the first that is silent
        assert asks.getresponse().read()
        for _ in range(MOST_CONNECTIONS):
            held.enter_context(closing(socket.create_connection(("127.0.0.1", server.port), timeout=30)))
        assert first.recv(1) == b"", "it has made room"
        assert server.ask("GET", "/healthz") == (200, {"status": "ok"})
        assert server.ask("GET", "/api/tasks")[0] == 401
        assert server.token_file is not None
        assert server.ask("GET", "/api/tasks", token=server.token_file.read_text())[0] == 200
        assert "Traceback" not in server.log.read_text()


def _encrypted(folder: Path) -> tuple[Path, Path]:
    certificate, key = folder / "crt", folder / "key"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", certificate, "-days", "2",
         "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"],
        check=True, capture_output=True,
    )  # fmt: skip
    return certificate, key


@pytest.mark.usefixtures("files")
def test_connections_that_say_no_hello_keep_nobody_out(tmp_path: Path) -> None:
    """With TLS they were in no count until their handshake was over, which they never began."""
    certificate, key = _encrypted(tmp_path)
    context = ssl.create_default_context(cafile=certificate)
    options = ("--certificate", str(certificate), "--key", str(key))
    with running(f"sqlite://{tmp_path}/jobs.db/demo", tmp_path, *options) as server, ExitStack() as held:

        def health() -> int:
            address = f"https://127.0.0.1:{server.port}/healthz"
            with urllib.request.urlopen(address, timeout=30, context=context) as answer:
                return int(answer.status)

        assert health() == 200
        silent = [
            held.enter_context(closing(socket.create_connection(("127.0.0.1", server.port), timeout=30)))
            for _ in range(MOST_CONNECTIONS + 1)
        ]
        assert silent[0].recv(1) == b"", "it has made room"
        assert health() == 200
        silent[-1].sendall(b"GET / HTTP/1.1\r\n\r\n")  # no hello
        assert b"" in (silent[-1].recv(100), silent[-1].recv(100))
        assert health() == 200
        assert server.stop() == 0
        assert "Traceback" not in server.log.read_text()


async def test_a_handshake_has_so_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And one that does not come holds up no other; those that are under way end with the service."""
    monkeypatch.setattr(slow_client_limits, "HANDSHAKE_SECONDS", 0.2)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*_encrypted(tmp_path))
    config = uvicorn.Config(_answers_nothing)
    config.load()
    make = partial(slow_client_limits.SlowClientProtocol, config, ServerState(), {})
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        accepting = asyncio.create_task(slow_client_limits.accept_tls(listener, context, make))
        reader, writer = await asyncio.open_connection(*listener.getsockname())
        async with asyncio.timeout(10):
            assert await reader.read() == b""
        writer.close()
        monkeypatch.setattr(slow_client_limits, "HANDSHAKE_SECONDS", 60.0)
        reader, writer = await asyncio.open_connection(*listener.getsockname())
        while not slow_client_limits.SlowClientProtocol._handshakes:
            await asyncio.sleep(0.01)
        accepting.cancel()
        async with asyncio.timeout(10):
            assert await reader.read() == b""
        writer.close()


@asynccontextmanager
async def _served(tmp_path: Path, is_encrypted: bool) -> AsyncIterator[tuple[int, ssl.SSLContext | None]]:
    """Serve an answer that fits in no buffer; say at which port, and how it is spoken to."""
    certificate, key = map(str, _encrypted(tmp_path)) if is_encrypted else (None, None)
    context = ssl.create_default_context(cafile=certificate) if is_encrypted else None
    listening = ListenOptions(host="127.0.0.1", port=0, certificate=certificate, key=key)
    listener = run_server.bound(listening)
    run_server.listen(listener, listening)
    ready, stop = asyncio.Event(), asyncio.Event()
    with listener:
        serving = asyncio.create_task(run_server.run(_answers_much, listener, listening, stop, ready.set))
        await ready.wait()
        yield listener.getsockname()[1], context
        stop.set()
        await serving


@pytest.mark.parametrize("is_encrypted", [False, True], ids=["plain", "TLS"])
async def test_who_does_not_read_makes_room_and_is_hung_up_on(
    is_encrypted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each of them asked again and again, had no answer read, and was waited for without end."""
    monkeypatch.setattr(slow_client_limits, "MOST_CONNECTIONS", 3)
    monkeypatch.setattr(slow_client_limits, "UNREAD_SECONDS", 0.1)
    async with _served(tmp_path, is_encrypted) as (port, context), asyncio.timeout(20):
        for most_unread in (10**6, 2):  # the first makes room alone
            monkeypatch.setattr(slow_client_limits, "_MOST_UNREAD", most_unread)
            held = [await _asks(port, context, times=20) for _ in range(3)]
            if most_unread > 2:
                while not await _is_answered(port, context):
                    await asyncio.sleep(0.01)
            else:
                while slow_client_limits.SlowClientProtocol._idle or not await _is_answered(port, context):
                    await asyncio.sleep(0.01)
                for reader, _ in held:
                    with suppress(ConnectionResetError):
                        assert len(await reader.read()) < 20 * len(_MUCH)
            for _, writer in held:
                writer.transport.abort()
    assert not [each for each in caplog.records if each.levelno >= logging.WARNING]


async def test_who_says_nothing_after_its_handshake_is_gone_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TLS waits for the other's goodbye: half a minute for each that is hung up on, and it counted as long."""
    monkeypatch.setattr(slow_client_limits, "MOST_CONNECTIONS", 3)
    async with _served(tmp_path, is_encrypted=True) as (port, context), asyncio.timeout(20):
        assert context is not None
        held = [await asyncio.to_thread(_shaken, port, context) for _ in range(30)]
        for _ in range(3):  # in place of those that are silent
            assert await _is_answered(port, context)
        monkeypatch.setattr(slow_client_limits, "HEAD_SECONDS", 0.1)
        held += [await asyncio.to_thread(_shaken, port, context) for _ in range(3)]
        held[-1].setblocking(False)
        while slow_client_limits.SlowClientProtocol._idle:
            await asyncio.sleep(0.01)
        for each in held:
            each.close()


def _shaken(port: int, context: ssl.SSLContext) -> ssl.SSLSocket:
    connection = socket.create_connection(("127.0.0.1", port), timeout=30)
    return context.wrap_socket(connection, server_hostname="127.0.0.1")


async def _asks(
    port: int, context: ssl.SSLContext | None, times: int
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, limit=1000)
    writer.write(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n" * times)
    await writer.drain()
    return reader, writer


async def _is_answered(port: int, context: ssl.SSLContext | None) -> bool:
    try:
        reader, writer = await _asks(port, context, times=1)
        with closing(writer):
            return (await reader.readline()).startswith(b"HTTP/1.1 200")
    except ConnectionError:
        return False


_MUCH = bytes(2**23)


async def _answers_much(_scope: Any, _receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(_MUCH))]})
    await send({"type": "http.response.body", "body": _MUCH})


async def _answers_nothing(_scope: Any, _receive: Any, _send: Any) -> None:
    raise AssertionError("nobody asks")
