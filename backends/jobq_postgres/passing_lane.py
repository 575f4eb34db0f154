"""A lane whose connection is there while it is used, and a moment longer: for what is done now and then."""

import asyncio
from typing import Final, TypeVar

from jobq_postgres.lane import Lane, Server, Work

T = TypeVar("T")
_IDLE_SECONDS: Final = 2.0


class PassingLane:
    """A lane that leaves by itself.

    Args:
        server: where to.
        purpose: what it is for; shown in pg_stat_activity.
    """

    def __init__(self, server: Server, purpose: str) -> None:
        self._server = server
        self._purpose = purpose
        self._lane: Lane | None = None
        self._users = 0
        self._timer: asyncio.TimerHandle | None = None
        self._leaving: set[asyncio.Task[None]] = set()

    async def submit(self, work: Work[T], *, seconds: float) -> T:
        """Run it; who is cancelled drops the connection, so that nobody waits for its end.

        Raises:
            NoAnswer, JobqError: as `Lane.submit`.
        """
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._lane is None:
            self._lane = Lane(self._server, self._purpose)
        self._users += 1
        try:
            return await self._lane.submit(work, seconds=seconds, gives_up=True)
        finally:
            self._users -= 1
            if not self._users:
                self._timer = asyncio.get_running_loop().call_later(_IDLE_SECONDS, self._leave)

    async def close(self) -> None:
        """Close the connection."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._leave()
        if self._leaving:
            await asyncio.wait(self._leaving)

    def _leave(self) -> None:
        lane, self._lane = self._lane, None
        if lane is not None:
            task = asyncio.create_task(lane.close(), name=f"jobq-postgres {self._purpose} leaves")
            self._leaving.add(task)
            task.add_done_callback(self._leaving.discard)
