"""The fixture of `leftovers`, for the tests here."""

from collections.abc import Iterator

import pytest

from tests.service_bus import leftovers


@pytest.fixture
def collected() -> Iterator[None]:
    with leftovers.collected():
        yield
