"""What is billed: the operations of a task and of an idle worker, counted at the wire."""

import itertools

import pytest

from jobq_azure.storage.poll_interval import PollInterval
from tests.azure.stage import SHORT, Stage, is_renewal
from tests.support.http_proxy import ProxiedRequest

pytestmark = pytest.mark.check

_TASKS = 60


def _looks_for_place(request: ProxiedRequest) -> bool:
    """Return whether a worker at its start sees to it that QUEUE-failed is there."""
    return request.path.endswith("-failed/messages") and request.query.get("peekonly") == "true"


async def test_two_operations_a_task_with_a_full_queue(stage: Stage) -> None:
    await stage.pushed(_TASKS)
    stage.proxy.requests.clear()
    result = await stage.run("worker", "-n", "8", **{**SHORT, "JOBQ_VISIBILITY_TIMEOUT": "60s"})
    assert result.code == 0, result.err
    assert await stage.total() == 0
    renewals = sum(is_renewal(each) for each in stage.proxy.requests)
    places = sum(map(_looks_for_place, stage.proxy.requests))
    receives, deletes = len(stage.proxy.seen("GET")) - places, len(stage.proxy.seen("DELETE"))
    assert (places, deletes) == (1, _TASKS)
    assert len(stage.proxy.requests) == receives + deletes + renewals + places
    assert receives <= _TASKS + 2, "more than the look that finds the queue empty, and the one that makes sure"


async def test_a_receive_is_shared_by_the_free_slots(stage: Stage) -> None:
    await stage.pushed(16)
    stage.proxy.requests.clear()
    result = await stage.run("worker", "-n", "32", **{**SHORT, "JOBQ_VISIBILITY_TIMEOUT": "60s"})
    assert result.code == 0, result.err
    receives = [request for request in stage.proxy.seen("GET") if "visibilitytimeout" in request.query]
    assert receives[0].query["numofmessages"] == "32"
    assert len(receives) <= 4


async def test_one_idle_poll_in_flight_and_ever_fewer(stage: Stage) -> None:
    settings = {**SHORT, "JOBQ_POLL_MAX": "2s"}
    result = await stage.run("worker", "-n", "32", "--idle-timeout", "8s", **settings)
    assert result.code == 0, result.err
    looks = [request for request in stage.proxy.requests if request.query.get("comp") == "metadata"]
    polls = [each for each in stage.proxy.requests if not _looks_for_place(each) and each not in looks]
    assert len(looks) <= 5, "one for a pause at the start, and two counts of the queue and its dead letters at the end"
    assert all(poll.method == "GET" for poll in polls), "an idle worker asks for nothing but tasks"
    for before, after in itertools.pairwise(polls):
        assert before.ended is not None
        assert before.ended <= after.began, "two polls at once"
    pauses = [after.began - before.began for before, after in itertools.pairwise(polls)]
    assert max(pauses[:3]) < 1.0
    assert 1.4 < max(pauses) < 2.5
    assert len(polls) <= 12


def test_an_idle_hour() -> None:
    polling, now, polls = PollInterval(10.0), 0.0, 0
    while now < 3600:
        polls += 1
        polling.empty(now)
        assert 0 < polling.due - now <= 10.0
        now = polling.due
    assert 360 <= polls <= 500
    polling.found()
    assert polling.due == 0.0, "back to speed at once"


async def test_size_and_peek_cost_one_or_two(stage: Stage) -> None:
    await stage.pushed(3)
    stage.proxy.requests.clear()
    assert len(await stage.backend.peek(10)) == 3
    stats = await stage.backend.stats()
    assert (stats.total, stats.dead, stats.visible) == (3, 0, None)
    assert len(stage.proxy.requests) == 3


def test_a_failed_receive_is_looked_for_one_at_a_time() -> None:
    # 32 messages may be hidden with one that the service cannot tell (L3): looks that find nothing do not count.
    polling = PollInterval(1.0)
    polling.failed(3)
    for _ in range(10):
        assert polling.most(32, 0.0) == 1
        polling.empty(0.0)
    polling.failed(1)  # the one that cannot be delivered
    assert polling.most(32, 0.0) == 1
    polling.found()
    assert polling.most(32, 0.0) == 1
    polling.found()
    assert polling.most(32, 0.0) == 32


def test_an_answer_that_cannot_be_read_is_asked_for_again_one_at_a_time() -> None:
    polling = PollInterval(1.0)
    polling.stumbled(100.0, 30.0)
    assert (polling.most(32, 159.0), polling.most(32, 161.0)) == (1, 32)


def test_no_setting_polls_without_a_pause() -> None:
    polling = PollInterval(0.0)
    polling.empty(100.0)
    assert polling.due > 100.1
