"""What all tests of processes share."""

from collections.abc import Iterator

import psutil
import pytest

from tests.process import spawning


@pytest.fixture(autouse=True)
def others() -> Iterator[None]:
    spawning.OTHERS.update(child.pid for child in psutil.Process().children())
    yield
    spawning.OTHERS.clear()
