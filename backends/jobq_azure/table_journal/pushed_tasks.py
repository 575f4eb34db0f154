"""What this process has pushed: its rows may come later, or be of another task of the same id."""

import math
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from jobq.journal.records import TaskRecord, TaskState
from jobq.task import Task
from jobq_azure.table_journal import entities as rows
from jobq_azure.table_journal.client import Row

_MOST: Final = 100_000


@dataclass(slots=True)
class Pushed:
    """A task that this process has pushed.

    Attributes:
        record: where it was then.
        born: wall time in seconds when it was created.
        is_seen: whether the table has shown it since.
        has_ended: whether it has shown its end.
        was_found: whether somebody has looked for it: what is missing later was cleared, or is not written yet.
    """

    record: TaskRecord
    born: float
    is_seen: bool = False
    has_ended: bool = False
    was_found: bool = False


class PushedTasks(OrderedDict[str, Pushed]):
    """Those of one queue, the latest of each id.

    Args:
        apart: returns by how many seconds two tasks of one id are apart at least; of nearer ones the queue takes the
            second for a repetition (S8).
    """

    def __init__(self, apart: Callable[[], float]) -> None:
        super().__init__()
        self._apart = apart

    def add(self, tasks: Sequence[Task]) -> None:
        """Remember what the queue has acknowledged."""
        now = time.time()
        for task in tasks:
            state = TaskState.SCHEDULED if (task.not_before or 0.0) > now else TaskState.READY
            record = TaskRecord(id=task.id, state=state, attempt=0, at=task.not_before or now)
            self[task.id] = Pushed(record, task.created or 0.0)
        while len(self) > _MOST:
            self.popitem(last=False)

    def expect_row(self, task: Task) -> None:
        """Expect a row of a task that was pushed: it is gone when there is none."""
        ours = self.get(task.id)
        if ours is not None and ours.born == (task.created or 0.0):
            ours.is_seen = True

    def seen_in_table(self, ids: Sequence[str]) -> set[str]:
        """Return of which of these the table has a row, unless it was deleted."""
        return {id_ for id_ in ids if id_ in self and self[id_].is_seen}

    def born_of(self, id_: str, row: Row | None) -> str:
        """Return what distinguishes the task of this id from another, as far as is known."""
        if row is None or self._is_former(id_, row, math.inf):
            return rows.moment(self[id_].born if id_ in self else None)
        return str(row.get("Born") or "")

    def is_anothers(self, id_: str, row: Row, latest: float = math.inf) -> bool:
        """Return whether a row is of another task of this id than ours, a former one or one that was pushed since.

        Args:
            id_: of both.
            row: of it.
            latest: wall time in seconds, the latest at which it can have been created where the row does not say.
        """
        born = rows.born_in(row)
        is_later = id_ in self and born is not None and born - self[id_].born > self._apart()
        return is_later or self._is_former(id_, row, latest)

    def _is_former(self, id_: str, row: Row, latest: float) -> bool:
        """Return whether a row is of the task that had this id before; not if the queue took ours to repeat it (S8)."""
        born = rows.born_by(row)
        return id_ in self and self[id_].born - (latest if born is None else born) > self._apart()
