"""Ids of tasks that also say of which batch: a queue may know an id only within its batch (`knows_batch_ids`)."""

from collections.abc import Iterable
from typing import Self


class IdInBatch(str):
    """The id of a dead letter that also says of which batch its task is: in another there may be one of that id.

    A backend of which an id names one task in all of its queue takes it for the id that it is.

    Attributes:
        batch: its name; None = of none. A plain id means a task of any, or of none.
    """

    __slots__ = ("batch",)
    batch: str | None

    @classmethod
    def of(cls, task_id: str, batch: str | None) -> Self:
        """Return the id of a task of a batch."""
        made = cls(task_id)
        made.batch = batch
        return made

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        """A copy in another process is the id alone."""
        return str, (str(self),)


def is_meant(task_id: str, batch: str | None) -> bool:
    """Return whether an id may mean a task of this batch; None = of none."""
    return not isinstance(task_id, IdInBatch) or task_id.batch == batch


def key_of(task_id: str) -> str | tuple[str, str | None]:
    """Return what tells ids apart, which are equal as texts where only their batches differ."""
    return (str(task_id), task_id.batch) if isinstance(task_id, IdInBatch) else task_id


def without(ids: Iterable[str], done: Iterable[str]) -> list[str]:
    """Return those ids of which a backend has not said that it has done something to them.

    Args:
        ids: that were asked for.
        done: what it said; one that knows no batches says the ids alone.
    """
    keys = set(map(key_of, done))
    return [each for each in ids if key_of(each) not in keys and str(each) not in keys]
