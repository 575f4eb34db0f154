"""Many dead letters are put back, or deleted, in one walk: each is leased once, and what stays is shown again."""

import asyncio
from contextlib import aclosing

import pytest

from jobq.settlement import MoveToDeadLetters
from jobq.submit import batch_end
from jobq_azure.storage import held_letters
from tests.azure.stage import LEASE, NOW, Stage

pytestmark = pytest.mark.check


@pytest.fixture(autouse=True)
def _small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_letters, "_WINDOW", 32)


async def _buried(stage: Stage, count: int) -> set[str]:
    ids = {task.id for task in await stage.pushed(count)}
    while count:
        for delivery in await stage.backend.receive(32, LEASE, NOW):
            await delivery.settle(MoveToDeadLetters("failed", ""))
            count -= 1
    return ids


async def test_a_walk_takes_as_many_requests_a_letter_however_many_there_are(stage: Stage) -> None:
    """Each 500 leased all letters, and showed again those that they did not take."""
    for count in (40, 160):
        await _buried(stage, count)
        stage.proxy.requests.clear()
        async with aclosing(stage.backend.walk_dead()) as walk:
            async for ids in walk:
                assert len(await stage.backend.redrive(ids)) == len(ids)
        assert len(stage.proxy.requests) < 3.2 * count + 4
        assert not stage.proxy.seen("PUT", "visibilitytimeout=0"), "nothing of it is shown again"
        assert await stage.total() == count
        await stage.backend.clear()


async def test_what_a_walk_leaves_comes_once_and_is_shown_again(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where it shows by itself meanwhile, before what has not come yet."""
    monkeypatch.setattr(held_letters, "HOLD_SECONDS", 1)
    ids = await _buried(stage, 100)
    met: list[str] = []
    async with aclosing(stage.backend.walk_dead()) as walk:
        async for some in walk:
            met += some
            if len(met) == 64:
                await asyncio.sleep(1.5)  # by the service's own time
    assert sorted(met) == sorted(ids)
    assert len(await stage.backend.dead_letters(200)) == 100


async def test_a_walk_that_is_given_up_hides_nothing_and_the_next_goes_on(stage: Stage) -> None:
    ids = await _buried(stage, 70)
    async with aclosing(stage.backend.walk_dead()) as walk:
        async for some in walk:
            ids -= set(await stage.backend.purge_dead(some))
            break
    assert {letter.id for letter in await stage.backend.dead_letters(100)} == ids
    purged = await stage.run("dead", "purge", "--all", "--yes")
    assert (purged.code, purged.out) == (0, f"purged {len(ids)} dead letters\n")


async def test_a_batch_is_put_back_in_one_walk(stage: Stage) -> None:
    """What is of no batch is left as it is."""
    await _buried(stage, 40)
    assert await batch_end.put_back(stage.backend, "b1") == 0
    assert len(await stage.backend.dead_letters(100)) == 40
