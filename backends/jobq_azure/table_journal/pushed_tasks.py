"""What this process has pushed: its rows may come later."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from jobq.journal.records import TaskRecord, TaskState
from jobq.task import Task
from jobq_azure.table_journal import entities as rows
from jobq_azure.table_journal.entities import IdOfLife

_MOST: Final = 100_000


@dataclass(slots=True)
class Pushed:
    """A task that this process has pushed.

    Attributes:
        record: where it was then.
        is_known: whether the table has, or had, a row of it.
        was_found: whether somebody has looked for it: what is missing later was cleared, or is not written yet.
    """

    record: TaskRecord
    is_known: bool = False
    was_found: bool = False


class PushedTasks:
    """Those of one queue, the latest 100,000."""

    def __init__(self) -> None:
        self._tasks: OrderedDict[tuple[str, int], Pushed] = OrderedDict()
        self._latest: dict[str, int] = {}  # the birth of the latest of each id

    def add(self, tasks: Sequence[Task], now: float) -> list[str]:
        """Remember what the queue has acknowledged by now; return ids that know which life each is."""
        ids = [IdOfLife.of(task.id, rows.birth(task.created)) for task in tasks]
        for id_, task in zip(ids, tasks, strict=True):
            state = TaskState.SCHEDULED if (task.not_before or 0.0) > now else TaskState.READY
            record = TaskRecord(id=id_, state=state, attempt=0, at=task.not_before or now, batch=task.batch)
            self.forget(id_, id_.birth)  # it becomes the latest
            self._tasks[id_, id_.birth] = Pushed(record)
            self._latest[id_] = id_.birth
        while len(self._tasks) > _MOST:
            self.forget(*next(iter(self._tasks)))
        return [*ids]

    def birth_of(self, id_: str) -> int | None:
        """Return which life an id means: the one that it names, or else the latest that was pushed; None = any."""
        return id_.birth if isinstance(id_, IdOfLife) else self._latest.get(id_)

    def get(self, id_: str, birth: int | None) -> Pushed | None:
        """Return what is known of a life; None = it was not pushed here."""
        return None if birth is None else self._tasks.get((id_, birth))

    def expect_row(self, task: Task) -> None:
        """Expect a row of a task that was pushed: it is gone when there is none."""
        if (pushed := self.get(task.id, rows.birth(task.created))) is not None:
            pushed.is_known = True

    def forget(self, id_: str, birth: int) -> None:
        """Forget a life."""
        self._tasks.pop((id_, birth), None)
        if self._latest.get(id_) == birth:
            del self._latest[id_]

    def forget_before(self, moment: float) -> None:
        """Forget what was made before a wall time in seconds."""
        for id_, birth in [each for each in self._tasks if each[1] < moment * rows.MICROSECONDS]:
            self.forget(id_, birth)
