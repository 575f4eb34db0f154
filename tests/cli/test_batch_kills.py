"""Workers that are killed again and again over a batch: its counts are right at each look, and its end is told once."""

import itertools
import time

import pytest

from jobq.backend import Backend
from jobq.batches import Batch, BatchState, batches_of
from jobq.journal.store import journal_of
from tests.cli.conftest import Jobq

pytestmark = pytest.mark.night("kills anywhere in a push: 41 s")

_ROUNDS = 3
_SECONDS = 0.7  # between two kills


@pytest.mark.parametrize(
    ("tasks", "kills"),
    [(300, 6), pytest.param(10_000, 60, marks=[pytest.mark.night, pytest.mark.timeout(1800)])],
)
def test_counts_are_right_and_ends_are_told_once_whoever_is_killed(jobq: Jobq, tasks: int, kills: int) -> None:
    """Each hundredth task fails in all rounds but the last; so each round has tasks that are put back."""
    fails = f"sleep 0.01; test $((PARAM_n % 100)) -ne 0 -o -e {jobq.folder}/last"
    budgets = ("--num-retries", "0", "--max-crashes", "1000")
    jobq("demo", "push", "--batch", "s7", "--then", "true", *budgets, "--grid", f"n=1..{tasks}", "-c", fails)
    left = itertools.count(kills, -1)
    for number in range(1, _ROUNDS + 1):
        if number == _ROUNDS:
            (jobq.folder / "last").touch()
        workers = [jobq.start("demo", "worker", "-n", "8") for _ in range(2)]
        next_kill = time.monotonic() + _SECONDS
        while (found := _seen(jobq)).state is not BatchState.FINISHED:
            assert found.total == tasks, found
            if time.monotonic() >= next_kill and next(left) > 0:
                workers[0].kill()
                workers = [*workers[1:], jobq.start("demo", "worker", "-n", "8")]
                next_kill = time.monotonic() + _SECONDS
            elif all(worker.poll() is not None for worker in workers):  # it looked empty, and a lease ran out then
                workers = [jobq.start("demo", "worker", "-n", "8")]
            time.sleep(0.05)
        assert found.round == number
        for worker in workers:
            worker.wait()
        jobq("demo", "worker")
        assert _told(jobq) == [f"jobq.then.s7.{each}" for each in range(1, number + 1)]
        assert found.counts["dead"] == (0 if number == _ROUNDS else tasks // 100)
        jobq("demo", "batch", "retry", "s7")
    assert [each.number for each in _seen(jobq).rounds] == list(range(1, _ROUNDS + 1))


def test_a_push_that_is_killed_anywhere_is_finished_by_the_same_command(jobq: Jobq) -> None:
    """Of two that run at once, too: each point is queued once, and the batch is sealed with all of them."""
    push = ("demo", "push", "--batch", "s7", "--grid", "n=1..6000", "--", "true", "{n}")
    jobq("demo", "create")
    for seconds in (0.15, 0.2, 0.25, 0.3, 0.4, 0.5):
        both = [jobq.start(*push) for _ in range(2)]
        time.sleep(seconds)  # not an event: anywhere is meant
        for each in both:
            each.kill()
            each.wait()
    both = [jobq.start(*push) for _ in range(2)]
    assert [each.wait() for each in both] == [0, 0]
    found = _seen(jobq)
    assert (found.state, found.total, found.counts["ready"]) == (BatchState.SEALED, 6000, 6000)
    assert "s7 is done: all 6000 records were queued before" in jobq(*push).err


def _seen(jobq: Jobq) -> Batch:
    return jobq.inside(lambda backend: batches_of(backend).find("s7"))


def _told(jobq: Jobq) -> list[str]:
    """Return the ids of all that was to be run at an end, once it is done."""

    async def ids(backend: Backend) -> list[str]:
        found = await journal_of(backend).ids_with("jobq.then.", 100)
        assert {each.state for each in await journal_of(backend).find(found)} == {"succeeded"}
        return found

    return jobq.inside(ids)
