"""A worker stays for what may be locked for nobody (L1)."""

from pathlib import Path

from jobq.testing.http_proxy import ProxiedRequest, Strike
from tests.sb.stage import Stage, staged
from tests.service_bus.leftovers import collected


def _locks(request: ProxiedRequest) -> bool:
    return request.path.endswith("/messages/head")


async def test_l1_a_worker_waits_for_what_a_lost_receive_may_have_locked(tmp_path: Path) -> None:
    """As long as the queue locks, however short a lease is asked for."""
    with collected():
        async with staged(tmp_path, lock_duration=12.0) as stage:
            await stage.pushed()
            stage.proxy.strike(Strike.LOSE_ANSWER, "POST", matches=_locks)
            result = await stage.run("worker", "-n", "1", JOBQ_VISIBILITY_TIMEOUT="4s")
            assert result.code == 0, result.err
            assert stage.queue.messages() == [], result.err


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
