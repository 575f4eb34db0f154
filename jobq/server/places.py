"""The queues of the place that is served: one backend each, opened when it is first asked for."""

import asyncio
import time
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any, Final

from jobq.backend import Backend
from jobq.server.problems import Refused
from jobq.serving import Servable, served
from jobq.settings import Settings
from jobq.spec import parse, resolve

_LOOK_AGAIN_SECONDS: Final = 1.0  # for queues that others have made
_MOST_QUEUES: Final = 1_000


class Places:
    """Opens backends for the queues beside the one of a spec.

    Args:
        spec: names the place, and the queue that is meant where a request names none.
        settings: for the backends.

    Attributes:
        root: the backend of that queue, which keeps the documents too.
        default: that queue's name.
    """

    root: Servable

    def __init__(self, spec: str, settings: Settings) -> None:
        self._spec = parse(spec)
        self._settings = settings
        self._stack = AsyncExitStack()
        self._open: dict[str, Any] = {}
        self._known: set[str] = set()
        self._looked_at = -_LOOK_AGAIN_SECONDS
        self._opening = asyncio.Lock()
        self.default = self._spec.queue

    async def open(self, *, create: bool = True) -> None:
        """Connect, and make the default queue where it is missing and may be made."""
        backend = await self._opened(self.default)
        self.root = served(backend)
        if create:
            await backend.create(exist_ok=True)
        self._known = set(await self.root.queues())

    async def close(self) -> None:
        """Leave all backends."""
        await self._stack.aclose()

    async def queue(self, name: str) -> Any:
        """Return the backend of a queue; raises Refused (404) for one that does not exist."""
        if name not in self._known:
            await self._look(name)
        return self._open.get(name) or await self._opened(name)

    async def make(self, name: str, *, exist_ok: bool) -> Backend:
        """Make a queue."""
        if name not in self._known and len(self._known) >= _MOST_QUEUES:
            raise Refused(409, "too_many_queues", f"there are {len(self._known)} queues already; no more are made here")
        backend = await self._opened(name)
        await backend.create(exist_ok=exist_ok)
        self._known.add(name)
        return backend

    async def names(self) -> list[str]:
        """Return the names of all queues."""
        names = await self.root.queues()
        self._known = set(names)
        return names

    async def _look(self, name: str) -> None:
        # Not for each request: asking for queues that are not there must cost the database nothing.
        if time.monotonic() - self._looked_at >= _LOOK_AGAIN_SECONDS:
            self._looked_at = time.monotonic()
            await self.names()
        if name not in self._known:
            raise Refused(404, "queue_not_found", f"queue {name!r} does not exist; make it with PUT /api/queues/{name}")

    async def _opened(self, name: str) -> Backend:
        async with self._opening:
            if name not in self._open:
                backend = resolve(str(replace(self._spec, queue=name)), self._settings)
                self._open[name] = await self._stack.enter_async_context(backend)
            found: Backend = self._open[name]
            return found
