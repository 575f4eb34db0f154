"""Named leases on blobs: the suite on Azurite, whose leases last 15 s at least; so the cases wait side by side."""

import asyncio
import traceback
from typing import Final

import pytest

from jobq.testing import named_leases
from tests.azure.emulator import ACCOUNT, Azurite
from tests.leases import harnesses

_AT_ONCE: Final = 24


@pytest.fixture(scope="module")
def ended(azurite_blobs: Azurite) -> dict[str, str]:
    """How each case ended: "" = passed, "skip ..." or the traceback."""
    harness = harnesses.azure(azurite_blobs.connection_string, ACCOUNT)
    found: dict[str, str] = {}

    async def run(case: named_leases.LeaseCase, turn: asyncio.Semaphore) -> None:
        async with turn:
            try:
                lacking = await named_leases.run_case(case, harness)
                found[case.name] = f"skip: not {lacking}" if lacking else ""
            except Exception:  # noqa: BLE001 - told by the case's own test
                found[case.name] = traceback.format_exc()

    async def run_all() -> None:
        turn = asyncio.Semaphore(_AT_ONCE)
        await asyncio.gather(*(run(case, turn) for case in named_leases.cases()))

    asyncio.run(run_all())
    return found


@pytest.mark.timeout(180)  # the first one waits for all
@pytest.mark.parametrize("case", named_leases.cases(), ids=str)
def test_case(case: named_leases.LeaseCase, ended: dict[str, str]) -> None:
    outcome = ended[case.name]
    if outcome.startswith("skip"):
        pytest.skip(outcome.removeprefix("skip: "))
    assert not outcome, outcome
