"""Pausing a queue: nothing new is handed out, and nothing else changes."""

import asyncio

from jobq.pausing import Pausable, Pause
from jobq.settlement import Complete
from jobq.testing.cases import case
from jobq.testing.harness import DONE, NOW, Bench

_MARK = Pause(at=1_700_000_000.0, by="ada@host", reason='a "new" driver: 100 % ü')
_SECONDS = 15.0  # by which who waits has its task, once the pause is over


@case("pauses")
async def paused_hands_nothing_out_and_what_runs_goes_on(bench: Bench) -> None:
    """Whoever asks gets nothing; a lease is renewed and settled, a push is taken, and all is there afterwards."""
    pushed = await bench.pushed(2)
    running = await bench.take()
    await _of(bench).pause(_MARK)
    await bench.nothing()
    other = await bench.handle()
    assert await other.receive(1, bench.lease, NOW) == [], "another handle was handed a task"
    for each in (bench.backend, other):
        assert isinstance(each, Pausable)
        assert await each.paused() is not None, "who received nothing is not told why"
    await running.renew(bench.lease)
    await running.settle(Complete(DONE))
    pushed += await bench.pushed()
    await bench.nothing()
    await _of(bench).resume()
    found = await bench.take_all(2)
    assert sorted(each.id for each in found) == sorted(each.id for each in pushed if each.id != running.id)


@case("pauses")
async def stats_say_who_has_paused_it_and_why(bench: Bench) -> None:
    """The mark is shown as it was given, by every handle; a later one replaces it; none is left of it."""
    assert (await bench.backend.stats()).paused is None
    await _of(bench).pause(_MARK)
    assert (await (await bench.handle()).stats()).paused is not None
    found = (await bench.backend.stats()).paused
    assert found is not None
    assert (found.by, found.reason) == (_MARK.by, _MARK.reason)
    await _of(bench).pause(Pause(at=_MARK.at, by="eve@host"))
    found = (await bench.backend.stats()).paused
    assert found is not None
    assert (found.by, found.reason) == ("eve@host", "")
    for by in ("eve@host", None):
        former = await _of(bench).resume()
        assert (None if former is None else former.by) == by, "the mark that was there is told"
        assert (await (await bench.handle()).stats()).paused is None


@case("pauses")
async def who_waits_has_its_task_when_the_pause_ends(bench: Bench) -> None:
    """A receive that began in the pause does not sleep through its end."""
    (pushed,) = await bench.pushed()
    await _of(bench).pause(_MARK)
    waiting = asyncio.ensure_future(bench.backend.receive(1, bench.lease, bench.harness.case_timeout))
    await bench.clock.advance(1.0)
    assert not waiting.done()
    await _of(bench).resume()
    (delivery,) = await bench.finish(waiting, _SECONDS)
    assert delivery.id == pushed.id


def _of(bench: Bench) -> Pausable:
    assert isinstance(bench.backend, Pausable)
    return bench.backend
