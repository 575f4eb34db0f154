"""The suite itself: a backend that breaks one rule fails it, by the case that names the rule (T3)."""

import asyncio
from datetime import timedelta

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from jobq.backend import QueueStats
from jobq.testing import conformance
from jobq.testing.stateful import make_state_machine
from jobq_memory import MemoryBackend, Router
from tests.conformance import harnesses
from tests.conformance.mutants import CAUGHT_BY, DeliveriesReset, UnfencedComplete, Wrapped

pytestmark = pytest.mark.check


@pytest.mark.parametrize("mutant", CAUGHT_BY, ids=lambda mutant: mutant.__name__)
async def test_mutant_is_caught(mutant: type[Wrapped]) -> None:
    report = await conformance.run(harnesses.memory(mutant))
    assert CAUGHT_BY[mutant] in report.failed, str(report)


async def test_wrapping_alone_is_not_what_is_caught() -> None:
    report = await conformance.run(harnesses.memory(Wrapped))
    assert not report.failed, str(report)


@pytest.mark.parametrize("mutant", [UnfencedComplete, DeliveriesReset], ids=lambda mutant: mutant.__name__)
def test_state_machine_catches_too(mutant: type[Wrapped]) -> None:
    machine = make_state_machine(lambda: harnesses.memory(mutant))
    few = settings(
        max_examples=100,
        stateful_step_count=40,
        deadline=None,
        derandomize=True,
        phases=[Phase.generate],
        database=None,
    )
    with pytest.raises(AssertionError):
        run_state_machine_as_test(machine, settings=few)


async def test_a_case_that_hangs_fails() -> None:
    class Stuck(Wrapped):
        async def stats(self) -> QueueStats:
            await asyncio.Event().wait()
            raise AssertionError

    harness = harnesses.memory(Stuck)
    harness.case_timeout = timedelta(seconds=0.05)
    report = await conformance.run(harness, only=["receive.stats_follow_every_state"])
    assert "TimeoutError" in report.failed["receive.stats_follow_every_state"]


async def test_skips_by_capability_and_says_which() -> None:
    router = Router()
    harness = conformance.Harness(connect=lambda queue: MemoryBackend(router, queue), clock=harnesses.memory().clock)
    report = await conformance.run(harness, only=["poison.others_are_not_affected", "settle.longest_delay_is_taken"])
    assert report.skipped == {"poison.others_are_not_affected": "inject", "settle.longest_delay_is_taken": "max_delay"}
    assert "2 skipped" in str(report)


def test_every_case_names_its_rule_or_behaviour() -> None:
    undocumented = [case.name for case in conformance.cases() if not case.check.__doc__]
    assert not undocumented
