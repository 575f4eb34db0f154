"""A stage for each test."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.sb.stage import Stage, staged
from tests.service_bus.leftovers import collected


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    with collected():
        async with staged(tmp_path) as found:
            yield found
