"""What was looked up a moment ago, for all who look: two hundred viewers of a page cost the database what one does."""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from typing import Any, Final, TypeVar

T = TypeVar("T")
FRESH_SECONDS: Final = 2.0
_MOST: Final = 500


class Snapshots:
    """Answers of the store, each made once for all who ask within FRESH_SECONDS, and only when somebody asks."""

    def __init__(self) -> None:
        self._held: OrderedDict[Hashable, tuple[float, asyncio.Task[Any]]] = OrderedDict()

    async def get(self, key: Hashable, make: Callable[[], Awaitable[T]]) -> T:
        """Return what `make` gives, perhaps a little old; who asks while it is made waits for the same.

        Args:
            key: names what is asked for, with the rights that it depends on.
            make: asks the store.
        """
        made_at, task = self._held.get(key, (0.0, None))
        if task is None or (task.done() and (time.monotonic() - made_at >= FRESH_SECONDS or _failed(task))):
            # A task of its own: who asked first may leave before it is there.
            task = asyncio.ensure_future(make())
            self._held[key] = time.monotonic(), task
            task.add_done_callback(
                lambda done: done.cancelled() or done.exception()
            )  # someone may wait for it, or nobody
        self._held.move_to_end(key)
        while len(self._held) > _MOST:
            self._held.popitem(last=False)
        found: T = await asyncio.shield(task)
        return found

    def forget(self) -> None:
        """Let the next look be a new one: something was changed."""
        self._held.clear()


def _failed(task: "asyncio.Task[Any]") -> bool:
    return task.cancelled() or task.exception() is not None
