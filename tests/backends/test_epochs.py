"""S3: an id that is pushed again goes on with higher tokens, whatever the store has forgotten."""

import asyncio
from typing import TYPE_CHECKING

from jobq.settlement import Complete, MoveToDeadLetters
from tests.backends.places import DONE, LEASE, NOW, Place, Table, take, tasks

if TYPE_CHECKING:
    from jobq.backend import FencingNumber


async def test_the_first_tokens_are_plain_and_redrives_are_overtaken(queue: Table) -> None:
    """What others come to does not raise them."""
    await queue.push(tasks(3))
    first, *others = await queue.receive(3, LEASE, NOW)
    for delivery in others:
        assert str(delivery.fencing) == "0.0.1"
        await delivery.settle(Complete(DONE))
    for epoch in (1, 2, 3):
        await first.settle(MoveToDeadLetters("failures", ""))
        await queue.redrive([first.id])
        first = await take(queue)
        assert first.fencing.epoch == epoch
    await first.settle(MoveToDeadLetters("failures", ""))
    await queue.purge_dead([first.id])
    await queue.push([task for task in tasks(3) if task.id == first.id])
    assert (await take(queue)).fencing == (4, 0, 1)


async def test_each_generation_of_ids_raises_the_epoch_once(place: Place, queue: Table) -> None:
    """By retention or by another who clears: each handle learns from the store what others have forgotten."""
    await queue.push(tasks(3))
    for delivery in await queue.receive(3, LEASE, NOW):
        await delivery.settle(Complete(DONE))
    place.pass_days(31)
    async with place.handle() as other:
        assert await other.receive(1, LEASE, NOW) == []  # one of these forgets all three
        await other.push(tasks(1, "sweeps"))
        await other.clear()
        epochs = [0]
        for count in (3, 300):
            await queue.push(tasks(count))
            epochs += {each.fencing.epoch for each in await queue.receive(count, LEASE, NOW)}
            await other.clear()
    assert len(epochs) == 3, "a generation is of one epoch"
    assert 0 < epochs[1] <= 2, "once by retention, and once by the clear where that came later"
    assert epochs[2] == epochs[1] + 1


async def test_pushes_and_clears_at_once(place: Place, queue: Table) -> None:
    """Each token that is handed out for an id is higher than the one before, whoever pushes and whoever clears."""
    seen: list[FencingNumber] = []

    async def go_round(own: Table) -> None:
        for _ in range(20):
            await own.push(tasks(1))
            seen.extend(each.fencing for each in await own.receive(1, LEASE, NOW))
            await own.clear()

    async with place.handle() as other:
        await asyncio.gather(go_round(queue), go_round(other))
    assert len(seen) > 10
    assert sorted(set(seen)) == sorted(seen), "no token twice"
