"""Refusals in the audit: the first of each kind, then their number each minute (A8)."""

import asyncio
import json
import logging
from typing import Any, cast

import pytest

from jobq.server import refusals
from jobq.server.request import RequestCall, ServiceState


def call(caller: str = "token", address: str = "here", queue: str = "demo") -> RequestCall:
    return RequestCall(
        cast("ServiceState", None), queue, {}, {}, None, caller, address, asyncio.Event(), lambda *_: False
    )


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Any:
    caplog.set_level(logging.INFO, "jobq.audit")
    names = ("caller", "from", "did", "status", "queue", "queues", "more")

    def read() -> list[tuple[Any, ...]]:
        found = [json.loads(record.getMessage()) for record in caplog.records if record.name == "jobq.audit"]
        caplog.clear()
        return [tuple(line[name] for name in names if name in line) for line in found]

    return read


async def test_the_first_is_written_and_the_rest_of_its_minute_counted(lines: Any) -> None:
    noted = refusals.Refusals(seconds=0.05)
    for queue in ("demo", "demo", "other"):
        noted.note(call(queue=queue), "POST /api/tasks", 403)
    assert lines() == [("token", "here", "POST /api/tasks", 403, "demo")]
    noted.note(call(), "POST /api/tasks", 401)
    noted.note(call("another"), "POST /api/tasks", 403)
    noted.note(call(), "GET /api/tasks", 403)
    noted.note(call(address="there"), "POST /api/tasks", 403)
    assert len(lines()) == 4, "each of these is another"
    found: list[Any] = []
    async with asyncio.timeout(10):
        while not found:
            await asyncio.sleep(0.01)
            found = lines()
    assert found == [("token", "here", "POST /api/tasks", 403, ["demo", "other"], 2)]
    noted.note(call(), "POST /api/tasks", 403)
    assert lines() == [("token", "here", "POST /api/tasks", 403, "demo")], "a new minute"
    noted.end()
    assert lines() == [], "all are written"


async def test_strangers_without_number_take_no_memory_without_bound(
    lines: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refusals, "_MOST_KINDS", 3)
    noted = refusals.Refusals()
    for number in range(100):
        noted.note(call("-", f"10.0.0.{number}"), "GET /api/tasks", 401)
    noted.note(call("-", "10.0.0.0"), "GET /api/tasks", 401)
    noted.note(call("token"), "GET /api/tasks", 401)
    assert len(lines()) == 4, "who has a token is not hidden by them"
    noted.end()
    assert lines() == [
        ("-", "10.0.0.0", "GET /api/tasks", 401, ["demo"], 1),
        ("-", "-", "others", 0, [], 97),
    ]
