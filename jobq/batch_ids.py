"""Ids of tasks that also say of which batch: a queue may know an id only within its batch (`knows_batch_ids`)."""

from typing import Self


class IdInBatch(str):
    """The id of a dead letter that also says of which batch its task is: in another there may be one of that id.

    A backend of which an id names one task in all of its queue takes it for the id that it is.

    Attributes:
        batch: its name; None = any, or none.
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


def batch_meant(task_id: str) -> str | None:
    """Return in which batch an id is meant; None = in any, or in none."""
    return task_id.batch if isinstance(task_id, IdInBatch) else None
