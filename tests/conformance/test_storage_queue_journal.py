"""As `test_storage_queue`, with a journal in a table: a file of its own, so that both run side by side."""

import pytest

from jobq.testing import conformance
from tests.azure.emulator import ACCOUNT, Azurite
from tests.conformance import harnesses
from tests.conformance.real_time import Ended, run_all, tell
from tests.conformance.test_storage_queue import AT_ONCE


@pytest.fixture(scope="module")
def ended(azurite: Azurite) -> Ended:
    return run_all(harnesses.storage_queue(azurite.connection_string, ACCOUNT, "tables"), AT_ONCE)


@pytest.mark.timeout(180)  # the first one waits for all
@pytest.mark.parametrize("case", conformance.cases(), ids=str)
def test_case(case: conformance.Case, ended: Ended) -> None:
    tell(case, ended)
