"""What a body may cost the service, and others who use it: time, memory and room are counted (T9, S11, A8)."""

import asyncio
import contextlib
import http.client
import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from jobq.server.shares import FairShare
from tests.cli.conftest import Jobq
from tests.service.server import HttpServer, running

pytestmark = pytest.mark.check

MIB: Final = 1024 * 1024
_HEAD: Final = (
    "POST /api/tasks HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nAuthorization: Bearer {}\r\n"
)
# Each fills a body of 16 MiB.
SMALL: Final = {
    "objects": b"{},",
    "arrays": b"[],",
    "numbers": b"1,",
    "floats": b"0.5,",
    "strings": b'"ab",',
    "escapes": b'"\\u00e9",',
    "members": b'{"a":1},',
}


@pytest.fixture(scope="module")
def tokens() -> dict[str, str]:
    return {}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, tokens: dict[str, str]) -> Iterator[HttpServer]:
    folder = Path(tmp_path_factory.mktemp("bodies"))
    spec, jobq = f"sqlite://{folder}/jobs.db/demo", Jobq(folder)
    for name in ("hostile", "stranger"):
        tokens[name] = jobq("serve", "token", "create", spec, "--scope", "enqueue").out.strip()
    with running(spec, folder) as made:
        yield made


def filled(part: bytes, size: int = 16 * MIB) -> bytes:
    head, tail = b'{"tasks":[{"call":"m:f","kwargs":{"a":[', b"0]}}]}"
    return head + part * ((size - len(head) - len(tail)) // len(part)) + tail


def post(server: HttpServer, body: bytes, token: str) -> tuple[int, float]:
    """Return the status, and how many seconds it took."""
    began = time.monotonic()
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)) as connection:
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {token}"}
        connection.request("POST", "/api/tasks", body, headers)
        answer = connection.getresponse()
        answer.read()
        return answer.status, time.monotonic() - began


def peak(server: HttpServer) -> int:
    """Return the most memory that the service has had, in bytes, and count anew."""
    assert server.process is not None
    lines = Path(f"/proc/{server.process.pid}/status").read_text().splitlines()
    Path(f"/proc/{server.process.pid}/clear_refs").write_text("5")
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


@pytest.mark.parametrize("kind", SMALL)
def test_small_values_are_counted_before_they_are_read(server: HttpServer, tokens: dict[str, str], kind: str) -> None:
    """16 MiB of them took 10 s and 900 MiB."""
    assert post(server, filled(b"1,", MIB), tokens["hostile"])[0] == 400  # warm
    peak(server)
    before = peak(server)
    status, took = post(server, filled(SMALL[kind]), tokens["hostile"])
    assert status == 413
    assert peak(server) - before < 120 * MIB
    assert took < 5.0


def test_strings_alone_take_no_longer_than_values(server: HttpServer, tokens: dict[str, str]) -> None:
    """Commas in one string had the rest looked at, twice, and none of that counted: 5 s of the reader's time."""
    body = b'["' + b"," * (2 * MIB) + b'",' + b'""' * (7 * MIB) + b"]"
    status, took = post(server, body, tokens["hostile"])
    assert status == 413
    assert took < 4.0


def test_text_that_looks_like_many_values_is_none(server: HttpServer, tokens: dict[str, str]) -> None:
    """Commas and brackets in strings are not counted."""
    tasks = [{"command": f"echo {'[{,' * 15_000}", "id": f"text-{number}"} for number in range(100)]
    assert post(server, json.dumps({"tasks": tasks}).encode(), tokens["stranger"])[0] == 202


def test_many_tasks_of_one_push_are_taken(server: HttpServer, tokens: dict[str, str]) -> None:
    tasks = [{"command": "true", "env": {"A": "1", "B": "2"}, "budgets": {"retries": 2}} for _ in range(10_000)]
    assert post(server, json.dumps({"tasks": tasks}).encode(), tokens["stranger"])[0] == 202


async def test_a_stranger_is_answered_while_one_token_sends_all_it_can(
    server: HttpServer, tokens: dict[str, str]
) -> None:
    """Three such bodies made a stranger's push wait for 64 s."""
    body = filled(b"[],", 5 * MIB)
    stranger = json.dumps({"tasks": [{"command": "x" * 20_000} for _ in range(5)]}).encode()
    sent = [asyncio.create_task(asyncio.to_thread(post, server, body, tokens["hostile"])) for _ in range(6)]
    waited = []
    while not all(each.done() for each in sent):
        status, took = await asyncio.to_thread(post, server, stranger, tokens["stranger"])
        assert status == 202
        waited.append(took)
    assert {(await each)[0] for each in sent} <= {400, 413}
    assert max(waited) < 5.0


