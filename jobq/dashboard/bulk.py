"""Actions on all tasks that a filter takes, however many: in steps, and gone on with by another service after a kill.

Each is a walk (`jobq.lease.traversal`) under a named lease of the place's own queue, `jobq.action.ID`: the lease says
who does it, its cursor how far it is. A step's verbs are safe to repeat, so who is killed leaves one step to be done
again. What comes after the beginning is not touched: a task that is put back and dies again stays where it is.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final

from starlette.datastructures import QueryParams

from jobq.dashboard import filters
from jobq.errors import JobqError
from jobq.journal.records import TaskState
from jobq.journal.store import journal_of
from jobq.journal.task_filter import TaskFilter
from jobq.journal.task_rows import TaskRow
from jobq.journal.views import Views
from jobq.lease.named import NamedLease, named_lease
from jobq.lease.store import LeaseRecord, LeaseState, store_of
from jobq.lease.traversal import Page, Progress, Traversal
from jobq.server.backend_pool import BackendPool
from jobq.server.error_responses import RequestRefused
from jobq.server.tokens import audit
from jobq.settings import Settings

PREFIX: Final = "jobq.action."
_STEP: Final = 500  # tasks
_SHARE: Final = 0.2  # of the time that an action takes for itself: workers have the rest
_TTL: Final = timedelta(seconds=20)
_LOOK_SECONDS: Final = 5.0  # for actions that were left by who was killed
_MOST_SHOWN: Final = 200
_LAST_SECOND: Final = 2**32 - 1  # since the epoch
_WAITS: Final = frozenset({TaskState.READY, TaskState.SCHEDULED, TaskState.RUNNING, TaskState.EXPIRED})
STATES: Final = {"retry": frozenset({TaskState.DEAD}), "purge": frozenset({TaskState.DEAD}), "cancel": _WAITS}
_log: Final = logging.getLogger("jobq.server")


@dataclass(frozen=True, kw_only=True)
class BulkAction:
    """An action as its lease tells.

    Attributes:
        id: of it.
        action: `retry`, `purge` or `cancel`.
        queue: whose tasks.
        query: the filter, as a page's address has it.
        began: wall time in seconds since the epoch; what is so since later is left alone.
        by: the id of the token of who began it.
        handled: tasks so far.
        state: `running`, `done`, `stopped`, or `left` by who was killed.
    """

    id: str
    action: str
    queue: str
    query: str
    began: float
    by: str
    handled: int
    state: str

    @property
    def source(self) -> dict[str, str]:
        """What its cursor says of it."""
        return {
            "action": self.action,
            "queue": self.queue,
            "query": self.query,
            "began": repr(self.began),
            "by": self.by,
        }

    @classmethod
    def of(cls, record: LeaseRecord) -> "BulkAction | None":
        """Return what a lease tells; None = it was not begun whole, and nothing was done."""
        progress = Progress.decode(record.cursor, record.name)
        if progress is None:
            return None
        state = "running" if record.state is LeaseState.ACTIVE else "left"
        if progress.is_done:
            state = "done"
        elif record.is_revoked:
            state = "stopped"
        source = progress.source
        return cls(
            id=record.name.removeprefix(PREFIX),
            action=source["action"],
            queue=source["queue"],
            query=source["query"],
            began=float(source["began"]),
            by=source["by"],
            handled=progress.handled,
            state=state,
        )


def wanted_by(action: str, query: str) -> TaskFilter | None:
    """Return which tasks an action is about: those of the filter that it can be done to; None = there can be none."""
    wanted = filters.read(QueryParams(query)).wanted
    states = wanted.states & STATES[action] if wanted.states else STATES[action]
    return replace(wanted, states=states) if states else None


class BulkActions:
    """Of one service.

    Args:
        places: the backends.
        views: finds the tasks.
        settings: of the leases.
    """

    def __init__(self, places: BackendPool, views: Views, settings: Settings) -> None:
        self._places = places
        self._views = views
        self._settings = settings
        self._running: dict[str, asyncio.Task[None]] = {}
        self._loop: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Go on with what others have left."""
        self._loop = asyncio.create_task(self._look_for_ever(), name="actions that were left")

    async def aclose(self) -> None:
        """Leave what is under way to the next service."""
        tasks = [*self._running.values(), *([self._loop] if self._loop else [])]
        for each in tasks:
            each.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def begin(self, action: str, queue: str, query: str, began: float, by: str) -> str:
        """Begin one; return its id once it is kept, so that it is done whoever is killed.

        Args:
            action: one of STATES.
            queue: whose tasks.
            query: of a page of tasks.
            began: wall time in seconds since the epoch, when the tasks were counted that are meant.
            by: the id of a token.
        """
        id_ = f"{_LAST_SECOND - int(began):08x}-{secrets.token_hex(4)}"  # so that the latest come first by name
        made = BulkAction(
            id=id_, action=action, queue=queue, query=query, began=began, by=by, handled=0, state="running"
        )
        kept = asyncio.Event()
        task = self._run(made, kept)
        waiting = asyncio.ensure_future(kept.wait())
        await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if not kept.is_set():
            task.result()
            raise RequestRefused(503, "unavailable", "the action could not be begun; nothing was changed")
        return id_

    async def list(self) -> Sequence[BulkAction]:
        """Return the last ones, the latest first."""
        found = await self._views.leases(self._places.default, PREFIX, "", _MOST_SHOWN)
        made = [action for record in found.rows if (action := BulkAction.of(record)) is not None]
        return sorted(made, key=lambda each: each.began, reverse=True)

    async def stop(self, id_: str) -> None:
        """Stop one: it does no further step once its lease has run out, and nobody goes on with it."""
        await store_of(self._places.root).revoke(f"{PREFIX}{id_}")

    def _run(self, action: BulkAction, kept: asyncio.Event | None = None) -> asyncio.Task[None]:
        task = asyncio.create_task(self._done(action, kept or asyncio.Event()), name=f"action {action.id}")
        self._running[action.id] = task

        def ended(task: asyncio.Task[None]) -> None:
            self._running.pop(action.id, None)
            if not task.cancelled() and (error := task.exception()) is not None:
                _log.warning("action %s is left: %s: %s", action.id, type(error).__name__, error)

        task.add_done_callback(ended)
        return task

    async def _done(self, action: BulkAction, kept: asyncio.Event) -> None:
        walk = Traversal(self._lease(action.id), self._fetch(action), batch_size=_STEP, source=action.source)
        changed = 0
        async with walk:
            if not walk.progress.handled:
                await walk.lease.save(walk.progress.encode())
            kept.set()
            async for page in walk:
                began = time.monotonic()
                changed += await self._step(action, page.items)
                await asyncio.sleep((time.monotonic() - began) * (1 / _SHARE - 1))
        audit(f"ui {action.action} all", caller=action.by, queue=action.queue, query=action.query, state="done",
              handled=walk.progress.handled, changed_here=changed)  # fmt: skip

    def _lease(self, id_: str) -> NamedLease:
        return named_lease(store_of(self._places.root), self._settings, f"{PREFIX}{id_}", ttl=_TTL, wait=False)

    def _fetch(self, action: BulkAction) -> Any:
        given = wanted_by(action.action, action.query)
        assert given is not None, "checked when it was begun"
        # Ages are those of the beginning: a task that becomes old enough meanwhile was not meant.
        latest = action.began - (given.min_age_seconds or 0.0)
        earliest = 0.0 if given.max_age_seconds is None else action.began - given.max_age_seconds
        wanted = replace(given, min_age_seconds=None, max_age_seconds=None)

        async def fetch(after: str | None, limit: int) -> Page[str]:
            while True:
                page = await self._views.tasks(action.queue, wanted, after or "", limit)
                ids = [row.id for row in page.rows if _since(row) <= action.began and _has_age(row, earliest, latest)]
                if ids or page.after is None:
                    return Page(items=ids, after=page.after, is_last=page.after is None)
                after = page.after  # a search that has found nothing yet

        return fetch

    async def _step(self, action: BulkAction, ids: Sequence[str]) -> int:
        backend = await self._places.take(action.queue)
        try:
            if action.action == "cancel":
                return len(await journal_of(backend).cancel(ids))
            return len(await (backend.redrive(ids) if action.action == "retry" else backend.purge_dead(ids)))
        finally:
            self._places.give(action.queue)

    async def _look_for_ever(self) -> None:
        while True:
            try:
                for action in await self.list():
                    if action.state == "left" and action.id not in self._running:
                        self._run(action)
            except JobqError as error:
                _log.debug("actions that were left are not looked for: %s", error)
            await asyncio.sleep(_LOOK_SECONDS)


def _has_age(row: TaskRow, earliest: float, latest: float) -> bool:
    return earliest <= (row.at or 0.0) and (latest >= (row.at or 0.0) or row.state is TaskState.SCHEDULED)


def _since(row: TaskRow) -> float:
    """Return when what is to be done to a task began to be so: a dead letter died, another was made."""
    at = row.at if row.state is TaskState.DEAD else row.created
    return at if at is not None else 0.0
