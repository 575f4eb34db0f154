"""An answer has a bounded number of bytes, however large tasks and cursors are; the next goes on from there (A8)."""

import json
import threading
import time
import urllib.request
from collections.abc import Iterator
from typing import Any, Final

import pytest

from jobq.journal.store import journal_of
from jobq.servable import PAGE_BYTES
from jobq.settings import Settings
from jobq.spec import resolve
from tests.service.server import HttpServer, running
from tests.service.test_bounds import _store

_TASKS: Final = 13
_DATA: Final = "x" * 900_000
_MOST: Final = PAGE_BYTES + 2**20 + 2**16  # the last task of a page may go beyond


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def store(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[str]:
    """Return the place of the queue."""
    with _store(request.param, tmp_path_factory.mktemp("store"), request) as place:
        yield place


@pytest.fixture(scope="module")
def server(store: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpServer]:
    """Return a service whose queue holds large tasks."""
    with running(f"{store}/demo", tmp_path_factory.mktemp("large")) as made:
        for number in range(_TASKS):
            task = {"call": "os:getcwd", "kwargs": {"x": _DATA}, "id": f"t-{number:02}"}
            assert made.ask("POST", "/api/tasks", {"tasks": [task]})[0] == 202
        yield made


def _get(server: HttpServer, path: str, body: Any = None) -> bytes:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"{server.url}{path}", data, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        found: bytes = answer.read()
    return found


def _pages(server: HttpServer, path: str, name: str) -> Iterator[list[dict[str, Any]]]:
    after: str | None = ""
    while after is not None:
        text = _get(server, f"{path}{f'&after={after}' if after else ''}")
        assert len(text) <= _MOST
        page = json.loads(text)
        assert page[name]
        yield page[name]
        after = page["next"]


@pytest.mark.parametrize("path", ["/api/tasks?limit=1000", "/api/queues/demo/peek?limit=10000"])
def test_a_page_of_large_tasks_ends_and_the_next_goes_on(server: HttpServer, path: str) -> None:
    pages = list(_pages(server, path, "tasks"))
    assert len(pages) >= 3
    assert [each["id"] for page in pages for each in page] == [f"t-{number:02}" for number in range(_TASKS)]


def test_a_page_has_as_many_as_were_asked_for(server: HttpServer) -> None:
    for path in ("/api/tasks?limit=2", "/api/queues/demo/peek?limit=2"):
        assert [len(page) for page in _pages(server, path, "tasks")] == [2] * 6 + [1]


def test_the_journal_shows_large_tasks_in_pages_and_without_what_is_too_much(server: HttpServer) -> None:
    """A page of it read whole bodies without a bound in bytes: 500 MB for 500 tasks."""
    ids = [f"t-{number:02}" for number in range(_TASKS)]
    path = "/api/queues/demo/journal"
    found, page = [], server.ask("GET", f"{path}/unfinished?limit=1000")[1]["records"]
    while page:
        assert len(page) <= 5
        found += [each["id"] for each in page]
        page = server.ask("GET", f"{path}/unfinished?limit=1000&after={found[-1]}")[1]["records"]
    assert found == ids
    records = server.ask("POST", f"{path}/find", {"ids": ids})[1]["records"]
    assert sorted(each["id"] for each in records) == ids


@pytest.mark.usefixtures("server")
async def test_a_store_reads_no_more_of_large_bodies_than_a_page_has(store: str) -> None:
    async with resolve(f"{store}/demo", Settings()) as backend:
        journal = journal_of(backend)
        found = await journal.find([f"t-{number:02}" for number in range(_TASKS)])
        assert len(found) == _TASKS
        assert sum(len(each.body) for each in found) <= _MOST


def test_leases_with_large_cursors_are_several_pages(server: HttpServer) -> None:
    names = [f"lease-{number:03}" for number in range(90)]
    for name in names:
        granted = server.ask("POST", "/api/leases", {"resource": name, "ttl": 600.0})[1]
        cursor = {"resource": name, "token": granted["token"], "cursor": "\x01" * 60_000, "version": 1}
        assert server.ask("PUT", "/api/leases/cursor", cursor)[0] == 202
    found = []
    after: str | None = ""
    sizes = []
    while after is not None:
        text = _get(server, f"/api/leases?limit=1000{f'&after={after}' if after else ''}")
        page = json.loads(text)
        found += [each["resource"] for each in page["leases"]]
        sizes.append(sum(len(each["cursor"]) for each in page["leases"]))
        after = page["next"]
    assert found == names
    assert max(sizes) <= PAGE_BYTES + 2**16
    assert json.loads(_get(server, "/api/leases/released"))["leases"] == []


async def test_the_client_reads_on(server: HttpServer) -> None:
    async with resolve(f"{server.url}/demo", Settings()) as backend:
        assert len(await journal_of(backend).unfinished("", 10_000)) == _TASKS
        assert [each.id for each in await journal_of(backend).unfinished("t-01", 7)] == [
            f"t-{n:02}" for n in range(2, 9)
        ]
        assert len(await backend.peek(10_000)) == _TASKS
        assert [each.id for each in await backend.peek(7)] == [f"t-{number:02}" for number in range(7)]


def test_others_are_answered_while_one_asks_for_all_that_is_large(server: HttpServer) -> None:
    """Its own requests wait for each other; a heartbeat waits for none."""
    over = threading.Event()

    def ask_again_and_again() -> None:
        while not over.is_set():
            _get(server, "/api/tasks?limit=1000")

    threads = [threading.Thread(target=ask_again_and_again) for _ in range(6)]
    for each in threads:
        each.start()
    worst = 0.0
    for _ in range(30):
        began = time.monotonic()
        _get(server, "/healthz")
        worst = max(worst, time.monotonic() - began)
    over.set()
    for each in threads:
        each.join()
    assert worst < 1.0


@pytest.mark.parametrize("raw", [False, True])
def test_a_claim_of_large_tasks_leases_what_fits_in_its_answer(server: HttpServer, raw: bool) -> None:
    """It was bounded in tasks alone; what does not fit waits as before."""

    def waiting() -> list[str]:
        pages = _pages(server, "/api/queues/demo/peek?limit=100", "tasks")
        return [each["id"] for page in pages for each in page]

    before = waiting()
    text = _get(server, "/api/tasks/next", {"max_tasks": 100, "raw": raw})
    assert len(text) <= _MOST
    claimed = json.loads(text)["tasks"]
    assert [each["id"] for each in claimed] == before[:5]
    assert waiting() == before[5:]
    for each in claimed:
        assert server.ask("PUT", f"/api/tasks/{each['id']}/release", {"receipt": each["receipt"]})[0] == 202
