"""More connections than the service takes: who says nothing makes room for who asks (A8)."""

import asyncio
import http.client
import resource
import socket
import ssl
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from jobq.server import slow_client_limits
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


async def _answers_nothing(_scope: Any, _receive: Any, _send: Any) -> None:
    raise AssertionError("nobody asks")
