"""Starts, from the worker's order until it has the report of what came of them (P2, P4)."""

import errno
import select
from collections.abc import Callable

from jobq.run.guardian import protocol
from jobq.run.guardian.inbox import Inbox
from jobq.run.guardian.protocol import Message, WireError
from jobq.run.guardian.system import System
from jobq.run.guardian.task_process import TaskProcess
from jobq.run.guardian.tasks import Tasks
from jobq.run.guardian.validation import check_spawn


class Starts:
    """All that are under way.

    Args:
        tasks: where they become leaders.
        inbox: has the descriptors that came with them.
        poll: the loop's, which calls `see` with what it returns.
        send: sends a message to the worker, with descriptors.
        system: the kernel.
    """

    def __init__(
        self, tasks: Tasks, inbox: Inbox, poll: "select.poll", send: Callable[..., None], system: System
    ) -> None:
        self._tasks, self._inbox, self._poll, self._send, self._system = tasks, inbox, poll, send, system
        self._starting: dict[int, TaskProcess] = {}  # by the descriptor that says what comes of them

    def begin(self, message: Message) -> None:
        """Begin one that is asked for. Raises WireError."""
        descriptors = self._inbox.take_descriptors()
        try:
            check_spawn(message)
            if self._tasks.get(message["id"]) is not None:
                raise WireError(f"id {message['id']} is in use")
            self._start(message, *descriptors)
        finally:
            protocol.close_all(descriptors)

    def _start(self, message: Message, stdout: int, stderr: int) -> None:
        try:
            deadline = message["deadline"]
            if deadline is not None and deadline <= self._system.boottime():
                raise OSError(errno.ECANCELED, "its deadline has passed")
            if protocol.LOST in {stdout, stderr}:
                raise OSError(errno.EMFILE, "no descriptor left")
            leader = self._tasks.spawn(message, stdout, stderr)
        except OSError as error:
            self._send({"op": "failed", "id": message["id"], "errno": error.errno, "at": "program"})
            return
        self._starting[leader.status] = leader
        self._poll.register(leader.status, select.POLLIN)

    def see(self, events: dict[int, int]) -> None:
        """Note the starts that came about, among what poll returned."""
        for descriptor in events:
            leader = self._starting.get(descriptor)
            if leader is not None:
                self.report(leader)

    def report(self, leader: TaskProcess) -> None:
        """Report that a program runs, or why it does not."""
        del self._starting[leader.status]
        self._poll.unregister(leader.status)
        failure = self._tasks.started(leader)
        if failure is not None:
            # Told when it is reaped: its user is free then, and what runs as that is killed no more (S11).
            leader.failure = {"op": "failed", "id": leader.id, "errno": failure[1], "at": failure[0]}
            return
        handle: tuple[int, ...] = ()
        if leader.ended is None:  # else its number is not its own any more (P4)
            try:
                handle = (self._system.open_process(leader.pid),)
            except OSError:  # no descriptor is left: the guardian still kills
                handle = ()
        self._send({"op": "started", "id": leader.id, "pid": leader.pid, "handle": bool(handle)}, handle)

    def refuse(self) -> bool:
        """Begin none that was asked for until now; return True: the conversation goes on."""
        for message, descriptors in self._inbox.take_spawns():
            protocol.close_all(descriptors)
            self._send({"op": "failed", "id": message["id"], "errno": errno.ECANCELED, "at": "program"})
        return True
