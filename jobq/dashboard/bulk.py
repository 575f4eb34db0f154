"""Actions on all tasks that a filter takes, however many: in steps, and gone on with by another service after a kill.

What is to be done stands in the place's book of actions (`jobq.dashboard.action_book`). Each is a walk
(`jobq.lease.traversal`) under a named lease of the place's own queue, `jobq.action.ID`: the lease says who does it, its
cursor how far it is. A step's verbs are safe to repeat, so who is killed leaves one step to be done again. Before each
step the book and the token of who began it are looked at: what was stopped, or is not permitted any more, goes no
further. What becomes so after the confirmation is not touched: a task that is put back and dies again stays there.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final

from starlette.datastructures import QueryParams

from jobq.dashboard import filters
from jobq.dashboard.action_book import ActionBook, ActionState, BulkAction
from jobq.dashboard.change_notes import name_of, note
from jobq.errors import JobqError, MalformedTask, QueueNotFound, StoreUnusable
from jobq.journal.changes import QueueChange
from jobq.journal.records import TaskState
from jobq.journal.store import journal_of
from jobq.journal.task_filter import TaskFilter
from jobq.journal.task_rows import TaskRow
from jobq.journal.views import Views
from jobq.lease.named import NamedLease, named_lease
from jobq.lease.store import LeaseRecord, LeaseState, store_of
from jobq.lease.traversal import Page, Progress, Traversal
from jobq.servable import served
from jobq.server.backend_pool import BackendPool
from jobq.server.tokens import Scope, TokenBook, audit
from jobq.settings import Settings
from jobq.task import Task

PREFIX: Final = "jobq.action."
_STEP: Final = 500  # tasks
_SHARE: Final = 0.2  # of the time that an action takes for itself: workers have the rest
_TTL: Final = timedelta(seconds=20)
_LOOK_SECONDS: Final = 5.0  # for actions that were left by who was killed
_MOST_LEASES: Final = 500
_LAST_SECOND: Final = 2**32 - 1  # since the epoch
_WAITS: Final = frozenset({TaskState.READY, TaskState.SCHEDULED, TaskState.RUNNING, TaskState.EXPIRED})
STATES: Final = {"retry": frozenset({TaskState.DEAD}), "purge": frozenset({TaskState.DEAD}), "cancel": _WAITS}
SCOPES: Final = {"retry": Scope.OPERATE, "purge": Scope.ADMIN, "cancel": Scope.OPERATE}
_OF_PROCESS: Final = frozenset({"ui", "local"})  # tokens that a process makes for itself: another one knows them not
_log: Final = logging.getLogger("jobq.server")


class BulkFilter:
    """Which tasks an action is about: those of a filter that it can be done to, as they were when it was confirmed.

    Args:
        action: one of STATES.
        query: of a page of tasks.

    Attributes:
        wanted: them; None = there can be none.
    """

    def __init__(self, action: str, query: str) -> None:
        asked = filters.read(QueryParams(query)).wanted
        states = asked.states & STATES[action] if asked.states else STATES[action]
        self.wanted: TaskFilter | None = replace(asked, states=states) if states else None
        # Where a state, or what only an attempt has, is asked for, a task that was in another one then is another one.
        is_of_state = bool(asked.states) and not asked.states >= STATES[action]
        self._is_of_state = bool(is_of_state or asked.exit or asked.host or asked.reason or asked.error)

    @property
    def at_any_age(self) -> TaskFilter:
        """Them, whatever their age: that is held against when the action began (`takes`)."""
        assert self.wanted is not None, "checked when it was begun"
        return replace(self.wanted, min_age_seconds=None, max_age_seconds=None)

    def since(self, row: TaskRow) -> float | None:
        """Return since when a task can be meant, wall time in seconds since the epoch; None = the row does not say."""
        if row.state is TaskState.DEAD:  # another one may have been put back, and have died again
            return row.at
        if self._is_of_state and row.state is not TaskState.SCHEDULED and row.at is not None:
            return row.at
        return row.created

    def has_age(self, row: TaskRow, began: float) -> bool:
        """Return whether a task had the age that is asked for when the action began."""
        wanted = self.wanted
        if wanted is None or (wanted.min_age_seconds is None and wanted.max_age_seconds is None):
            return True
        age = -1.0 if row.at is None else began - row.at
        most = wanted.max_age_seconds
        return age >= (wanted.min_age_seconds or 0.0) and (most is None or age <= most)


class BulkActions:
    """Of one service.

    Args:
        places: the backends.
        views: finds the tasks.
        tokens: that are good.
        settings: of the leases.
    """

    def __init__(self, places: BackendPool, views: Views, tokens: TokenBook, settings: Settings) -> None:
        self._places = places
        self._views = views
        self._tokens = tokens
        self._settings = settings
        self._beginning: set[str] = set()
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

    @property
    def _book(self) -> ActionBook:
        return ActionBook(served(self._places.root))

    async def begin(self, action: str, queue: str, query: str, began: float, by: str) -> str:
        """Begin one; return its id once it is kept, so that it is done whoever is killed.

        Args:
            action: one of STATES.
            queue: whose tasks.
            query: of a page of tasks.
            began: by the store's clock, when the tasks were counted that are meant.
            by: the id of a token.

        Raises:
            RequestRefused: too many are open.
        """
        id_ = f"{_LAST_SECOND - int(began):08x}-{secrets.token_hex(4)}"  # so that the latest come first by name
        made = BulkAction(id=id_, action=action, queue=queue, query=query, began=began, by=by)
        self._beginning.add(id_)  # it is not left by anybody
        try:
            await self._book.add(made)
            self._run(made)
        finally:
            self._beginning.discard(id_)
        return id_

    async def list(self) -> Sequence[BulkAction]:
        """Return those that are open, and the last ones, the latest first, as they are now."""
        kept = await self._book.all()
        if all(each.state is not ActionState.OPEN for each in kept):
            return kept
        found = await self._views.leases(self._places.default, PREFIX, "", _MOST_LEASES)
        leases = {record.name.removeprefix(PREFIX): record for record in found.rows}
        return [_as_it_is(each, leases.get(each.id)) for each in kept]

    async def stop(self, id_: str) -> None:
        """Stop one: no service begins a further step, nor goes on with it."""
        handled = {each.id: each.handled for each in await self.list()}
        await self._book.end(id_, ActionState.STOPPED, handled.get(id_, 0))

    def _run(self, action: BulkAction) -> None:
        task = asyncio.create_task(self._do(action), name=f"action {action.id}")
        self._running[action.id] = task

        def ended(task: asyncio.Task[None]) -> None:
            self._running.pop(action.id, None)
            if not task.cancelled() and (error := task.exception()) is not None:
                _log.warning("action %s is left: %s: %s", action.id, type(error).__name__, error)

        task.add_done_callback(ended)

    async def _do(self, action: BulkAction) -> None:
        walk = Traversal(self._lease(action.id), self._fetch(action), batch_size=_STEP)
        changed = 0
        state = ActionState.DONE
        async with walk:
            try:
                async for page in walk:
                    if (why := await self._why_not(action)) is not None:
                        state = why
                        break
                    began = time.monotonic()
                    changed += await self._step(action, page.items)
                    await asyncio.sleep((time.monotonic() - began) * (1 / _SHARE - 1))
            except QueueNotFound:  # it was deleted
                state = ActionState.REFUSED
            await self._book.end(action.id, state, walk.progress.handled)
        await self._note_end(action, state, walk.progress.handled, changed)

    async def _note_end(self, action: BulkAction, state: ActionState, handled: int, changed: int) -> None:
        token = await self._tokens.record(action.by)
        change = QueueChange(
            at=time.time(),
            by=action.by if token is None else name_of(token),
            did=f"{action.action} all",
            count=handled,
            filter=action.query or "all",
            state=str(state),
            said=f"{changed:,} changed by this service, as {action.id}",
        )
        try:
            await note(self._places.root, action.queue, change)
        except JobqError as error:  # it is done; the book has the same
            _log.warning("the end of action %s could not be noted: %s", action.id, error)

    async def _why_not(self, action: BulkAction) -> ActionState | None:
        """Return why no further step may be done; None = it may."""
        kept = await self._book.get(action.id)
        if kept is None or kept.state is not ActionState.OPEN:
            return ActionState.STOPPED
        token = await self._tokens.record(action.by)
        is_permitted = token is not None and token.permits(SCOPES[action.action], action.queue)
        return None if is_permitted else ActionState.REFUSED

    def _lease(self, id_: str) -> NamedLease:
        return named_lease(store_of(self._places.root), self._settings, f"{PREFIX}{id_}", ttl=_TTL, wait=False)

    def _fetch(self, action: BulkAction) -> Any:
        meant = BulkFilter(action.action, action.query)
        wanted = meant.at_any_age

        async def fetch(after: Any, limit: int) -> Page[str]:
            number, place, has_found = after or (1, "", False)  # of the pass
            while True:
                page = await self._views.tasks(action.queue, wanted, place, limit)
                rows = [row for row in page.rows if not row.cancel_requested and meant.has_age(row, action.began)]
                ids = [row.id for row in rows if await self._was_so(meant, row, action)]
                has_found = has_found or bool(ids)
                following: Any = None
                if page.after is not None:
                    following = [number, page.after, has_found]
                elif has_found and action.action == "cancel":
                    # What is stopped makes room: workers have claimed tasks just ahead of the walk, which has looked
                    # at those that run before. So it begins again, until there are none.
                    following = [number + 1, "", False]
                if ids or following is None:
                    return Page(items=ids, after=following, is_last=following is None)
                number, place, has_found = following  # a search that has found nothing yet

        return fetch

    async def _was_so(self, meant: BulkFilter, row: TaskRow, action: BulkAction) -> bool:
        since = meant.since(row)
        if since is None and row.body_bytes:  # its body was too large for a list
            since = await self._created(action.queue, row.id)
        return since is not None and since <= action.began

    async def _created(self, queue: str, task_id: str) -> float | None:
        backend = await self._places.take(queue, is_seen=True)
        try:
            found = await journal_of(backend).find([task_id])
            return Task.decode(found[0].body).created if found and found[0].body else None
        except MalformedTask:
            return None
        finally:
            self._places.give(queue)

    async def _step(self, action: BulkAction, ids: Sequence[str]) -> int:
        did = f"ui {action.action} step"
        audit(did, caller=action.by, queue=action.queue, action=action.id, count=len(ids), ids=list(ids))
        backend = await self._places.take(action.queue, is_seen=True)
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
                    if action.state is ActionState.OPEN and action.id not in {*self._running, *self._beginning}:
                        await self._take_up(action)
            except JobqError as error:
                _log.debug("actions that were left are not looked for: %s", error)
            await asyncio.sleep(_LOOK_SECONDS)

    async def _take_up(self, action: BulkAction) -> None:
        if await self._tokens.record(action.by) is None and action.by in _OF_PROCESS:
            return  # the next `jobq ui` has such a token
        self._run(action)


def _as_it_is(action: BulkAction, record: LeaseRecord | None) -> BulkAction:
    """Return an action with how far it is, as its lease tells."""
    if action.state is not ActionState.OPEN or record is None:
        return action
    try:
        progress = Progress.decode(record.cursor, record.name) or Progress()
    except StoreUnusable:  # not written by us: who does it will say so
        progress = Progress()
    state = ActionState.RUNNING if record.state is LeaseState.ACTIVE else action.state
    return replace(action, state=state, handled=progress.handled)
