"""As `test_service_bus`, with batches and a journal in a table: on this machine's time, as Azurite is."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import pytest

from jobq.testing import conformance
from tests.azure.emulator import ACCOUNT, Azurite
from tests.conformance import harnesses
from tests.conformance.real_time import Ended, run_each, tell
from tests.emulators.service_bus.emulator import Emulator
from tests.service_bus.leftovers import collected

_AT_ONCE: Final = 10  # each has an emulator in this process, and an SDK that waits 3 s for it


@pytest.fixture(scope="module")
def ended(azurite: Azurite) -> Ended:
    @asynccontextmanager
    async def serve() -> AsyncIterator[conformance.Harness]:
        async with Emulator() as emulator:
            yield harnesses.service_bus_with_tables(emulator, azurite.connection_string, ACCOUNT)

    with collected():
        return run_each(serve, _AT_ONCE)


@pytest.mark.timeout(240)  # the first one waits for all
@pytest.mark.parametrize("case", conformance.cases(), ids=str)
def test_case(case: conformance.Case, ended: Ended) -> None:
    tell(case, ended)
