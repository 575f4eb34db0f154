"""Waiting for tasks to end, by asking their journal: at first often, then less, and never without a pause."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterable
from typing import Final

from jobq.journal.records import TaskRecord
from jobq.journal.store import MOST_IDS, Journal

_FIRST_PAUSE_SECONDS: Final = 0.05
_LONGEST_PAUSE_SECONDS: Final = 0.5
_SHARE: Final = 5.0  # asking takes a fifth of the time at most, however many tasks there are


async def ended(journal: Journal, ids: Iterable[str]) -> AsyncIterator[tuple[str, TaskRecord | None]]:
    """Yield each task once it has ended, with where it is; None for one that is not known any more.

    Args:
        journal: of their queue.
        ids: the tasks, which were acknowledged (S1): one that is missing was cleared or purged.
    """
    left = dict.fromkeys(ids)
    pause = _FIRST_PAUSE_SECONDS
    while left:
        began = time.monotonic()
        some = False
        for batch in _batches(list(left)):
            found = {record.id: record for record in await journal.find(batch)}
            for id_ in batch:
                record = found.get(id_)
                if record is None or record.state.is_final:
                    del left[id_]
                    some = True
                    yield id_, record
        if left:
            pause = _FIRST_PAUSE_SECONDS if some else min(pause * 1.5, _LONGEST_PAUSE_SECONDS)
            await asyncio.sleep(max(pause, _SHARE * (time.monotonic() - began)))


def _batches(ids: list[str]) -> Iterable[list[str]]:
    return (ids[start : start + MOST_IDS] for start in range(0, len(ids), MOST_IDS))
