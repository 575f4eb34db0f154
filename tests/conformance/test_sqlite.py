"""The embedded queue keeps the protocol: every case of the suite on real files, and the state machine (T10)."""

from pathlib import Path

import pytest
from hypothesis import settings

from jobq.clock import SystemClock
from jobq.testing import conformance
from jobq.testing.clock import RealTime
from jobq.testing.stateful import make_state_machine
from jobq_sqlite import SqliteBackend, StoreFile
from jobq_sqlite.host import this_host
from tests.conformance import harnesses


@pytest.mark.parametrize("case", conformance.cases(), ids=str)
async def test_case(case: conformance.Case, tmp_path: Path) -> None:
    skipped = await conformance.run_case(case, harnesses.sqlite(tmp_path))
    if skipped is not None:
        pytest.skip(f"not {skipped.missing}")


_AWOKEN = (
    "receive.waiter_is_woken_by_a_push",
    "receive.waiters_share_what_comes",
    "hasten.who_waits_has_it_at_once",
    "batch.who_waits_for_tasks_has_what_is_run_at_an_end",
)


@pytest.mark.parametrize("case", [case for case in conformance.cases() if str(case) not in _AWOKEN], ids=str)
async def test_case_without_a_loop(case: conformance.Case, tmp_path: Path) -> None:
    """Short commands ask it so; none of them waits for tasks, so nobody looks for another's push."""
    skipped = await conformance.run_case(case, harnesses.sqlite(tmp_path, at_once=True))
    if skipped is not None:
        pytest.skip(f"not {skipped.missing}")


async def test_waiting_works_on_the_machines_clock(tmp_path: Path) -> None:
    file = StoreFile(path=tmp_path / "jobs.db", clock=SystemClock(), host=this_host())
    harness = conformance.Harness(connect=lambda queue: SqliteBackend(file, queue), clock=RealTime())
    report = await conformance.run(
        harness, only=["receive.waiter_is_woken_by_a_push", "receive.cancelled_wait_costs_nothing"]
    )
    assert len(report.passed) == 2, str(report)


TestStateful = make_state_machine(harnesses.sqlite).TestCase
TestStateful.settings = settings(max_examples=40, stateful_step_count=40, deadline=None, derandomize=True)
