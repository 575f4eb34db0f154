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
    "docs/test_commands",
    "service_bus/test_hostile",
    "cli/test_run_resume",
    "conformance/test_storage_queue",
    "process/test_worker_faults",
    "cli/test_run",
    "journal/test_cancel",
    "service_bus/test_bodies",
    "azure/test_outages",
    "azure/test_kills",
    "guardian/test_warm_trees",
    "service/test_conformance",
    "journal/test_results",
    "service_bus/test_amqp",
    "cli/test_lease",
    "process/test_hostile_tasks",
    "journal/test_reading",
    "postgres/test_outages",
    "cli/test_live",
    "leases/test_contenders",
    "leases/test_services",
    "sb/test_dead_letters",
    "sb/test_locks",
    "postgres/test_lost_answers",
    "deploy/test_image",
    "guardian/test_trees",
    "fork_server/test_fork_server",
    "process/test_usage",
    "cli/test_live_faults",
    "service_bus/test_not_emulated",
    "azure/test_answers",
    "guardian/test_command_line",
    "azure/test_hostile",
    "service_bus/test_faults",
    "cli/test_json",
    "process/test_unknown_ends",
    "journal/test_inside",
    "azure/test_payload_faults",
    "postgres/test_kills",
    "azure/test_delivery",
    "cli/test_walk_through",
    "service/test_bounds",
    "sb/test_command_line",
    "conformance/test_service_bus",
    "docs/test_library",
    "conformance/test_postgres",
    "cli/test_main",
    "conformance/test_suite_catches",
    "process/test_end_to_end",
    "azure/test_journal_outages",
    "azure/test_journal_table",
    "simulation/test_neighbours",
    "azure/test_dead_letters",
    "sb/test_many_dead_letters",
    "unit/test_keeper",
    "cli/test_look",
    "cli/test_worker",
    "conformance/test_sqlite",
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
