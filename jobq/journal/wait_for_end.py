"""When tasks have ended, for `push --wait` and `result()`: the journal is asked often at first, then less."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from functools import partial
from typing import Final, TypeVar

from jobq.errors import BackendUnavailable
from jobq.journal.records import TaskRecord
from jobq.journal.store import MOST_IDS, Journal

T = TypeVar("T")
_FIRST_PAUSE_SECONDS: Final = 0.05
_LONGEST_PAUSE_SECONDS: Final = 0.5
_LONGEST_PAUSE_AWAY_SECONDS: Final = 2.0
_SHARE: Final = 5.0  # asking takes a fifth of the time at most, however many tasks there are


async def ended(
    journal: Journal,
    ids: Iterable[str],
    *,
    away: Callable[[BackendUnavailable], None] | None = None,
    lag: float = 0.0,
    unseen: bool = False,
) -> AsyncIterator[tuple[str, TaskRecord | None]]:
    """Yield each task once it has ended, with where it is; None for one that is not known any more.

    Args:
        journal: of their queue.
        ids: the tasks, each for itself where two have one id. They were acknowledged (S1): one that is missing was
            cleared or purged.
        away: called each time that the service does not answer, and the wait goes on.
        lag: seconds for which the record of a task that goes on may be missing again: `Capabilities.record_lag`.
        unseen: wait without an end also for a task of which there was no record yet.

    Raises:
        BackendUnavailable: the service does not answer, and `away` is None.
    """
    left = dict(enumerate(ids))
    seen, missed = set[int](), dict[int, float]()  # since when there is no record any more
    pause = _FIRST_PAUSE_SECONDS

    def is_away(error: BackendUnavailable) -> None:
        missed.clear()  # who runs a task could not say so, either
        if away is None:
            raise error
        away(error)

    while left:
        began = time.monotonic()
        some = False
        for batch in _batches(left):
            asked = [id_ for _, id_ in batch]
            found = {record.id: record for record in await patiently(partial(journal.find, asked), is_away)}
            for number, id_ in batch:
                record = found.get(id_)
                if record is not None:
                    seen.add(number)
                    missed.pop(number, None)
                    is_over = record.state.is_final
                elif number in seen:
                    is_over = began - missed.setdefault(number, began) >= lag
                else:
                    is_over = not unseen
                if is_over:
                    del left[number]
                    some = True
                    yield id_, record
        if left:
            pause = _FIRST_PAUSE_SECONDS if some else min(pause * 1.5, _LONGEST_PAUSE_SECONDS)
            await asyncio.sleep(max(pause, _SHARE * (time.monotonic() - began)))


async def patiently(ask: Callable[[], Awaitable[T]], away: Callable[[BackendUnavailable], None] | None) -> T:
    """Return the answer, however often the service is away before; see `ended`."""
    pause = _LONGEST_PAUSE_SECONDS
    while True:
        try:
            return await ask()
        except BackendUnavailable as error:
            if away is None:
                raise
            away(error)
        await asyncio.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_AWAY_SECONDS)


def _batches(left: dict[int, str]) -> list[list[tuple[int, str]]]:
    """Divide what is asked for, so that no two of one id are asked for at once: their records would be told by it."""
    times = Counter[str]()
    turns: dict[int, list[tuple[int, str]]] = {}
    for number, id_ in left.items():
        times[id_] += 1
        turns.setdefault(times[id_], []).append((number, id_))
    return [turn[start : start + MOST_IDS] for turn in turns.values() for start in range(0, len(turn), MOST_IDS)]
