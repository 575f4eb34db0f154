"""The journal of a queue that a service serves: what the service's own store keeps, asked for over HTTP."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from jobq.journal.records import Attempt, Canceled, JournalStats, TaskRecord
from jobq.journal.wire import attempt_of, record_of

_MOST_SHOWN: Final = 1000  # of one request
Ask = Callable[..., Awaitable[Any]]


class HttpJournal:
    """What is known of the tasks of one queue.

    Args:
        ask: requests that may be repeated: method, path below the queue's, body, `query`.
    """

    def __init__(self, ask: Ask) -> None:
        self._ask = ask

    async def find(self, ids: Sequence[str]) -> list[TaskRecord]:
        """Return where these tasks are, at most MOST_IDS."""
        if not ids:
            return []
        return _records(await self._ask("POST", "/journal/find", {"ids": list(ids)}))

    async def running(self, limit: int, batch: str | None = None) -> list[TaskRecord]:
        """Return up to `limit` tasks that are leased, a thousand at most, the longest first."""
        return await self._shown("running", limit, {} if batch is None else {"batch": batch})

    async def unfinished(self, after: str, limit: int) -> list[TaskRecord]:
        """Return up to `limit` tasks that have not ended, in the store's order of ids."""
        found: list[TaskRecord] = []
        while limit > len(found):
            asked = min(limit - len(found), _MOST_SHOWN)
            page = await self._shown("unfinished", asked, {"after": found[-1].id if found else after})
            if not page:
                break
            found += page
        return found

    async def ids_with(self, part: str, limit: int) -> list[str]:
        """Return up to `limit` ids of tasks, a thousand at most, in which this part stands."""
        answer = await self._ask("GET", "/journal/ids", query={"part": part, "limit": str(min(limit, _MOST_SHOWN))})
        return [str(each) for each in answer["ids"]]

    async def attempts(self, task_id: str) -> list[Attempt]:
        """Return the attempts of a task that were recorded, in order."""
        answer = await self._ask("GET", "/journal/attempts", query={"id": task_id})
        return [attempt_of(each) for each in answer["attempts"]]

    async def output(self, task_id: str, attempt: int | None = None) -> tuple[int, str] | None:
        """Return the number of an attempt that has ended, the last by default, and the end of its output."""
        which = {} if attempt is None else {"attempt": str(attempt)}
        answer = await self._ask("GET", "/journal/output", query={"id": task_id} | which)
        return None if answer["attempt"] is None else (int(answer["attempt"]), str(answer["output"]))

    async def stats(self, window_seconds: float) -> JournalStats:
        """Count."""
        answer = await self._ask("GET", "/journal/stats", query={"window": repr(window_seconds)})
        names = ("states", "oldest_ready_seconds", "ended", "window_seconds", "first_ended_seconds")
        return JournalStats(**{name: answer[name] for name in names})

    async def cancel(self, ids: Sequence[str]) -> list[Canceled]:
        """Cancel these tasks, at most MOST_IDS."""
        if not ids:
            return []
        answer = await self._ask("POST", "/journal/cancel", {"ids": list(ids)})
        return [Canceled(each) for each in answer["canceled"]]

    async def _shown(self, verb: str, limit: int, more: dict[str, str] | None = None) -> list[TaskRecord]:
        if limit < 1:
            return []
        query = {"limit": str(min(limit, _MOST_SHOWN))} | (more or {})
        return _records(await self._ask("GET", f"/journal/{verb}", query=query))


def _records(answer: dict[str, Any]) -> list[TaskRecord]:
    return [record_of(each) for each in answer["records"]]
