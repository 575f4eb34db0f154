"""A push to a Storage Queue, a request for each task, that is interrupted in its midst (S1, S8)."""

import math
import signal

import pytest

from tests.azure.stage import Stage, ended
from tests.support.http_proxy import Strike

pytestmark = pytest.mark.check

_LINES = 300


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
async def test_what_is_told_is_what_is_queued(stage: Stage, number: signal.Signals, code: int) -> None:
    (stage.folder / "lines").write_text("".join(f"echo {n}\n" for n in range(_LINES)))
    push = await stage.start("push", "lines")
    await stage.proxy.until(lambda: len(stage.proxy.seen("POST")) >= _LINES // 3)
    push.send_signal(number)
    result = await ended(push)
    assert result.code == code, result.err
    if f"queued {_LINES} tasks" in result.err:
        assert "doubt" not in result.err
        assert f"go on with: tail -n +{_LINES + 1} lines" in result.err
        assert await stage.total() == _LINES
    else:  # a machine so slow that the service has not taken them all in time
        assert "may or may not be" in result.err
        assert "no line is queued" not in result.err


async def test_what_is_never_answered_is_in_doubt(stage: Stage) -> None:
    (stage.folder / "lines").write_text("".join(f"echo {n}\n" for n in range(5)))
    stage.proxy.strike(Strike.HANG, "POST", count=math.inf)
    push = await stage.start("push", "lines")
    await stage.proxy.until(lambda: len(stage.proxy.seen("POST")) == 5)
    push.send_signal(signal.SIGINT)
    result = await ended(push)
    assert result.code == 130, result.err
    assert "queued 0 tasks" in result.err
    assert "in doubt: 5 tasks (" in result.err
    assert "the lines 1 to 5 may or may not be queued; after that go on with: tail -n +6 lines" in result.err
    assert "no line is queued" not in result.err


async def test_a_lost_answer_names_its_line_and_the_rest(stage: Stage) -> None:
    (stage.folder / "lines").write_text("".join(f"echo {n}\n" for n in range(5)))
    stage.proxy.strike(Strike.LOSE_ANSWER, "POST", matches=lambda request: b"echo 2" in request.body)
    result = await stage.run("push", "lines")
    assert result.code == 75, result.err
    assert "in doubt: 1 task (" in result.err
    assert "of the lines 1 to 5 none is queued, but for these, which may or may not be: 3; after that" in result.err
    assert await stage.total() == 1


@pytest.mark.slow("waits for outages and leases of Azurite")
async def test_a_walk_names_what_is_in_doubt_too(stage: Stage) -> None:
    """Running it again queues a page again under the same ids, which a Storage Queue takes twice."""
    (stage.folder / "lines").write_text("".join(f"echo {n}\n" for n in range(5)))
    stage.proxy.strike(Strike.HANG, "POST", "/messages", count=math.inf)
    push = await stage.start("push", "--resume", "one", "lines")
    await stage.proxy.until(lambda: len(stage.proxy.seen("POST", "/messages")) == 5)
    push.send_signal(signal.SIGINT)
    result = await ended(push)
    assert result.code == 130, result.err
    assert "queued 0 tasks" in result.err
    assert "in doubt: 5 tasks (" in result.err
    assert "run the same command again to go on" in result.err
