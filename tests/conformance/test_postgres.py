"""PostgreSQL keeps the protocol: every case of the suite on a real server.

The service keeps its own time: `real_time` runs the cases side by side, and each test reports one of them.
"""

from typing import Final

import pytest

from jobq.testing import conformance
from tests.conformance import harnesses
from tests.conformance.real_time import Ended, run_all, tell
from tests.postgres.server import Database

_AT_ONCE: Final = 20  # 3 connections each at most


@pytest.fixture(scope="module")
def ended(postgres: Database) -> Ended:
    return run_all(harnesses.postgres(postgres), _AT_ONCE)


@pytest.mark.timeout(180)  # the first one waits for all
@pytest.mark.parametrize("case", conformance.cases(), ids=str)
def test_case(case: conformance.Case, ended: Ended) -> None:
    tell(case, ended)
