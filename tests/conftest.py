"""What more than one folder of tests needs."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.azure import emulator
from tests.postgres import server


@pytest.fixture(scope="session")
def azurite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[emulator.Azurite]:
    """One Azurite for the whole session; each test has queues of its own in it."""
    emulator.require()
    found = emulator.Azurite(Path(tmp_path_factory.mktemp("azurite")))
    try:
        found.start()
        yield found
    finally:
        found.kill()


@pytest.fixture(scope="session")
def postgres() -> Iterator[server.Database]:
    """An empty database on one PostgreSQL for the whole session; see `tests.postgres.server`."""
    with server.session() as found:
        yield found
