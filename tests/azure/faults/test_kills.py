"""Azurite is killed and comes back with its data, in the middle of work (S1, S5, L1)."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobq.task import Task
from tests.azure import emulator
from tests.azure.stage import SHORT, ended, eventually, staged
from tests.support.http_proxy import ProxiedRequest

pytestmark = pytest.mark.night("kills the service in the middle of work: 20 s")

_KILL_AFTER = (0.12, 0.3, 0.6)  # of the tasks are done
_WORKERS = 2
# The lock is held by all of a task's processes and falls with the last of them: whoever finds it held overlaps (P1).
_COMMAND = """
exec 9>>"lock-$JOBQ_TASK_ID"
flock --nonblock 9 || echo "$JOBQ_TASK_ID" >> overlaps
sleep 0.05
echo "$JOBQ_TASK_ID" >> done
"""


@pytest.fixture
def own_azurite(tmp_path: Path) -> Iterator[emulator.Azurite]:
    emulator.require()
    folder = tmp_path / "azurite"
    folder.mkdir()
    found = emulator.Azurite(folder)
    try:
        found.start()
        yield found
    finally:
        found.kill()


def _saved(folder: Path, count: int) -> bool:
    """Return whether the emulator has put so many messages on its disk; it does so every few seconds, on no request."""
    file = folder / "__azurite_db_queue__.json"
    return file.exists() and file.read_text().count('"popReceipt"') >= count


def _settled(request: ProxiedRequest) -> bool:
    return request.method == "DELETE" and request.status == 204


@pytest.mark.timeout(180)
@pytest.mark.parametrize("count", [200, pytest.param(500, marks=pytest.mark.night)])
async def test_service_is_killed_in_the_middle_of_work(
    own_azurite: emulator.Azurite, tmp_path: Path, count: int
) -> None:
    kill_after = [round(share * count) for share in _KILL_AFTER]
    async with staged(own_azurite, tmp_path) as stage:
        tasks = [Task.new(command=_COMMAND) for _ in range(count)]
        await stage.backend.push(tasks)
        await eventually(lambda: _saved(own_azurite.folder, count), seconds=60)
        started = [stage.start("worker", "-n", "4", "--idle-timeout", "7s", **SHORT) for _ in range(_WORKERS)]
        workers = await asyncio.gather(*started)
        for done in kill_after:
            await stage.proxy.until(lambda done=done: sum(map(_settled, stage.proxy.requests)) >= done)  # type: ignore[misc]
            own_azurite.kill()
            await asyncio.to_thread(own_azurite.start)
        for result in await asyncio.gather(*(ended(worker, seconds=150) for worker in workers)):
            assert result.code == 0, result.err[-3000:]
        runs = Counter((tmp_path / "done").read_text().split())
        assert runs.keys() == {task.id for task in tasks}, "an acknowledged task was lost"
        assert not (tmp_path / "overlaps").exists(), "a task ran twice at once"
        settled = Counter((each.path, each.query["popreceipt"]) for each in stage.proxy.requests if _settled(each))
        assert set(settled.values()) == {1}, "a delivery was settled twice"
        stats = await stage.behind.stats()
        assert (stats.total, stats.dead) == (0, 0)
        # What the emulator had acknowledged and not yet saved it forgets, and hands out again: its loss, not ours.
        assert sum(runs.values()) <= count + max(kill_after) + 8 * len(kill_after)
