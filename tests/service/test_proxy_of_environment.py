"""A service elsewhere is reached by the proxy that the environment names, one on this machine never."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from jobq.errors import BackendUnavailable, ConfigurationError
from jobq.settings import Settings
from jobq.spec import resolve
from jobq.task import Task
from tests.service.server import HttpServer, running

_NAMES = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy")
_ELSEWHERE = "http://service.invalid:8000"


@pytest.fixture(autouse=True)
def _without_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in _NAMES:
        monkeypatch.delenv(name, raising=False)


@asynccontextmanager
async def _proxy(server: HttpServer | None) -> AsyncIterator[tuple[int, list[bytes]]]:
    """A proxy that has the service for each host, and keeps the heads that it was asked; without one it refuses."""
    asked: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        asked.append(head)
        if server is None:
            writer.write(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        else:
            there, back = await asyncio.open_connection("127.0.0.1", server.port)
            back.write(head.replace(_ELSEWHERE.encode(), b"", 1).replace(b"\r\n", b"\r\nConnection: close\r\n", 1))
            length = next(
                (int(line[15:]) for line in head.split(b"\r\n") if line[:15].lower() == b"content-length:"), 0
            )
            back.write(await reader.readexactly(length))
            writer.write(await there.read())
            back.close()
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as listening:
        yield listening.sockets[0].getsockname()[1], asked


async def test_a_service_is_reached_by_the_proxy_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(f"sqlite://{tmp_path}/jobs.db/demo", tmp_path, is_open=False) as server:
        assert server.token_file is not None
        settings = Settings(home=tmp_path / "other", http_token=server.token_file.read_text())
        async with _proxy(server) as (port, asked):
            monkeypatch.setenv("HTTP_PROXY", f"user:word@127.0.0.1:{port}")
            async with resolve(f"{_ELSEWHERE}/demo", settings) as backend:
                await backend.push([Task.new(command="true", id="a")])
                assert (await backend.stats()).visible == 1
            assert asked[0].startswith(f"POST {_ELSEWHERE}/api/tasks".encode())
            assert all(b"Proxy-Authorization: Basic" in head for head in asked)
            count = len(asked)
            monkeypatch.setenv("NO_PROXY", ".invalid")
            async with resolve(f"{_ELSEWHERE}/demo", settings) as backend:
                with pytest.raises(BackendUnavailable, match="cannot be reached"):
                    await backend.stats()
            assert len(asked) == count


async def test_the_owners_token_goes_by_no_proxy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(f"sqlite://{tmp_path}/jobs.db/demo", tmp_path, is_open=False) as server:
        async with _proxy(None) as (port, asked):
            monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{port}")
            async with resolve(f"{server.url}/demo", Settings(home=tmp_path)) as backend:
                assert (await backend.stats()).visible == 0
        assert asked == []


async def test_a_proxy_that_refuses_a_tunnel_was_not_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    """A push is not in doubt then: nothing of it has left this machine."""
    async with _proxy(None) as (port, asked):
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{port}")
        async with resolve("https://service.invalid/demo", Settings(http_token="secret-token")) as backend:
            with pytest.raises(BackendUnavailable, match=r"the proxy refuses \(403\); HTTPS_PROXY names it"):
                await backend.push([Task.new(command="true")])
    assert len(asked) == 1
    assert b"secret-token" not in asked[0]


async def test_a_proxy_that_does_not_answer_is_named_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    async with _proxy(None) as (port, _):
        pass
    monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{port}")
    async with resolve(f"{_ELSEWHERE}/demo", Settings()) as backend:
        with pytest.raises(BackendUnavailable, match=r"its proxy does not answer .*HTTP_PROXY names it"):
            await backend.push([Task.new(command="true")])


@pytest.mark.parametrize("address", ["http://user:canary@h:port", "socks5://h:1", "http://", "http://a canary:1"])
def test_what_is_no_address_of_a_proxy_is_said_without_it(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    monkeypatch.setenv("HTTP_PROXY", address)
    with pytest.raises(ConfigurationError, match="HTTP_PROXY is no address of a proxy") as refused:
        resolve(f"{_ELSEWHERE}/demo", Settings())
    assert "canary" not in str(refused.value)
