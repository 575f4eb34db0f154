"""The batches of a queue that a service serves: what the service's own store keeps, asked for over HTTP."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any
from urllib.parse import quote

from jobq.batch_plan import Plan
from jobq.batches import MOST_LISTED, Batch, Member, checked_name, findable_name

Ask = Callable[..., Awaitable[Any]]


class HttpBatches:
    """The batches of one queue.

    An answer that is lost is told as AnswerLost, and each of these requests may then be sent again as it was: `begin`
    opens none that is there, and says the same of it; what is sealed, or marked as canceled, is so already; and what
    `reopen` has opened is open, no longer a finished one whose round would be raised.

    Args:
        ask: requests that may be repeated: method, path below the queue's, body, `query`.
    """

    def __init__(self, ask: Ask) -> None:
        self._ask = ask

    async def begin(self, name: str, plan: Plan) -> Batch:
        """Open one, or say more of it."""
        plan.checked(checked_name(name))
        return await self._changed("PUT", name, "", {"template": plan.template, "then": list(plan.then)})

    async def seal(self, name: str) -> Batch:
        """Let it take no more tasks."""
        return await self._changed("POST", name, "/seal")

    async def reopen(self, name: str) -> Batch:
        """Let it take tasks again."""
        return await self._changed("POST", name, "/reopen")

    async def cancel(self, name: str) -> Batch:
        """Seal it, end what waits, and ask what runs to end."""
        return await self._changed("POST", name, "/cancel")

    async def find(self, name: str) -> Batch:
        """Return it, counted."""
        return Batch.of_fields(await self._ask("GET", _path(name)))

    async def list(self, after: str, limit: int, *, unfinished: bool = False) -> Sequence[Batch]:
        """Return some, by name, MOST_LISTED at most."""
        if limit < 1:
            return []
        query = _page(after, limit) | ({"unfinished": "true"} if unfinished else {})
        answer = await self._ask("GET", "/batches", query=query)
        return [Batch.of_fields(each) for each in answer["batches"]]

    async def members(self, name: str, after: str, limit: int, state: str | None = None) -> Sequence[Member]:
        """Return some of its tasks, by id, MOST_LISTED at most."""
        if limit < 1:
            return []
        query = _page(after, limit) | ({} if state is None else {"state": state})
        answer = await self._ask("GET", f"{_path(name)}/tasks", query=query)
        return [Member(id=each["id"], state=each["state"], params=each["params"]) for each in answer["tasks"]]

    async def _changed(self, method: str, name: str, verb: str, body: object = None) -> Batch:
        return Batch.of_fields(await self._ask(method, f"{_path(name)}{verb}", body))


def _path(name: str) -> str:
    return f"/batches/{quote(findable_name(name), safe='')}"


def _page(after: str, limit: int) -> dict[str, str]:
    return {"after": after, "limit": str(min(limit, MOST_LISTED))}
