"""A queue that the real ai4s-jobq has filled is drained by our worker."""

import asyncio
import os
from pathlib import Path
from typing import Final

import pytest

from tests.azure.stage import SHORT, Stage

_PYTHON: Final = Path(__file__).parents[2] / ".peer/bin/python"
_TASKS: Final = 12


@pytest.fixture
def peer() -> Path:
    """The Python that has ai4s-jobq."""
    if not _PYTHON.exists():
        if os.environ.get("CI"):
            pytest.fail("ai4s-jobq is not installed: run the tests by `make test`")
        pytest.skip("ai4s-jobq is not installed: `make test` does it")
    return _PYTHON


async def test_a_queue_of_ai4s_jobq_is_drained(stage: Stage, peer: Path) -> None:
    filling = await asyncio.create_subprocess_exec(
        str(peer),
        str(Path(__file__).with_name("peer_push.py")),
        stage.queue,
        str(stage.folder),
        str(_TASKS),
        env={"PATH": os.environ["PATH"], "PEER_CONNECTION_STRING": stage.azurite.connection_string},
        stderr=asyncio.subprocess.PIPE,
    )
    _, told = await filling.communicate()
    assert filling.returncode == 0, told.decode()
    assert await stage.total() == _TASKS + 1
    result = await stage.run("worker", "-n", "4", **SHORT, JOBQ_BACKOFF="100ms")
    assert result.code == 0, result.err
    assert sorted((stage.folder / "done").read_text().split("\n")[:-1]) == sorted(f"{n} grün" for n in range(_TASKS))
    stats = await stage.behind.stats()
    assert (stats.total, stats.dead) == (0, 1)
    (letter,) = await stage.behind.dead_letters(10)
    assert (letter.reason, letter.deliveries) == ("failed", 2)
