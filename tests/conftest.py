"""What more than one folder of tests needs."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.azure import emulator
from tests.fork_server import forked
from tests.postgres import server

_HERE: Final = Path(__file__).parent
# Those files that take longest. Only the order counts, and that roughly: `python -m tests --durations=0` shows it.
LONGEST_FIRST: Final = (
    "process/test_worker_faults",
    "docs/test_commands",
    "fork_server/test_fork_server",
    "fork_server/test_cold_starts",
    "azure/test_delivery",
    "sb/test_locks",
    "cli/test_run_resume",
    "azure/test_outages",
    "journal/test_reading",
    "journal/test_cancel",
    "journal/test_results",
    "cli/test_lease",
    "service/test_conformance",
    "azure/test_kills",
    "service_bus/test_amqp",
    "process/test_hostile_tasks",
    "sb/test_storm",
    "leases/test_services",
    "sb/test_dead_letters",
    "azure/test_answers",
    "cli/test_live",
    "leases/test_contenders",
    "process/test_unknown_ends",
    "azure/test_payload_faults",
    "process/test_end_to_end",
    "cli/test_walk_through",
    "azure/test_hostile",
    "cli/test_run",
    "cli/test_live_faults",
    "journal/test_inside",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--cold-starts", action="store_true", help="start each `python -m jobq` anew, and fork none")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Side by side, begin with the longest files: none is left to one process when the other has nothing to do."""
    if hasattr(config, "workerinput"):
        rank = {str(_HERE / f"{name}.py"): number for number, name in enumerate(LONGEST_FIRST)}
        items.sort(key=lambda item: rank.get(str(item.path), len(rank)))


def pytest_configure(config: pytest.Config) -> None:
    forked.is_cold |= bool(config.getoption("--cold-starts"))


@pytest.fixture(scope="session")
def azurite() -> Iterator[emulator.Azurite]:
    """One Azurite for the whole session; each test has queues of its own in it."""
    emulator.require()
    with emulator.session() as found:
        yield found


@pytest.fixture(scope="session")
def postgres() -> Iterator[server.Database]:
    """An empty database on one PostgreSQL for the whole session; see `tests.postgres.server`."""
    with server.session() as found:
        yield found
