"""Azure Storage Queue keeps the protocol, also with a journal in a table: every case of the suite on Azurite.

The service keeps its own time: `real_time` runs the cases side by side, and each test reports one of them.
"""

from typing import Final

import pytest

from jobq.testing import conformance
from tests.azure.emulator import ACCOUNT, Azurite
from tests.conformance import harnesses
from tests.conformance.real_time import Ended, run_all, tell

_AT_ONCE: Final = 12


@pytest.fixture(scope="module", params=["auto", "tables"])
def ended(azurite: Azurite, request: pytest.FixtureRequest) -> Ended:
    return run_all(harnesses.storage_queue(azurite.connection_string, ACCOUNT, request.param), _AT_ONCE)


@pytest.mark.timeout(180)  # the first one waits for all
@pytest.mark.parametrize("case", conformance.cases(), ids=str)
def test_case(case: conformance.Case, ended: Ended) -> None:
    tell(case, ended)
