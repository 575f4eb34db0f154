"""What all tests of processes share."""

from collections.abc import AsyncIterator, Iterator

import psutil
import pytest

from jobq.run.spawn import asyncio_spawner
from jobq.run.spawn.asyncio_spawner import AsyncioSpawner
from tests.process import spawning
from tests.process.spawning import Starter


@pytest.fixture(autouse=True)
def others() -> Iterator[None]:
    spawning.OTHERS.update(child.pid for child in psutil.Process().children())
    yield
    spawning.OTHERS.clear()


@pytest.fixture(params=["pidfd", "thread"])
async def start(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Starter]:
    if request.param == "thread":
        monkeypatch.setattr(asyncio_spawner, "_pidfd_open", lambda _pid: None)
    async with AsyncioSpawner() as spawner:
        starter = Starter(spawner)
        yield starter
        starter.close()
