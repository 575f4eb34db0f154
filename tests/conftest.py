"""What more than one folder of tests needs."""

import signal
from collections.abc import Iterator

import pytest

from tests import seconds
from tests.azure import emulator
from tests.fork_server import forked
from tests.postgres import server

# A shell lets what it starts in the background ignore SIGINT, and so do all children: then `make test &` failed.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--tier", choices=seconds.TIERS, default="check", help="tests/__main__.py says what each has")
    parser.addoption("--cold-starts", action="store_true", help="start each `python -m jobq` anew, and fork none")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the tests of the tier that is asked for; refuse a long one that does not say why it is."""
    tier = config.getoption("--tier")
    wanted = {"test": {"test"}, "check": {"test", "check"}, "night": {"night"}}[tier]
    others = [item for item in items if _tier(item) not in wanted]
    if others:
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if _tier(item) in wanted]
    unexplained = seconds.long_tests() - {item.nodeid for item in items if item.get_closest_marker("slow")}
    if tier != "night" and (found := unexplained & {item.nodeid for item in items}):
        raise pytest.UsageError(
            f"over {seconds.LONG:.0f} s each, by tests/seconds.json: {', '.join(sorted(found))}: "
            "make them quicker, or say why not by pytest.mark.slow(reason)"
        )


def _tier(item: pytest.Item) -> str:
    return next((tier for tier in ("night", "check") if item.get_closest_marker(tier)), "test")


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
