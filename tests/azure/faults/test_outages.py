"""A real worker through a service that goes silent, away or busy: P1, L4, S4; the leases are the service's own."""

import math

import pytest

from jobq.task import Task
from tests.azure.stage import SHORT, Stage, ended, eventually, is_update
from tests.support.http_proxy import Strike
from tests.ticking import TICKS, is_alive, last_tick

pytestmark = pytest.mark.check

_LEASE_SECONDS = 4.0


@pytest.mark.slow("waits for outages and leases of Azurite")
@pytest.mark.parametrize("outage", ["black hole", "refusal"])
async def test_task_is_dead_before_its_lease_ends(stage: Stage, outage: str) -> None:
    await stage.backend.push([Task.new(command=TICKS)])
    worker = await stage.start("worker", **SHORT)
    await stage.proxy.until(lambda: any(each.status == 204 for each in stage.proxy.requests if is_update(each)))
    if outage == "black hole":
        stage.proxy.strike(Strike.HANG, count=math.inf)
    else:
        await stage.proxy.refuse()
    leader = stage.folder / "leader"
    await eventually(lambda: not is_alive(leader))
    # The lease was counted by the service from some moment after this one.
    granted = max(each.began for each in stage.proxy.requests if is_update(each) and each.status == 204)
    assert last_tick(stage.folder) < granted + _LEASE_SECONDS - 0.5, "the task lived into the margin of its lease"
    assert (stage.folder / "starts").read_text() == "start\n"
    await stage.proxy.heal()
    result = await ended(worker)
    assert result.code == 0, result.err
    assert (stage.folder / "starts").read_text() == "start\nstart\n"
    assert await stage.total() == 0


async def test_storm_of_503_loses_no_lease(stage: Stage) -> None:
    # Issue 5, item 5: throttling backs off without losing leases.
    await stage.backend.push([Task.new(command="echo start >> starts; until [ -e go ]; do sleep 0.05; done")])
    worker = await stage.start("worker", **SHORT)
    await stage.proxy.until(lambda: any(each.status == 204 for each in stage.proxy.requests if is_update(each)))
    for round_ in range(3):  # every second request is refused
        stage.proxy.strike(Strike.BUSY, count=1)
        renewed = _renewed(stage)
        await stage.proxy.until(lambda: _refused(stage) > round_ and _renewed(stage) > renewed)  # noqa: B023 - waited for
    stage.proxy.strike(Strike.BUSY, "DELETE", count=3)
    (stage.folder / "go").touch()
    result = await ended(worker)
    assert result.code == 0, result.err
    assert (stage.folder / "starts").read_text() == "start\n", "a lease was lost"
    assert [each.status for each in stage.proxy.seen("DELETE")] == [503, 503, 503, 204]
    assert await stage.total() == 0


@pytest.mark.parametrize("strike", [Strike.TIME_OUT, Strike.BREAK])
async def test_a_finished_task_is_deleted_though_the_service_stumbles(stage: Stage, strike: Strike) -> None:
    """S5: after one 500 of the delete it ran again at the end of its lease, whatever was left of that."""
    await stage.backend.push([Task.new(command="echo start >> starts")])
    stage.proxy.strike(strike, "DELETE", count=3)
    result = await stage.run("worker", **SHORT)
    assert result.code == 0, result.err
    assert (stage.folder / "starts").read_text() == "start\n"
    assert await stage.total() == 0


def _renewed(stage: Stage) -> int:
    return sum(each.status == 204 for each in stage.proxy.requests if is_update(each))


def _refused(stage: Stage) -> int:
    return sum(each.status == 503 for each in stage.proxy.requests)


async def test_storm_of_503_on_receives_is_lived_through(stage: Stage) -> None:
    await stage.pushed(3)
    stage.proxy.strike(Strike.BUSY, "GET", "/messages", count=2)
    result = await stage.run("worker", **SHORT)
    assert result.code == 0, result.err
    assert await stage.total() == 0


async def test_one_request_that_is_never_answered_costs_no_lease(stage: Stage) -> None:
    # Renewals form a chain: one that hangs must not hold up the next until the lease is over.
    await stage.backend.push([Task.new(command="echo start >> starts; until [ -e go ]; do sleep 0.05; done")])
    worker = await stage.start("worker", **(SHORT | {"JOBQ_VISIBILITY_TIMEOUT": "8s"}))
    await stage.proxy.until(lambda: _renewed(stage) > 0)
    stage.proxy.strike(Strike.HANG, "PUT")
    renewed = _renewed(stage)
    await stage.proxy.until(lambda: _renewed(stage) > renewed)
    (stage.folder / "go").touch()
    result = await ended(worker)
    assert result.code == 0, result.err
    assert (stage.folder / "starts").read_text() == "start\n", "the lease was lost"
