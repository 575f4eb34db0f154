"""What is said of an outage: one line for all, seldom again, one at its end."""

import logging

import pytest

from jobq.lease.outage import Outage
from jobq.testing.clock import VirtualClock


async def test_one_line_for_all_then_seldom_then_one(caplog: pytest.LogCaptureFixture) -> None:
    clock = VirtualClock()
    outage = Outage(clock, "queue q")
    levels = []
    for _ in range(200):
        levels += [outage.failed(who) for who in ("one task", "another", "receive")]
        await clock.advance(1.0)
    assert levels[0] == logging.WARNING
    assert set(levels) == {logging.WARNING, logging.DEBUG}
    said = [index // 3 for index, level in enumerate(levels) if level == logging.WARNING]
    assert said == [0, 30, 90], "the pause between two lines doubles"
    outage.answered("who was never refused")
    outage.answered("another")
    outage.answered("one task")
    assert [record.getMessage() for record in caplog.records] == ["queue q answers again, after 3m20s"]
    assert outage.failed("receive") == logging.WARNING, "the next one is news"


async def test_who_asks_no_more_ends_no_outage(caplog: pytest.LogCaptureFixture) -> None:
    outage = Outage(VirtualClock(), "queue q")
    outage.failed("a task")
    outage.failed("receive")
    outage.left("a task")
    outage.answered("a task")
    assert not caplog.records
    outage.answered("receive")
    assert len(caplog.records) == 1
