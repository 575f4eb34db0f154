"""A worker stays for what a receive has leased and nobody has: one that was cut short, or could not put it back."""

import asyncio
import math
from datetime import timedelta

import pytest

from jobq.backend import UNKNOWN_ID
from jobq.task import Task
from tests.azure.payloads.payload_stage import large_task
from tests.azure.stage import LEASE, SHORT, Stage, ended, eventually, is_update, make_container
from tests.support.http_proxy import ProxiedRequest, Strike


def _is_receive(request: ProxiedRequest) -> bool:
    return "numofmessages" in request.query and "peekonly" not in request.query


@pytest.mark.night("waits for the longest of leases: 20 s")
async def test_l1_a_receive_that_is_cut_short_may_have_leased_tasks(stage: Stage) -> None:
    """At the end of the last task; the worker ended with 0 while others were hidden."""
    await stage.pushed(1, "touch runs; while [ ! -e go ]; do sleep 0.1; done")
    longer = {"JOBQ_VISIBILITY_TIMEOUT": "12s"}  # than a receive that is given up is waited for
    worker = await stage.start("worker", "-n", "3", **SHORT | longer)
    await eventually((stage.folder / "runs").exists, 30)
    before = len(stage.proxy.seen("GET"))
    stage.proxy.strike(Strike.SWALLOW_ANSWER, "GET", matches=_is_receive)
    await stage.behind.push([Task.new(command="true") for _ in range(2)])
    await eventually(lambda: any(map(_is_receive, stage.proxy.seen("GET")[before:])), 30)
    (stage.folder / "go").touch()
    result = await ended(worker)
    assert result.code == 0, result.err
    assert await stage.total() == 0, result.err


async def test_l1_what_is_not_given_back_is_told_of(stage: Stage) -> None:
    """Its lease runs on, for nobody."""
    (task,) = await stage.pushed()
    stage.proxy.strike(Strike.SWALLOW_ANSWER, "GET", matches=_is_receive)
    receiving = asyncio.ensure_future(stage.backend.receive(1, LEASE, timedelta(seconds=20)))
    await eventually(lambda: bool(stage.proxy.seen("GET")), 30)
    receiving.cancel()
    await asyncio.wait([receiving])
    assert stage.backend.take_put_off() == {UNKNOWN_ID: pytest.approx(LEASE.total_seconds(), abs=2)}
    assert not stage.backend.take_put_off()
    assert (await stage.behind.peek(1)) == [], f"{task.id} is leased"


@pytest.mark.parametrize("is_refused", [False, True])
async def test_l1_what_could_not_be_put_off_comes_when_its_lease_is_over(stage: Stage, *, is_refused: bool) -> None:
    """It is hidden for longer than it was to be, which nobody waited for."""
    lease = timedelta(minutes=5)
    await make_container(stage)
    task = large_task()
    await stage.backend.push([task])
    stage.blobs.strike(Strike.BUSY, count=math.inf)
    if is_refused:
        stage.proxy.strike(Strike.BUSY, "PUT", count=math.inf, matches=is_update)
    receiving = asyncio.ensure_future(stage.backend.receive(1, lease, timedelta(0)))
    await asyncio.wait([receiving], timeout=30)
    receiving.cancel()
    await asyncio.wait([receiving])
    (until,) = stage.backend.take_put_off().values()
    assert until == pytest.approx(300 if is_refused else 30, abs=25)
