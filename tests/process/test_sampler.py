"""The sampler of usage alone: what it looks at, when, and what it makes of a look that fails."""

import asyncio
import subprocess
import threading
from collections.abc import Iterable
from typing import Any

import pytest

from jobq.run.process import process_table
from jobq.run.process.process_table import ProcessTree
from jobq.run.process.usage import UsageSampler
from tests.process.stage import until_measured, until_true


class _Process:
    """A leader that the test starts itself."""

    def __init__(self) -> None:
        self.popen = subprocess.Popen(["sleep", "1000"])
        self.pid = self.popen.pid

    def has_exited(self) -> bool:
        return self.popen.poll() is not None


async def test_what_has_ended_is_not_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    """P4: its number may be another's; also when it ended while the look was under way."""
    looking, may_look = threading.Event(), threading.Event()
    trees = process_table.trees

    def slow(leaders: Iterable[int]) -> dict[int, ProcessTree]:
        wanted = list(leaders)
        assert wanted, "nothing runs while nothing is watched"
        looking.set()
        assert may_look.wait(20)
        return trees(wanted)

    monkeypatch.setattr("jobq.run.process.process_table.trees", slow)
    sampler = UsageSampler()
    ended, killed, lives = _Process(), _Process(), _Process()
    watches = [sampler.watch(process) for process in (ended, killed, lives)]  # type: ignore[arg-type] # all it needs
    running = asyncio.create_task(sampler.run())
    assert await asyncio.to_thread(looking.wait, 20)
    watches[0].end(None)
    killed.popen.kill()
    killed.popen.wait()
    may_look.set()

    async def seen() -> bool:
        return watches[2].samples > 0

    await until_true(seen)
    assert [watch.samples for watch in watches] == [0, 0, 1]
    watches[1].end(None)
    watches[2].end(None)
    passes = sampler.passes
    await asyncio.sleep(1.2)  # longer than a pause: that nothing happens can only be seen by waiting
    assert sampler.passes == passes
    running.cancel()
    for process in (ended, lives):
        process.popen.kill()
        process.popen.wait()


def test_a_number_that_was_taken_over_is_not_attributed() -> None:
    """P4: the time of birth tells."""
    process = _Process()
    watch = UsageSampler().watch(process)  # type: ignore[arg-type] # all it needs
    tree = process_table.trees([process.pid])[process.pid]
    assert watch.take(tree)
    assert not watch.take(tree._replace(created=tree.created + 1, cpu_seconds=1000.0))
    process.popen.kill()
    process.popen.wait()
    assert not watch.take(tree)
    assert (watch.end(None).cpu_seconds or 0) < 1000


async def test_a_look_that_fails_is_tried_again(monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    """L4."""
    faults = [OSError("no /proc")] * 2
    trees = process_table.trees

    def faulty(leaders: Iterable[int]) -> dict[int, ProcessTree]:
        if faults:
            raise faults.pop()
        return trees(leaders)

    monkeypatch.setattr("jobq.run.process.process_table.trees", faulty)
    sampler, process = UsageSampler(2**40), _Process()
    watch = sampler.watch(process)  # type: ignore[arg-type] # all it needs
    running = asyncio.create_task(sampler.run())
    await until_measured(sampler, lambda _: True)
    assert watch.samples
    assert caplog.text.count("cannot be measured") == 1
    running.cancel()
    process.popen.kill()
    process.popen.wait()


async def test_what_ended_during_the_closer_look_is_not_judged() -> None:
    """P7: it ended by itself, and was not killed for its memory."""
    process = _Process()
    watch = UsageSampler(limit_bytes=1).watch(process)  # type: ignore[arg-type] # all it needs
    tree = process_table.trees([process.pid])[process.pid]
    assert watch.is_suspect(tree)
    process.popen.kill()
    process.popen.wait()
    watch.judge(tree, in_use_bytes=2, cost_seconds=0.0)
    assert watch.is_suspect(tree), "it was called over its limit"


def test_a_closer_look_is_not_repeated_before_its_turn_unless_much_was_added() -> None:
    """A look at proportional shares is dear; it is due again in its share of the CPU, or when it may be over by now."""
    process = _Process()
    watch = UsageSampler(limit_bytes=1000).watch(process)  # type: ignore[arg-type] # all it needs
    tree = process_table.trees([process.pid])[process.pid]._replace(rss_bytes=1500)
    assert watch.is_suspect(tree)
    watch.judge(tree, in_use_bytes=400, cost_seconds=1000.0)
    assert not watch.is_suspect(tree)
    assert not watch.is_suspect(tree._replace(rss_bytes=2100))  # 400 in use and 600 more: just not over
    assert watch.is_suspect(tree._replace(rss_bytes=2101))
    process.popen.kill()
    process.popen.wait()


async def test_each_has_the_smaller_of_its_own_limit_and_everyones() -> None:
    """A neighbour that may use more lives on."""
    processes = [_Process() for _ in range(3)]
    sampler = UsageSampler(limit_bytes=2**50)
    small, large, free = [
        sampler.watch(process, limit_bytes=limit)  # type: ignore[arg-type] # all it needs
        for process, limit in zip(processes, (1, 2**60, None), strict=True)
    ]
    assert (small.limit_bytes, large.limit_bytes, free.limit_bytes) == (1, 2**50, 2**50)
    running = asyncio.create_task(sampler.run())
    assert await asyncio.wait_for(small.over_limit(), 20) > 1
    running.cancel()
    for watch, process in zip((small, large, free), processes, strict=True):
        watch.end(None)
        process.popen.kill()
        process.popen.wait()


async def test_a_limit_of_its_own_is_looked_after_as_often() -> None:
    """Memory fills fast: the pauses are short for as long as anything that is watched has a limit."""
    sampler, process = UsageSampler(), _Process()
    free = sampler.watch(process)  # type: ignore[arg-type] # all it needs
    sampler._last_cost, sampler._unseen_since = 1.0, None
    long = sampler._due()
    limited = sampler.watch(process, limit_bytes=2**50)  # type: ignore[arg-type] # as above
    sampler._unseen_since = None
    assert long - sampler._due() > 20.0
    limited.end(None)
    assert sampler._due() == pytest.approx(long, abs=1.0)
    free.end(None)
    process.popen.kill()
    process.popen.wait()
