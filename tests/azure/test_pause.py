"""A Storage Queue's pause: a mark in its metadata, at the wire."""

import asyncio
import logging
import time

import pytest

from jobq.pausing import Pause
from jobq_azure.storage import pause_look
from tests.azure.stage import LEASE, NOW, SHORT, Stage
from tests.support.http_proxy import Strike

_MARK = Pause(at=time.time(), by="ada@host", reason="100 %\ta  'new' driver ü")


async def test_another_worker_sees_it_with_its_next_look(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pause_look, "LOOK_SECONDS", 0.5)
    monkeypatch.setattr(pause_look, "PAUSED_SECONDS", 0.5)
    await stage.pushed(2)
    await stage.backend.stats()
    await stage.take()  # it has looked
    await stage.behind.pause(_MARK)
    await asyncio.sleep(0.6)
    assert await stage.backend.receive(1, LEASE, NOW) == []
    found = (await stage.backend.stats()).paused
    assert found == _MARK
    waiting = asyncio.create_task(stage.backend.receive(1, LEASE, 20 * LEASE))
    await asyncio.sleep(1.2)
    assert not waiting.done()
    await stage.behind.resume()
    async with asyncio.timeout(10):
        assert len(await waiting) == 1


async def test_a_look_costs_one_request_a_minute_and_none_a_task(stage: Stage) -> None:
    await stage.pushed(5)
    worker = await stage.run("worker", "-n", "1", **SHORT)
    assert worker.code == 0
    asked = [each.path for each in stage.proxy.requests if each.query.get("comp") == "metadata"]
    # At its start; at its end it counts, also the dead letters.
    assert sum(path.endswith(stage.queue) for path in asked) == 2


async def test_what_others_have_noted_of_the_queue_stays(stage: Stage) -> None:
    wire = await stage.wire()
    await wire._sdk.set_queue_metadata({"owner": "ada", "Cost_Center": "7"})
    await stage.backend.pause(_MARK)
    await stage.backend.resume()
    noted = (await wire._sdk.get_queue_properties()).metadata
    assert {name.lower(): value for name, value in (noted or {}).items()} == {"owner": "ada", "cost_center": "7"}


async def test_a_mark_that_nobody_can_read_is_a_pause(stage: Stage) -> None:
    wire = await stage.wire()
    await wire.mark("by%20hand")
    await stage.backend.stats()
    await stage.pushed()
    assert await stage.backend.receive(1, LEASE, NOW) == []
    found = (await stage.backend.stats()).paused
    assert found is not None
    assert found.reason == "by hand"


@pytest.mark.parametrize(
    "strike", [Strike.DENY, Strike.BUSY, Strike.HANG, Strike.LOSE_ANSWER, Strike.MISSING, Strike.PAGE]
)
async def test_a_look_that_fails_changes_nothing(stage: Stage, monkeypatch: pytest.MonkeyPatch, strike: Strike) -> None:
    monkeypatch.setattr(pause_look, "PAUSED_SECONDS", 0.0)
    monkeypatch.setattr(pause_look, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(pause_look, "_ANSWER_SECONDS", 0.5)
    await stage.backend.stats()
    await stage.pushed(2)
    stage.proxy.strike(strike, matches=lambda request: request.query.get("comp") == "metadata")
    await stage.take()
    await stage.behind.pause(_MARK)
    assert await stage.backend.receive(1, LEASE, NOW) == []
    stage.proxy.strike(strike, matches=lambda request: request.query.get("comp") == "metadata")
    assert await stage.backend.receive(1, LEASE, NOW) == []


async def test_who_may_look_no_more_goes_on_like_who_never_might(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It stayed paused for ever; a refusal of a moment still ends no pause (L4)."""
    monkeypatch.setattr(pause_look, "PAUSED_SECONDS", 0.0)
    monkeypatch.setattr(pause_look, "LOOK_SECONDS", 0.0)
    await stage.pushed(2)
    await stage.backend.pause(_MARK)
    stage.proxy.strike(Strike.DENY, count=100, matches=lambda request: request.query.get("comp") == "metadata")
    assert await stage.backend.receive(1, LEASE, NOW) == []
    assert await stage.backend.receive(1, LEASE, NOW) == []
    assert not caplog.text
    monkeypatch.setattr(pause_look, "DENIED_SECONDS", 0.0)
    for _ in range(2):
        await stage.take()
    assert caplog.text.count("so its pause is over here") == 1
    assert await stage.backend.paused() is None


async def test_who_may_not_look_is_told_once_where_it_asks_for_more(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(pause_look, "LOOK_SECONDS", 0.0)
    await stage.backend.stats()
    caplog.set_level(logging.INFO, "jobq_azure")
    stage.proxy.strike(Strike.DENY, count=2, matches=lambda request: request.query.get("comp") == "metadata")
    for _ in range(2):
        assert await stage.backend.receive(1, LEASE, NOW) == []
    assert caplog.text.count("so a pause is not seen here") == 1
