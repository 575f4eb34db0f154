"""What is done with a whole batch: begin it, wait for its end, put its dead letters back, cancel all of it."""

import asyncio
import time
from collections.abc import Callable
from contextlib import aclosing
from datetime import timedelta
from typing import Final

from jobq.backend import Backend, WalksDead
from jobq.batch_ids import IdInBatch
from jobq.batch_plan import Plan
from jobq.batches import MOST_LISTED, Batch, Batches, BatchState, batches_of
from jobq.errors import BackendUnavailable, QueueNotFound
from jobq.journal.wait_for_end import patiently
from jobq.submit.pusher import make_queue

_FIRST_PAUSE_SECONDS: Final = 0.05
_LONGEST_PAUSE_SECONDS: Final = 1.0
_SHARE: Final = 10.0  # looking takes a tenth of the time at most, however many tasks are counted


async def begun(
    backend: Backend, name: str, plan: Plan, *, creates: bool = True, on_created: Callable[[], None] = lambda: None
) -> Batch:
    """Open a batch, or say more of one that is open; a queue that is missing is made.

    Args:
        backend: of its queue.
        name: of the batch.
        plan: what is said of it.
        creates: whether to make a missing queue.
        on_created: called when it was made.

    Raises:
        ConfigurationError: this queue keeps no batches.
    """
    batches = batches_of(backend)
    try:
        return await batches.begin(name, plan)
    except QueueNotFound as missing:
        if not creates:
            raise
        if await make_queue(backend, missing):
            on_created()
        return await batches.begin(name, plan)


async def finished(
    batches: Batches,
    name: str,
    *,
    timeout: timedelta | None = None,
    on_look: Callable[[Batch], None] = lambda _: None,
    away: Callable[[BackendUnavailable], None] | None = None,
) -> tuple[Batch, bool]:
    """Wait until a batch has finished.

    Args:
        batches: of its queue.
        name: of the batch.
        timeout: how long at most; None = as long as it takes.
        on_look: given what each look finds.
        away: called once each time that the service does not answer, and the wait goes on; None = that is raised.

    Returns:
        It, as it was last seen, and whether it had finished.

    Raises:
        BatchNotFound: as it says.
        BackendUnavailable: the service does not answer, and `away` is None.
    """
    until = None if timeout is None else time.monotonic() + timeout.total_seconds()
    pause = _FIRST_PAUSE_SECONDS

    def is_away(error: BackendUnavailable) -> None:
        if away is None:
            raise error
        away(error)

    while True:
        began = time.monotonic()
        found = await patiently(lambda: batches.find(name), is_away)
        on_look(found)
        if found.state is BatchState.FINISHED:
            return found, True
        left = None if until is None else until - time.monotonic()
        if left is not None and left <= 0:
            return found, False
        pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
        seconds = max(pause, _SHARE * (time.monotonic() - began))
        await asyncio.sleep(seconds if left is None else min(seconds, left))


async def put_back(backend: Backend, name: str, *, on_progress: Callable[[int], None] = lambda _: None) -> int:
    """Put the dead letters of a batch back into the queue; return how many.

    Args:
        backend: of its queue.
        name: of the batch.
        on_progress: called with how many are back so far.
    """
    count, after = 0, ""
    if isinstance(backend, WalksDead):
        async with aclosing(backend.walk_dead()) as walk:
            async for window in walk:
                if meant := [each for each in window if each.batch == name]:
                    count += len(await backend.redrive(meant))
                    on_progress(count)
        return count
    while page := await batches_of(backend).members(name, after, MOST_LISTED, "dead"):
        count += len(await backend.redrive([IdInBatch.of(member.id, name) for member in page]))
        on_progress(count)
        after = page[-1].id
    return count


async def canceled(batches: Batches, name: str, *, on_look: Callable[[Batch], None] = lambda _: None) -> Batch:
    """Cancel a batch until none of its tasks waits; those that run have been asked to end.

    Args:
        batches: of its queue.
        name: of the batch.
        on_look: given what each step leaves.
    """
    while True:
        found = await batches.cancel(name)
        on_look(found)
        if not found.counts["ready"] + found.counts["scheduled"]:
            return found
        await asyncio.sleep(0)
