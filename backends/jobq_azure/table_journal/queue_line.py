"""How a queue is, by its journal: what the service's own counts do not say."""

from dataclasses import replace
from typing import Final

from jobq.journal.records import TaskState
from jobq.journal.views import RECENT, Count, QueueLine
from jobq_azure.table_journal import entities as rows
from jobq_azure.table_journal.ended_walk import EndedWalk
from jobq_azure.table_journal.looks import Looks, LooksUsedUp

ASKED_BEFORE: Final = 2  # requests, of the service: its counts
_NEWEST: Final = float("inf")
_LIVE: Final = (TaskState.READY, TaskState.SCHEDULED, TaskState.RUNNING, TaskState.EXPIRED)


async def line_with(line: QueueLine, looks: Looks) -> QueueLine:
    """Return a queue with what its journal says has not ended, up to some thousand, and what ended lately.

    Args:
        line: as the service counts it.
        looks: at the table.
    """
    counts, oldest, ended = dict(line.counts), None, dict[TaskState, Count]()
    now = looks.now()
    try:
        recent = await EndedWalk(looks, now).before((), _NEWEST, now - RECENT.total_seconds())
        states = [task.record.state for task in recent.tasks]
        ended = {
            state: Count(number=states.count(state), is_exact=recent.key is None) for state in dict.fromkeys(states)
        }
        numbers, waiting, is_exact = await _live(looks)
        counts |= {state: Count(number=number, is_exact=is_exact) for state, number in numbers.items()}
        oldest = max(0.0, now - min(waiting)) if waiting else None
    except LooksUsedUp:
        pass
    return replace(line, counts=counts, ended=ended, oldest_ready_seconds=oldest)


async def _live(looks: Looks) -> tuple[dict[TaskState, int], list[float], bool]:
    """Return how many there are in each state, since when those wait that are ready, and whether that is all."""
    numbers, waiting = dict.fromkeys(_LIVE, 0), list[float]()
    first, end = rows.below("l")
    where, select = f"State ne '{rows.DONE}'", "State,Fencing,At,Due,LeaseLeft"
    after = None
    while True:
        found, after = await looks.look(first, end, where=where, select=select, after=after)
        for row in found:
            record = rows.live_record(row, looks.now(), cancel_requested=False)
            numbers[record.state] += 1
            if record.state is TaskState.READY and record.at is not None:
                waiting.append(record.at)
        if after is None or not looks.left:
            return numbers, waiting, after is None
