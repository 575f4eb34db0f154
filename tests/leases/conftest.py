"""Azurite's blob service, which keeps the named leases of Azure."""

from collections.abc import Iterator

import pytest

from tests.azure import emulator
from tests.azure.emulator import Azurite


@pytest.fixture(scope="session")
def azurite_blobs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Azurite]:
    """The emulator's blob service, shared by all tests that do not kill it."""
    emulator.require()
    service = Azurite(tmp_path_factory.mktemp("azurite-blobs"), "blob")
    try:
        service.start()
        yield service
    finally:
        service.kill()
