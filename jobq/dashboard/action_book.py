"""What was asked for and confirmed on all tasks of a filter: kept in a document of the place, until it is done.

The document alone says what is to be done. Services write it and nobody else: who may only push, or hold leases, can
begin nothing by it. How far an action is, and who does it, is told by its lease (`jobq.dashboard.bulk`).
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Final

from jobq.errors import ConfigurationError
from jobq.servable import Servable, change_document
from jobq.server.error_responses import RequestRefused

_DOCUMENT: Final = "ui-actions"
_MOST_KEPT: Final = 200


class ActionState(StrEnum):
    """Where an action is."""

    OPEN = "open"  # to be done
    RUNNING = "running"  # open, and a service is at it
    DONE = "done"
    STOPPED = "stopped"  # by somebody
    REFUSED = "refused"  # the token of who began it is no good any more, or the queue is gone


@dataclass(frozen=True, kw_only=True)
class BulkAction:
    """An action on all tasks that a filter takes.

    Attributes:
        id: of it; the latest come first by name.
        action: `retry`, `purge` or `cancel`.
        queue: whose tasks.
        query: the filter, as a page's address has it.
        began: by the store's clock, wall time in seconds since the epoch; what is so since later is left alone.
        by: the id of the token of who began it.
        state: where it is.
        handled: tasks so far.
    """

    id: str
    action: str
    queue: str
    query: str
    began: float
    by: str
    state: ActionState = ActionState.OPEN
    handled: int = 0


class ActionBook:
    """The actions of a place.

    Args:
        store: keeps them.
    """

    def __init__(self, store: Servable) -> None:
        self._store = store

    async def all(self) -> Sequence[BulkAction]:
        """Return those that are open, and the last ones, the latest first."""
        document = await self._store.document(_DOCUMENT)
        return _decoded(None if document is None else document.value)

    async def get(self, id_: str) -> BulkAction | None:
        """Return one; None = it is forgotten, or was never begun."""
        return next((each for each in await self.all() if each.id == id_), None)

    async def add(self, action: BulkAction) -> None:
        """Keep a new one; raises RequestRefused (429) where too many are open."""

        def added(known: list[BulkAction]) -> list[BulkAction]:
            is_open = [each for each in known if each.state is ActionState.OPEN]
            if len(is_open) >= _MOST_KEPT:
                raise RequestRefused(429, "too_many_requests", f"{len(is_open)} actions are not done yet; stop some")
            ended = [each for each in known if each.state is not ActionState.OPEN]
            return [action, *is_open, *ended[: _MOST_KEPT - len(is_open) - 1]]

        await self._change(added)

    async def end(self, id_: str, state: ActionState, handled: int | None = None) -> None:
        """Note that an open one is to be done no more.

        Args:
            id_: of it.
            state: why.
            handled: how many tasks it was done to; None = as was noted before.
        """

        def ended(known: list[BulkAction]) -> list[BulkAction]:
            return [
                replace(each, state=state, handled=each.handled if handled is None else handled)
                if each.id == id_ and each.state is ActionState.OPEN
                else each
                for each in known
            ]

        await self._change(ended)

    async def _change(self, change: Callable[[list[BulkAction]], list[BulkAction]]) -> None:
        def changed(value: bytes | None) -> bytes | None:
            known = _decoded(value)
            wanted = change(list(known))
            return None if wanted == known else json.dumps([asdict(each) for each in wanted]).encode()

        await change_document(self._store, _DOCUMENT, changed)


def _decoded(value: bytes | None) -> list[BulkAction]:
    if value is None:
        return []
    try:
        found = [BulkAction(**(fields | {"state": ActionState(fields["state"])})) for fields in json.loads(value)]
    except (ValueError, KeyError, TypeError):
        raise ConfigurationError("the actions in the database cannot be read: they are of a newer jobq") from None
    return sorted(found, key=lambda each: each.id)
