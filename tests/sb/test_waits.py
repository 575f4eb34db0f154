"""A worker stays for what may be locked for nobody (L1)."""

import math
from pathlib import Path

import pytest

from tests.emulators.service_bus.faults import Fault, Operation
from tests.sb.stage import Stage, staged
from tests.service_bus.leftovers import collected
from tests.support.http_proxy import ProxiedRequest, Strike

pytestmark = pytest.mark.check


def _locks(request: ProxiedRequest) -> bool:
    return request.path.endswith("/messages/head")


@pytest.mark.slow("locks of seconds on the emulator")
async def test_l1_a_worker_waits_for_what_a_lost_receive_may_have_locked(tmp_path: Path) -> None:
    """As long as the queue locks, however short a lease is asked for."""
    with collected():
        async with staged(tmp_path, lock_duration=12.0) as stage:
            await stage.pushed()
            stage.proxy.strike(Strike.LOSE_ANSWER, "POST", matches=_locks)
            result = await stage.run("worker", "-n", "1", JOBQ_VISIBILITY_TIMEOUT="4s")
            assert result.code == 0, result.err
            assert stage.queue.messages() == [], result.err


@pytest.mark.slow("locks of seconds on the emulator")
async def test_l1_a_worker_waits_for_what_a_look_beside_others_may_have_locked(stage: Stage) -> None:
    """The first one came, and the answers to the looks for more were lost."""
    await stage.pushed(2)
    first = True

    def another(request: ProxiedRequest) -> bool:
        nonlocal first
        if not _locks(request):
            return False
        was_first, first = first, False
        return not was_first

    stage.proxy.strike(Strike.LOSE_ANSWER, "POST", matches=another)
    result = await stage.run("worker", "-n", "2")
    assert result.code == 0, result.err
    assert stage.queue.messages() == [], result.err


@pytest.mark.slow("locks of seconds on the emulator")
async def test_l1_a_worker_waits_as_long_as_the_queue_locks_which_it_may_not_look_at(tmp_path: Path) -> None:
    """By what an earlier message has shown; it waited for as long as its settings say."""
    with collected():
        async with staged(tmp_path, lock_duration=14.0) as stage:
            await stage.pushed(2)
            stage.emulator.faults.plan(Fault(401), Operation.ADMIN, count=math.inf)
            receives = 0

            def second(request: ProxiedRequest) -> bool:
                nonlocal receives
                receives += _locks(request)
                return _locks(request) and receives == 2

            stage.proxy.strike(Strike.LOSE_ANSWER, "POST", matches=second)
            result = await stage.run("worker", "-n", "1", JOBQ_VISIBILITY_TIMEOUT="5s")
            assert result.code == 0, result.err
            assert stage.queue.messages() == [], result.err
