"""Ids of dead letters that also say which: several may have one id, of other batches or of other work."""

from collections.abc import Iterable
from typing import Self

from jobq.errors import ConfigurationError


class IdInBatch(str):
    """The id of a dead letter that also says of which batch its task is: in another there may be one of that id.

    A backend of which an id names one task in all of its queue takes it for the id that it is.

    Attributes:
        batch: its name; None = of none. A plain id means a task of any, or of none.
        work: `DeadLetter.work` of the letter; empty = any.
    """

    __slots__ = ("batch", "work")
    batch: str | None
    work: str

    @classmethod
    def of(cls, task_id: str, batch: str | None, work: str = "") -> Self:
        """Return the id of a task of a batch."""
        made = cls(task_id)
        made.batch, made.work = batch, work
        return made

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        """A copy in another process is the id alone."""
        return str, (str(self),)


def is_meant(task_id: str, batch: str | None, work: str = "") -> bool:
    """Return whether an id may mean a task of this batch and work; None = of no batch, empty = the work is not told."""
    if not isinstance(task_id, IdInBatch):
        return True
    return task_id.batch == batch and ("" in (work, task_id.work) or task_id.work == work)


def key_of(task_id: str) -> str | tuple[str, str | None, str]:
    """Return what tells ids apart, which are equal as texts where only their batches or works differ."""
    return (str(task_id), task_id.batch, task_id.work) if isinstance(task_id, IdInBatch) else task_id


def check_one_work(ids: Iterable[str], letters: Iterable[tuple[str, str | None, str]]) -> None:
    """Raise ConfigurationError where one of these ids means letters of different work: all of them would be deleted.

    Args:
        ids: of letters that are to be deleted.
        letters: the id, the batch and the work of each that there is.
    """
    wanted = {str(each): each for each in ids if not (isinstance(each, IdInBatch) and each.work)}
    works: dict[str, set[str]] = {}
    for id_, batch, work in letters:
        if id_ in wanted and is_meant(wanted[id_], batch):
            works.setdefault(id_, set()).add(work)
    for id_, found in works.items():
        if len(found) > 1:
            raise ConfigurationError(
                f"{len(found)} dead letters have the id {id_!r:.120} and hold different work, so nothing was purged."
                " `dead list` shows them; `dead purge` with --where id=ID and a second --where names one of them"
            )


def without(ids: Iterable[str], done: Iterable[str]) -> list[str]:
    """Return those ids of which a backend has not said that it has done something to them.

    Args:
        ids: that were asked for.
        done: what it said; one that knows no batches says the ids alone.
    """
    keys = set(map(key_of, done))
    return [each for each in ids if key_of(each) not in keys and str(each) not in keys]
