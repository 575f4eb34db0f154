"""The guardian as a process of this machine: a handle to it, the watch for its death, and what it leaves behind."""

import asyncio
import contextlib
import logging
import os
import signal
import socket
from collections.abc import Callable
from typing import Final

from jobq.run.guardian.control_group import ControlGroup
from jobq.run.spawn.dead_workers import kill_what_dead_workers_left, new_worker_id
from jobq.run.spawn.survivors import SECONDS, SurvivorPipe, kill_all_of

_log: Final = logging.getLogger(__name__)


class GuardianHandle:
    """What the worker does about its guardian beside talking to it; a simulation has one of its own.

    Attributes:
        group: the control group of the guardian and its tasks; one without a path where there is none.
        worker_id: what the tasks carry in their environment; see `dead_workers`.
    """

    def __init__(self) -> None:
        self.group = ControlGroup("")
        self.worker_id = ""
        self._pidfd = -1
        self._lifeline: SurvivorPipe | None = None

    async def kill_what_dead_workers_left(self) -> int:
        """Kill what other workers left when they died with their watchers; return how many."""
        try:
            return await asyncio.to_thread(kill_what_dead_workers_left)
        except OSError as error:  # what others left is no reason not to start: the next worker looks again
            _log.warning("what dead workers may have left here is not looked for: %s", error)
            return 0

    def name_worker(self, guardian: int) -> None:
        """Give this worker its id; `guardian` is the process number of who guards it."""
        self.worker_id = new_worker_id(guardian)

    def aim_at(self, pid: int) -> None:
        """Note who the guardian is; raises OSError when it is gone."""
        self._pidfd = os.pidfd_open(pid)  # it has just spoken, and is our parent or our un-reaped child (P4)

    def signal(self, number: int) -> None:
        """Send a signal to the guardian, if it is there."""
        if self._pidfd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)

    def watch(self, connection: socket.socket, on_lost: Callable[[], None] | None) -> None:
        """Kill what the guardian leaves when it dies, without waiting for the event loop; then call `on_lost`."""
        self._lifeline = SurvivorPipe(connection, self.kill_what_is_left, on_lost)

    def let_go(self) -> None:
        """Watch no more: the guardian ends as it should."""
        if self._lifeline is not None:
            self._lifeline.let_go()

    async def wait_until_nothing_is_left(self) -> None:
        """Wait, once the guardian is gone, until all that it left is killed; a cancellation waits too."""
        if self._lifeline is not None:
            await finished(self._lifeline.join)

    def kill_what_is_left(self) -> None:
        """Kill what a dead guardian has left of its tasks."""
        self.group.kill()
        kill_all_of(self.worker_id)
        self.group.end(SECONDS)

    def close(self) -> None:
        """Close the handle; signals go nowhere afterwards."""
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1


async def finished(work: Callable[[], None]) -> None:
    """Do it on a thread; a cancellation waits for its end."""
    doing = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        await asyncio.shield(doing)
    except asyncio.CancelledError:
        await doing
        raise
