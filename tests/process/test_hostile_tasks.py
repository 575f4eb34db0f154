"""Hostile trees as tasks of a real worker, against every way in which an attempt ends: no survivor after 1 s (P1, P3).

The same trees stand against the guardian alone in tests/guardian/test_trees.py.
"""

import asyncio
import contextlib
import os
import shlex
import sqlite3
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from jobq.run.stopping import Stopping
from jobq.testing.faults import Fault
from tests.guardian.hostile import TREES
from tests.guardian.stage import gone, hostile, living, marker, trace_bytes
from tests.process.stage import Stage, stage_in, until_true

pytestmark = pytest.mark.check

KINDS = [kind for kind in TREES if kind != "idle"]
SETTINGS: dict[str, Any] = {
    # 220 processes start at once: a machine that is busy with other things must not lose the leases meanwhile.
    "visibility_timeout": timedelta(seconds=8),
    "num_workers": len(KINDS),
    "stop_grace": timedelta(seconds=0.3),
    "lock_lost_grace": timedelta(seconds=0.2),
}


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    async with stage_in(tmp_path) as stage:
        yield stage


@pytest.fixture(autouse=True)
def no_traces() -> Iterator[None]:
    yield
    for trace in Path("/tmp").glob(f"marker-{os.getpid()}-*"):
        trace.unlink()


async def push_trees(stage: Stage, **fields: Any) -> dict[str, str]:
    """Push one of each; return kind by marker."""
    marks = {marker(): kind for kind in KINDS}
    await stage.push(*[f"exec {shlex.join(hostile(kind, mark))}" for mark, kind in marks.items()], **fields)
    return marks


async def until_grown(marks: dict[str, str]) -> None:
    async def grown() -> bool:
        return all(len(living(mark)) + (trace_bytes(mark) > 0) >= TREES[kind][1] for mark, kind in marks.items())

    await until_true(grown, 30)


def survivors(marks: dict[str, str]) -> dict[str, int]:
    return {marks[mark]: count for mark, count in gone(list(marks), 1.0).items()}


@pytest.mark.parametrize("behavior", ["sigkill", "sigterm"])
async def test_p1_lock_loss(stage: Stage, behavior: str) -> None:
    """The broker answers no renewal any more: all trees are dead before their leases expire at the store."""
    marks = await push_trees(stage, budgets={"crashes": 0})
    worker = asyncio.create_task(stage.work(**SETTINGS, lock_lost_behavior=behavior))
    await until_grown(marks)
    stage.faults.always("renew", Fault.HANG)
    await stage.until(lambda: len(stage.told("task.lease_lost")) == len(KINDS), 30)
    stage.faults.clear("renew")
    assert survivors(marks) == {}
    stage.faults.release()
    await worker


async def test_p1_a_receipt_that_is_refused(stage: Stage) -> None:
    """Gone for sure: killed at once, not at the deadline."""
    marks = await push_trees(stage, budgets={"crashes": 0})
    worker = asyncio.create_task(stage.work(**SETTINGS))
    await until_grown(marks)
    with sqlite3.connect(stage.folder / "queue.db") as database:
        database.execute("UPDATE task SET receipt = 'another'")
    database.close()
    await stage.until(lambda: len(stage.told("task.lease_lost")) == len(KINDS), 30)
    assert survivors(marks) == {}
    await worker


async def test_p3_timeout(stage: Stage) -> None:
    marks = await push_trees(stage, timeout=3.0, budgets={"retries": 0})
    worker = asyncio.create_task(stage.work(**SETTINGS, max_consecutive_failures=0))
    await until_grown(marks)
    await stage.until(lambda: len(stage.told("task.timeout")) == len(KINDS), 30)
    assert survivors(marks) == {}
    report = await worker
    assert report.dead_lettered == len(KINDS)
    assert {dead.reason for dead in await stage.backend.dead_letters(100)} == {"timed_out"}


async def test_p8_stop(stage: Stage) -> None:
    stopping = Stopping()
    marks = await push_trees(stage)
    worker = asyncio.create_task(stage.worker(stopping, **SETTINGS).run())
    await until_grown(marks)
    stopping.stop("the test says so")
    report = await worker
    assert survivors(marks) == {}
    assert report.given_back == len(KINDS)


async def test_p3_cancel(stage: Stage) -> None:
    """A library's caller that cancels the worker leaves nothing behind."""
    marks = await push_trees(stage)
    worker = asyncio.create_task(stage.work(**SETTINGS))
    await until_grown(marks)
    worker.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await worker
    assert survivors(marks) == {}
