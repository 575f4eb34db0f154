"""The in-process router keeps the protocol: every case of the suite, and the state machine (T10)."""

import pytest
from hypothesis import settings

from jobq.testing import conformance
from jobq.testing.clock import RealTime
from jobq.testing.stateful import make_state_machine
from jobq_memory import MemoryBackend, Router
from tests.conformance import harnesses

_LIMITED_TO_BYTES = 4096


@pytest.mark.parametrize("case", conformance.cases(), ids=str)
async def test_case(case: conformance.Case) -> None:
    skipped = await conformance.run_case(case, harnesses.memory())
    if skipped is not None:
        pytest.skip(f"not {skipped.missing}")


async def test_a_limit_of_the_size_is_kept() -> None:
    report = await conformance.run(harnesses.memory(max_message_bytes=_LIMITED_TO_BYTES))
    assert not report.failed, str(report)
    assert "push.too_large_is_refused_and_nothing_added" in report.passed


async def test_waiting_works_on_the_machines_clock() -> None:
    router = Router()
    harness = conformance.Harness(connect=lambda queue: MemoryBackend(router, queue), clock=RealTime())
    report = await conformance.run(
        harness, only=["receive.waiter_is_woken_by_a_push", "receive.cancelled_wait_costs_nothing"]
    )
    assert len(report.passed) == 2, str(report)


TestStateful = make_state_machine(harnesses.memory).TestCase
TestStateful.settings = settings(max_examples=60, stateful_step_count=50, deadline=None, derandomize=True)
