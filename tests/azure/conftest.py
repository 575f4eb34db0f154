"""A stage for each test."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.azure.emulator import Azurite
from tests.azure.stage import Stage, staged


@pytest.fixture
async def stage(azurite: Azurite, tmp_path: Path) -> AsyncIterator[Stage]:
    async with staged(azurite, tmp_path) as found:
        yield found
