"""What was looked up a moment ago, for all who look: two hundred viewers of a page cost the database what one does."""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from typing import Any, Final, TypeVar

T = TypeVar("T")
FRESH_SECONDS: Final = 2.0
_MOST: Final = 200  # pages, of at most 50 rows of 2000 characters


class Snapshots:
    """Answers of the store, each made once for all who ask within a time, and kept no longer."""

    def __init__(self) -> None:
        self._held: OrderedDict[Hashable, asyncio.Task[Any]] = OrderedDict()  # the oldest first

    async def get(self, key: Hashable, make: Callable[[], Awaitable[T]], seconds: float = FRESH_SECONDS) -> T:
        """Return what `make` gives, perhaps a little old; who asks while it is made waits for the same.

        Args:
            key: names what is asked for, with the rights that it depends on.
            make: asks the store.
            seconds: for how long its answer is shown.
        """
        task = self._held.get(key)
        if task is None:
            began = time.monotonic()
            # A task of its own: who asked first may leave before it is there.
            task = asyncio.ensure_future(make())
            self._held[key] = task
            task.add_done_callback(lambda done: self._keep(key, done, began + seconds))
            while len(self._held) > _MOST:
                self._held.popitem(last=False)
        found: T = await asyncio.shield(task)
        return found

    def forget(self) -> None:
        """Let the next look be a new one: something was changed."""
        self._held.clear()

    def _keep(self, key: Hashable, task: "asyncio.Task[Any]", until: float) -> None:
        is_of_use = not task.cancelled() and task.exception() is None  # asked for, too, where nobody waits any more
        task.get_loop().call_later(until - time.monotonic() if is_of_use else 0.0, self._drop, key, task)

    def _drop(self, key: Hashable, task: "asyncio.Task[Any]") -> None:
        if self._held.get(key) is task:
            del self._held[key]
