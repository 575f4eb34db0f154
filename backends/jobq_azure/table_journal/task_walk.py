"""The tasks of a journal in the orders of a list, as `jobq.journal.task_search` asks for them.

What waits stands in the order of the ids, and what is leased the longest first of each thousand: those are the orders
that the table's keys give. Where a task is is what its row says; its own page looks whether that is the last word.
"""

import re
from typing import TYPE_CHECKING, Final

from jobq.journal.records import TaskState
from jobq.journal.task_search import FoundTask, Key, SearchStep, TaskOrder, TaskSearch, Walked, float_of, no_place
from jobq_azure.table_journal import entities as rows
from jobq_azure.table_journal.client import Row
from jobq_azure.table_journal.ended_walk import EndedWalk
from jobq_azure.table_journal.looks import Looks, LooksUsedUp

if TYPE_CHECKING:
    from collections.abc import Mapping

_PLACE: Final = re.compile(r"l![A-Za-z0-9._=~!-]{1,480}")
_CONTINUED: Final = ("NextPartitionKey", "NextRowKey")
_FIRST, _END = rows.below("l")


async def searched(search: TaskSearch, looks: Looks) -> None:
    """Go through the tasks that a search asks for.

    Args:
        search: takes them in.
        looks: at the table.
    """
    now = looks.now()
    ends = EndedWalk(looks, now)
    while (step := search.step()) is not None:
        try:
            search.take(step, await _walked(looks, ends, step, now))
        except LooksUsedUp:
            search.cut()


async def _walked(looks: Looks, ends: EndedWalk, step: SearchStep, now: float) -> Walked:
    match step.order:
        case TaskOrder.DEAD | TaskOrder.ENDED:
            walked = await ends.before(step.key, step.newest, step.oldest)
            is_dead = step.order is TaskOrder.DEAD
            tasks = [each for each in walked.tasks if (each.record.state is TaskState.DEAD) is is_dead]
            return Walked(tasks=tasks, looked_at=walked.looked_at, key=walked.key, at=walked.at)
        case TaskOrder.EXPIRED | TaskOrder.RUNNING:
            return await _leased(looks, step)
        case TaskOrder.READY:
            return await _waiting(looks, step, f"State eq 'ready' and Due le {now:.3f}")
        case TaskOrder.SCHEDULED:
            return await _waiting(looks, step, f"State eq 'ready' and Due gt {now:.3f}")
    return Walked()  # whatever is due stands among what is ready


async def _waiting(looks: Looks, step: SearchStep, where: str) -> Walked:
    first = _FIRST
    after: Mapping[str, str] | None = None
    if len(step.key) == len(_CONTINUED):
        after = dict(zip(_CONTINUED, step.key, strict=True))
    elif step.key:
        first = _behind(step.key)
    found, after = await looks.look(first, _END, where=where, limit=step.look, after=after)
    key: Key | None = None
    if after is not None:
        key = (found[-1]["RowKey"],) if found else tuple(after.get(name, "") for name in _CONTINUED)
    return Walked(tasks=[_found(looks, (row["RowKey"],), row) for row in found], looked_at=len(found), key=key)


async def _leased(looks: Looks, step: SearchStep) -> Walked:
    """Look at a thousand rows in the order of the ids; the key says behind which, and how far these are shown."""
    behind, shown = "", (float("-inf"), "")
    if step.key:
        if len(step.key) != 3:  # noqa: PLR2004 - see below
            raise no_place()
        behind, shown = step.key[0], (float_of(step.key[1]) if step.key[1] else float("-inf"), step.key[2])
    first = _behind((behind,)) if behind else _FIRST
    found, after = await looks.look(first, _END, where="State eq 'running'")
    records = sorted(
        ((float(row.get("At", 0.0)), str(row["RowKey"])), row) for row in found if _is_of(row, step.order, looks)
    )
    tasks = [_found(looks, (behind, at.hex(), key), row) for (at, key), row in records if (at, key) > shown]
    if after is None:
        return Walked(tasks=tasks, looked_at=len(tasks))
    last = found[-1]["RowKey"] if found else first
    return Walked(tasks=tasks, looked_at=len(found), key=(last, "", ""))


def _is_of(row: Row, order: TaskOrder, looks: Looks) -> bool:
    return (rows.lease_left(row, looks.now()) <= 0) is (order is TaskOrder.EXPIRED)


def _behind(key: Key) -> str:
    if len(key) != 1 or not _PLACE.fullmatch(key[0]):
        raise no_place()
    return f"{key[0]}!"


def _found(looks: Looks, key: Key, row: Row) -> FoundTask:
    record = rows.live_record(row, looks.now(), cancel_requested=False)
    return FoundTask(key, record, len(record.body))
