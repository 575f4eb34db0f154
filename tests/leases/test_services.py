"""Named leases on services that keep their own time: the suite on Azurite's blobs and on a PostgreSQL server.

The cases really wait (a blob's lease lasts 15 s at least), so they do it side by side, and each test reports one.
"""

import asyncio
import traceback
from collections.abc import Iterator
from typing import Final

import pytest

from jobq.testing import named_leases
from jobq.testing.named_leases import LeaseCase, LeaseHarness
from tests.azure.emulator import ACCOUNT, Azurite
from tests.leases import harnesses
from tests.postgres.server import Database

pytestmark = pytest.mark.check

_AT_ONCE: Final = 24
Ended = dict[str, str]  # how each case ended: "" = passed, "skip: ..." or the traceback


def all_ended(harness: LeaseHarness) -> Ended:
    found: Ended = {}

    async def run(case: LeaseCase, turn: asyncio.Semaphore) -> None:
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


@pytest.fixture(scope="module")
def on_blobs(azurite: Azurite) -> Ended:
    return all_ended(harnesses.azure(azurite.connection_string, ACCOUNT))


@pytest.fixture(scope="module")
def on_postgres(postgres: Database) -> Iterator[Ended]:
    database = postgres.fresh()
    try:
        yield all_ended(harnesses.postgres(database))
    finally:
        database.drop()


def tell(outcome: str) -> None:
    if outcome.startswith("skip"):
        pytest.skip(outcome.removeprefix("skip: "))
    assert not outcome, outcome


@pytest.mark.slow("contests of processes over leases of seconds")
@pytest.mark.timeout(180)  # the first one waits for all
@pytest.mark.parametrize("case", named_leases.cases(), ids=str)
def test_azure(case: LeaseCase, on_blobs: Ended) -> None:
    tell(on_blobs[case.name])


@pytest.mark.timeout(180)  # as above
@pytest.mark.parametrize("case", named_leases.cases(), ids=str)
def test_postgres(case: LeaseCase, on_postgres: Ended) -> None:
    tell(on_postgres[case.name])
