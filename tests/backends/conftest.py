"""The stores that keep a whole table of tasks, each as a fixture's parameter: what one of them does, all of them do."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.backends.places import FilePlace, Place, ServerPlace, Table


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """An empty store."""
    if request.param == "sqlite":
        yield FilePlace(tmp_path / "jobs.db")
        return
    made = request.getfixturevalue("postgres").fresh()
    try:
        yield ServerPlace(made)
    finally:
        made.drop()


@pytest.fixture
async def queue(place: Place) -> AsyncIterator[Table]:
    """A queue in it."""
    async with place.handle() as made:
        await made.create()
        yield made
