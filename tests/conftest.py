"""What more than one folder of tests needs."""

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.azure import emulator
from tests.fork_server import forked
from tests.postgres import server

# A shell lets what it starts in the background ignore SIGINT, and so do all children: then `make test &` failed.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

_HERE: Final = Path(__file__).parent
# Those files that take longest. Only the order counts, and that roughly: `python -m tests --durations=0` shows it.
LONGEST_FIRST: Final = (
    "docs/test_commands",
    "dashboard/test_pages",
    "dashboard/test_actions",
    "guardian/test_command_line",
    "crash/test_crashes",
    "process/test_worker_faults",
    "models/test_models",
    "journal/test_cancel",
    "service/test_conformance",
    "journal/test_reading",
    "service_bus/test_hostile",
    "service_bus/test_amqp",
    "blackbox/test_programs",
    "blackbox/test_signals",
    "cli/test_lease",
    "process/test_hostile_tasks",
    "service_bus/test_bodies",
    "leases/test_services",
    "journal/test_results",
    "sb/test_locks",
    "leases/test_contenders",
    "cli/localrun/test_run_resume",
    "process/test_usage",
    "postgres/test_outages",
    "azure/faults/test_outages",
    "sb/test_dead_letters",
    "azure/faults/test_hostile",
    "fork_server/test_fork_server",
    "azure/faults/test_kills",
    "azure/faults/test_answers",
    "guardian/test_trees",
    "process/test_unknown_ends",
    "sb/test_many_dead_letters",
    "service/test_bounds",
    "azure/test_delivery",
    "fork_server/test_cold_starts",
    "azure/payloads/test_payload_faults",
    "cli/display/test_live",
    "cli/localrun/test_run",
    "azure/journal/test_journal_table",
    "cli/display/test_live_faults",
    "sb/test_command_line",
    "guardian/test_wire",
    "process/test_end_to_end",
    "journal/test_inside",
    "cli/test_main",
    "service_bus/test_faults",
    "cli/test_walk_through",
    "simulation/test_neighbours",
    "service_bus/test_not_emulated",
    "azure/journal/test_journal_outages",
    "sb/test_storm",
    "service/test_generator",
    "azure/test_dead_letters",
    "deploy/test_image",
    "conformance/test_storage_queue",
    "conformance/test_storage_queue_journal",
    "conformance/test_postgres",
    "conformance/test_service_bus",
    "conformance/test_suite_catches",
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
