"""Azure Storage Queue keeps the protocol: every case of the suite on Azurite.

The service keeps its own time: `real_time` runs the cases side by side, and each test reports one of them.
"""

from typing import Final

import pytest

from jobq.testing import conformance
from tests.azure.emulator import ACCOUNT, Azurite
from tests.conformance import harnesses
from tests.conformance.real_time import Ended, run_all, tell

pytestmark = pytest.mark.check

AT_ONCE: Final = 12


@pytest.fixture(scope="module")
def ended(azurite: Azurite) -> Ended:
    return run_all(harnesses.storage_queue(azurite.connection_string, ACCOUNT, "auto"), AT_ONCE)


@pytest.mark.timeout(180)  # the first one waits for all
@pytest.mark.parametrize("case", conformance.cases(), ids=str)
def test_case(case: conformance.Case, ended: Ended) -> None:
    tell(case, ended)
