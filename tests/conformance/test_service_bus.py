"""Azure Service Bus keeps the protocol: every case of the suite on an emulator of its own, with a clock of its own.

Opening and closing AMQP takes the SDK a second, so they run side by side, and each test reports one of them. They run
a second time with every contested switch of the emulator the other way, and duplicate detection.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, Final

import pytest

from jobq.testing import conformance
from jobq.testing.clock import VirtualClock
from tests.conformance import harnesses
from tests.conformance.real_time import Ended, run_each, tell
from tests.emulators.service_bus.emulator import Emulator
from tests.emulators.service_bus.fidelity import Fidelity
from tests.sb.stage import OTHER_WAY
from tests.service_bus.leftovers import collected

_AT_ONCE: Final = 10  # each has an emulator in this process, and an SDK that waits 3 s for it


def _ended(fidelity: Fidelity, **options: Any) -> Ended:
    @asynccontextmanager
    async def serve() -> AsyncIterator[conformance.Harness]:
        async with Emulator(clock=VirtualClock(), fidelity=fidelity) as emulator:
            yield harnesses.service_bus(emulator, **options)

    with collected():
        return run_each(serve, _AT_ONCE)


@pytest.fixture(scope="module")
def ended() -> Ended:
    return _ended(Fidelity())


@pytest.fixture(scope="module")
def ended_the_other_way() -> Ended:
    window = timedelta(days=1)
    return _ended(OTHER_WAY, dedup_window=window, asserted_dedup_window=window)


@pytest.mark.timeout(180)  # the first one waits for all, as in the next
@pytest.mark.parametrize("case", conformance.cases(), ids=str)
def test_case(case: conformance.Case, ended: Ended) -> None:
    tell(case, ended)


@pytest.mark.timeout(180)
@pytest.mark.parametrize("case", conformance.cases(), ids=str)
def test_case_where_the_service_is_contested(case: conformance.Case, ended_the_other_way: Ended) -> None:
    tell(case, ended_the_other_way)
