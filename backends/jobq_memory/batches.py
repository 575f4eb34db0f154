"""The protocol's face of a queue's batches."""

from collections.abc import Sequence

from jobq.batch_plan import Plan
from jobq.batches import Batch, Member, checked_name
from jobq_memory.router import Router


class MemoryBatches:
    """The batches of one queue of a router.

    Args:
        router: holds the tasks.
        queue: the queue's name.
    """

    def __init__(self, router: Router, queue: str) -> None:
        self._router = router
        self._queue = queue

    async def begin(self, name: str, plan: Plan) -> Batch:
        """Open one, or say more of it."""
        plan.checked(checked_name(name))
        with self._router.opened(self._queue) as store:
            return store.batches.begin(name, plan)

    async def seal(self, name: str) -> Batch:
        """Let it take no more tasks."""
        return self._sealed(name, canceled=False)

    async def reopen(self, name: str) -> Batch:
        """Let it take tasks again."""
        with self._router.opened(self._queue) as store:
            return store.batches.reopen(name)

    async def cancel(self, name: str) -> Batch:
        """Seal it, end what waits, and ask what runs to end."""
        return self._sealed(name, canceled=True)

    async def find(self, name: str) -> Batch:
        """Return it, counted."""
        with self._router.opened(self._queue) as store:
            return store.batches.find(name)

    async def list(self, after: str, limit: int, *, unfinished: bool = False) -> Sequence[Batch]:
        """Return some, by name."""
        with self._router.opened(self._queue) as store:
            return store.batches.list(after, limit, unfinished=unfinished)

    async def members(self, name: str, after: str, limit: int, state: str | None = None) -> Sequence[Member]:
        """Return some of its tasks, by id."""
        with self._router.opened(self._queue) as store:
            return store.batches.members(name, after, limit, state)

    def _sealed(self, name: str, *, canceled: bool) -> Batch:
        with self._router.opened(self._queue) as store:
            batch = store.batches.seal(name, canceled=canceled)
        self._router.wake(self._queue)  # what is to be run at its end is there
        return batch
