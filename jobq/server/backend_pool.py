"""The queues of the place that is served: a backend each, opened on demand, left when others need room."""

import asyncio
import logging
import time
from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol, runtime_checkable

from jobq.backend import Backend
from jobq.errors import JobqError
from jobq.journal.views import Views, views_of
from jobq.servable import Servable, served
from jobq.server.error_responses import RequestRefused
from jobq.settings import Settings
from jobq.spec import parse, resolve

_log: Final = logging.getLogger("jobq.server")
_LOOK_AGAIN_SECONDS: Final = 1.0  # for queues that others have made
_MOST_QUEUES: Final = 10_000
_MOST_IDLE: Final = 8  # open, and not in use: each may hold three connections to a database


@dataclass(slots=True)
class _Open:
    backend: Backend
    users: int = 0


@runtime_checkable
class NamesQueues(Protocol):
    """A backend that can name the queues beside its own."""

    async def queues(self) -> list[str]:
        """Return the names of all queues of its place, as far as they may be seen."""
        ...


class BackendPool:
    """Opens backends for the queues beside the one of a spec.

    Args:
        spec: names the place, and the queue that is meant where a request names none.
        settings: for the backends.

    Attributes:
        root: the backend of that queue.
        default: that queue's name.
    """

    root: Backend

    def __init__(self, spec: str, settings: Settings) -> None:
        self._spec = parse(spec)
        self._settings = settings
        self._open: OrderedDict[str, _Open] = OrderedDict()  # the one that was used last stands last
        self._known: set[str] = set()
        self._looked_at = -_LOOK_AGAIN_SECONDS
        self._changing = asyncio.Lock()
        self._leaving: set[asyncio.Task[None]] = set()
        self.default = self._spec.queue

    async def open(self) -> None:
        """Connect."""
        self.root = self._checked(await self._use(self.default))  # for ever
        self._known = set(await self._named())

    def _checked(self, backend: Backend) -> Backend:
        """Return the backend of the default queue; raises ConfigurationError for one that is of no use here."""
        return backend

    async def _named(self) -> list[str]:
        return await self.root.queues() if isinstance(self.root, NamesQueues) else [self.default]

    async def close(self) -> None:
        """Leave all backends."""
        async with self._changing:
            while self._open:
                await _leave(self._open.popitem()[1].backend)
        if self._leaving:
            await asyncio.wait(self._leaving)

    async def take(self, name: str, *, is_seen: bool = False) -> Any:
        """Return the backend of a queue, for use until `give`.

        Args:
            name: of it.
            is_seen: whether it was just seen to be there; where it is not, its verbs say so. Else a queue that was made
                within the last second may be taken for missing, since missing ones must cost the database nothing.

        Raises:
            RequestRefused: (404) there is none.
        """
        if name not in self._known and not is_seen:
            await self._look(name)
        return await self._use(name)

    def give(self, name: str) -> None:
        """End a use; the backends that were not used for longest are left when there are too many."""
        self._open[name].users -= 1
        idle = [each for each, known in self._open.items() if not known.users]
        for each in idle[: max(0, len(idle) - _MOST_IDLE)]:
            leaving = asyncio.create_task(_leave(self._open.pop(each).backend), name=f"leave {each}")
            self._leaving.add(leaving)
            leaving.add_done_callback(self._leaving.discard)

    async def names(self) -> list[str]:
        """Return the names of all queues."""
        names = await self._named()
        self._known = set(names)
        return names

    async def _look(self, name: str) -> None:
        # Not for each request: asking for queues that are not there must cost the database nothing.
        if time.monotonic() - self._looked_at >= _LOOK_AGAIN_SECONDS:
            self._looked_at = time.monotonic()
            await self.names()
        if name not in self._known:
            made_by = f"`jobq QUEUE create` makes it, or PUT /api/queues/{name}"
            raise RequestRefused(404, "queue_not_found", f"queue {name!r} does not exist; {made_by}")

    async def _use(self, name: str) -> Backend:
        found = self._open.get(name)
        if found is None:
            async with self._changing:
                found = self._open.get(name)
                if found is None:
                    backend = resolve(str(replace(self._spec, queue=name)), self._settings)
                    found = self._open[name] = _Open(await backend.__aenter__())
        found.users += 1
        self._open.move_to_end(name)
        return found.backend


class ServedPool(BackendPool):
    """The backends of a place that can be served: they keep documents, too, and queues are made there.

    Args:
        spec: as for any pool.
        settings: likewise.
    """

    root: Servable

    def __init__(self, spec: str, settings: Settings) -> None:
        super().__init__(spec, settings)
        self._views: Views | None = None

    async def open(self, *, makes_queue: bool = True) -> None:
        """Connect, and make the default queue where it is missing, unless that is not wanted."""
        backend = await self._use(self.default)
        try:
            if makes_queue and served(backend) is backend:
                await backend.create(exist_ok=True)
            await super().open()
        finally:
            self.give(self.default)

    def _checked(self, backend: Backend) -> Backend:
        found: Backend = served(backend)
        return found

    async def close(self) -> None:
        """Leave all backends, and what looks at them."""
        views, self._views = self._views, None
        if views is not None:
            await views.__aexit__(None, None, None)
        await super().close()

    async def views(self) -> Views:
        """Return what reads all queues of the place, for as long as this is open; made when it is first asked for."""
        if self._views is None:
            async with self._changing:
                if self._views is None:
                    self._views = await views_of(self.root).__aenter__()
        return self._views

    async def make(self, name: str, *, exist_ok: bool) -> None:
        """Make a queue."""
        if name not in self._known and len(self._known) >= _MOST_QUEUES:
            raise RequestRefused(
                409, "too_many_queues", f"there are {len(self._known)} queues already; no more are made here"
            )
        backend = await self._use(name)
        try:
            await backend.create(exist_ok=exist_ok)
        finally:
            self.give(name)
        self._known.add(name)


async def _leave(backend: Backend) -> None:
    try:
        await backend.__aexit__(None, None, None)
    except (JobqError, OSError) as error:
        _log.warning("queue %s was not left in order: %s", backend.name, error)