def test_bodies_that_do_not_come_are_in_nobodys_way(server: HttpServer, tokens: dict[str, str]) -> None:
    """One token's bodies stop arriving, as many as it may have and more: another's is taken at once."""
    head = _HEAD.format(tokens["hostile"]) + f"Content-Length: {16 * MIB}\r\n\r\n"
    with contextlib.ExitStack() as stack:
        for _ in range(12):
            slow = stack.enter_context(contextlib.closing(socket.create_connection(("127.0.0.1", server.port))))
            slow.sendall(head.encode() + b" " * 200_000)
        large = json.dumps({"tasks": [{"command": "x" * 40_000} for _ in range(100)]}).encode()
        status, took = post(server, large, tokens["stranger"])
        assert (status, took < 5.0) == (202, True)
        assert post(server, b'{"tasks":[{"command":"true"}]}', tokens["hostile"])[0] == 202, (
            "what is small needs no room"
        )


def test_no_text_is_tried_again_from_within_a_string(server: HttpServer, tokens: dict[str, str]) -> None:
    """A string without an end, full of quotes: 60 KB held up the whole service, and so would a worker's task."""
    body = b'{"tasks":[' + b"[]," * 40 + b'"' + b'\\"' * 30_000 + b"\\"
    status, took = post(server, body, tokens["hostile"])
    assert status == 400
    assert took < 2.0


@pytest.mark.parametrize(
    "around", ['{"tasks":[{"command":"x",%s}]}', '{"tasks":[{"command":"x","budgets":{%s}}]}', '{"tasks":[],%s}']
)
def test_fields_that_nobody_knows_are_not_told_one_by_one(
    server: HttpServer, tokens: dict[str, str], around: str
) -> None:
    body = (around % ",".join(f'"k{number}":1' for number in range(900_000))).encode()
    peak(server)
    before = peak(server)
    status, took = post(server, body, tokens["hostile"])
    assert status == 400
    assert took < 5.0
    assert peak(server) - before < 400 * MIB


def test_the_queue_is_named_once_and_not_by_nothing(server: HttpServer, tokens: dict[str, str]) -> None:
    """Else a variable that is empty in a script would put tasks into the default queue."""
    body = {"tasks": [{"command": "true"}]}
    for query in ("?queue=", "?queue", "?queue=demo&queue=other"):
        status, answer = server.ask("POST", f"/api/tasks{query}", body, token=tokens["stranger"])
        assert (status, answer["error"]["code"]) == (400, "malformed_request")
    assert server.ask("POST", "/api/tasks?queue=demo", body, token=tokens["stranger"])[0] == 202


@pytest.mark.parametrize("where", ["header", "headers", "path"])
def test_a_head_has_32_kib_however_it_comes(server: HttpServer, where: str) -> None:
    """All in one piece it could have as much as was read at once."""
    for size, wanted in ((31 * 1024, {b"200", b"400"}), (33 * 1024, {b"431"}), (200 * 1024, {b"431"})):
        path = "/healthz?" + ("x" * size if where == "path" else "")
        lines = {"header": ["X: " + "y" * size], "headers": [f"X: {'y' * (size // 50)}"] * 50, "path": []}[where]
        head = "\r\n".join([f"GET {path} HTTP/1.1", "Host: localhost", "Connection: close", *lines, "", ""])
        with contextlib.closing(socket.create_connection(("127.0.0.1", server.port), timeout=20)) as connection:
            connection.sendall(head.encode())
            assert connection.recv(65536)[9:12] in wanted, size


async def test_room_is_shared_and_given_back() -> None:
    room, log = FairShare(10, 4), list[str]()
    go = {name: asyncio.Event() for name in "abcdef"}

    async def hold(name: str, caller: str, size: int) -> None:
        async with room.taken(caller, size):
            log.append(name)
            await go[name].wait()

    async def settled() -> str:
        for _ in range(10):
            await asyncio.sleep(0)
        return "".join(log)

    held = {name: asyncio.create_task(hold(name, *of)) for name, of in {
        "a": ("x", 3), "b": ("x", 2), "c": ("y", 4), "d": ("z", 4), "e": ("y", 1), "f": ("w", 3),
    }.items()}  # fmt: skip
    assert await settled() == "ac", "b waits for its own caller, d for room, and nobody overtakes d"
    held["d"].cancel()
    assert await settled() == "acf", "e is of a caller who has his share"
    go["a"].set()
    assert await settled() == "acfb"
    held["c"].cancel()
    assert await settled() == "acfbe"
    for event in go.values():
        event.set()
    await asyncio.gather(*held.values(), return_exceptions=True)
    async with room.taken("x", 4), room.taken("y", 4), room.taken("z", 2):
        pass
