"""PostgreSQL keeps the protocol: every case of the suite on a real server.

The server keeps its own time, so the cases really wait: they run side by side, and each test reports one of them.
"""

import asyncio
import traceback
from typing import Final

import pytest

from jobq.testing import conformance
from tests.conformance import harnesses
from tests.postgres.server import Database

_AT_ONCE: Final = 20  # 3 connections each at most
Ended = dict[str, "conformance.Skipped | str | None"]


@pytest.fixture(scope="module")
def ended(postgres: Database) -> Ended:
    """How each case ended: None = passed, a text = the traceback."""
    harness = harnesses.postgres(postgres)
    found: Ended = {}

    async def run(case: conformance.Case, turn: asyncio.Semaphore) -> None:
        async with turn:
            try:
                found[case.name] = await conformance.run_case(case, harness)
            except Exception:  # noqa: BLE001 - told by the case's own test
                found[case.name] = traceback.format_exc()

    async def run_all() -> None:
        turn = asyncio.Semaphore(_AT_ONCE)
        await asyncio.gather(*(run(case, turn) for case in conformance.cases()))

    asyncio.run(run_all())
    return found


@pytest.mark.timeout(180)  # the first one waits for all
@pytest.mark.parametrize("case", conformance.cases(), ids=str)
def test_case(case: conformance.Case, ended: Ended) -> None:
    outcome = ended[case.name]
    if isinstance(outcome, conformance.Skipped):
        pytest.skip(f"not {outcome.missing}")
    assert outcome is None, outcome
