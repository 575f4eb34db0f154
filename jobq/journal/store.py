"""The protocol that every journal speaks: how it is read, and how a task is canceled (architecture 8).

Reading takes no lock that a claim waits for. What every verb may raise is what the backend's own verbs raise.
"""

from collections.abc import Sequence
from typing import Final, Protocol, runtime_checkable

from jobq.errors import ConfigurationError
from jobq.journal.records import Attempt, Canceled, JournalStats, TaskRecord

MOST_IDS: Final = 500  # of one call


class Journal(Protocol):
    """What is known of the tasks of one queue."""

    async def find(self, ids: Sequence[str]) -> list[TaskRecord]:
        """Return where these tasks are, at most MOST_IDS; one that is not known is left out.

        Where their bodies have more than PAGE_BYTES (`jobq.servable`), later large ones are empty; with `running` too.
        """
        ...

    async def running(self, limit: int, batch: str | None = None) -> list[TaskRecord]:
        """Return up to `limit` tasks that are leased, or whose lease ran out, the longest first; without `last`.

        Args:
            limit: how many.
            batch: the name of one = its tasks alone, of a queue that keeps batches; none are of one that is not there.
        """
        ...

    async def unfinished(self, after: str, limit: int) -> list[TaskRecord]:
        """Return up to `limit` tasks that have not ended, in the store's order of ids, from the first above `after`.

        Fewer where their bodies have PAGE_BYTES or more; none = there are no more.
        """
        ...

    async def ids_with(self, part: str, limit: int) -> list[str]:
        """Return up to `limit` ids of tasks, ended or not, in which this part stands; no record is read for it."""
        ...

    async def attempts(self, task_id: str) -> list[Attempt]:
        """Return the attempts of a task that were recorded, in order; one that nobody could record is missing."""
        ...

    async def output(self, task_id: str, attempt: int | None = None) -> tuple[int, str] | None:
        """Return the number of an attempt that has ended, the last by default, and the end of its output."""
        ...

    async def stats(self, window_seconds: float) -> JournalStats:
        """Count."""
        ...

    async def cancel(self, ids: Sequence[str]) -> list[Canceled]:
        """Cancel these tasks, at most MOST_IDS; repeating it is safe.

        One that waits has ended with the answer. A running one is stopped by its worker, with its next heartbeat.
        """
        ...


@runtime_checkable
class KeepsJournal(Protocol):
    """A backend whose queue keeps a journal."""

    @property
    def journal(self) -> Journal | None:
        """The journal; None = it is off (JOBQ_JOURNAL)."""
        ...


def journal_of(backend: object) -> Journal:
    """Return a backend's journal.

    Raises:
        ConfigurationError: it keeps none; says which do.
    """
    if not isinstance(backend, KeepsJournal):
        raise ConfigurationError(
            f"the service of queue {getattr(backend, 'name', '?')!r} keeps no journal, so nothing is known of a task"
            " but that it waits or is dead; embedded, SQLite and PostgreSQL queues keep one, also over HTTP, and a"
            " Storage Queue where JOBQ_JOURNAL=tables says so, for those who push and work: see docs/journal.md"
        )
    if backend.journal is None:
        raise ConfigurationError("the journal is off: JOBQ_JOURNAL says so")
    return backend.journal
