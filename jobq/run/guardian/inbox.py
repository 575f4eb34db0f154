"""What the worker sent: deadlines move as soon as they are read, all else waits its turn in order."""

import select
import socket
from collections import deque

from jobq.run.guardian import protocol
from jobq.run.guardian.protocol import Message, Receiver, WireError
from jobq.run.guardian.system import System
from jobq.run.guardian.tasks import Tasks
from jobq.run.guardian.validation import deadline_of

TURN_SECONDS = 0.005  # of this process's own CPU time, for what came in a turn
CATCH_UP_SECONDS = 0.2  # likewise, for all that waits: a worker that never stops writing delays no deadline longer (P1)
REFILL_SECONDS = 0.1  # how long to wait in all, for a worker that could not write on while nobody read
QUIET_SECONDS = 0.02  # a worker that sends nothing for so long has nothing more to send
MOST_WAITING = 1024  # messages to obey, and answers that are not read: then a worker is not listened to


class Inbox:
    """Reads the worker's messages.

    Deadlines concern what runs already, so they need not wait behind starts, each of which costs a fork (P1).

    Args:
        connection: the non-blocking socket to the worker.
        tasks: whose deadlines move.
        system: the kernel.
    """

    def __init__(self, connection: socket.socket, tasks: Tasks, system: System) -> None:
        self._system = system
        self._connection = connection
        self._tasks = tasks
        self._receiver = Receiver(connection, protocol.SPAWN_DESCRIPTORS)
        self._waiting: deque[Message] = deque()
        self._environment: dict[str, str] = {}  # of the last spawn
        self.take_descriptors = self._receiver.take_descriptors

    def __len__(self) -> int:
        return len(self._waiting)

    def next(self) -> Message:
        """Return, and forget, the next message to obey."""
        return self._waiting.popleft()

    def is_late(self, now: float) -> bool:
        """Whether the next is a start past its deadline, as far as that is known."""
        deadline = self._waiting[0].get("deadline")
        return isinstance(deadline, int | float) and deadline <= now

    def take_spawns(self) -> list[tuple[Message, list[int]]]:
        """Return, and forget, the starts that wait, each with its descriptors. Raises WireError."""
        spawns = [message for message in self._waiting if message["op"] == "spawn"]
        self._waiting = deque(message for message in self._waiting if message["op"] != "spawn")
        return [(message, self.take_descriptors()) for message in spawns]

    def read(self) -> bool:
        """Take in what has come; False at the end of the stream. Raises WireError, OSError."""
        return self._read(TURN_SECONDS, 0.0)

    def catch_up(self) -> bool:
        """Read all that was sent, perhaps while this process was stopped, and obey none of it yet; as `read`.

        What is at hand is bounded by the work that it is: on a busy machine the time that passes says nothing about it.
        Only waiting for more is bounded by time.
        """
        return self._read(CATCH_UP_SECONDS, REFILL_SECONDS)

    def _read(self, work: float, patience: float) -> bool:
        system = self._system
        poll = system.poll()
        poll.register(self._connection, select.POLLIN)
        until = system.work_time() + work
        while system.work_time() < until and len(self._waiting) < MOST_WAITING:
            began = system.monotonic()
            if not poll.poll(min(QUIET_SECONDS, patience) * 1000):
                break
            patience = max(0.0, patience - (system.monotonic() - began))
            if not self._receiver.read():
                return False
            while (message := self._receiver.next()) is not None:
                self._sort(message)
        return True

    def _sort(self, message: Message) -> None:
        if type(message.get("id")) is not int:
            raise WireError("id is no integer")
        if message["op"] == "extend":
            self._extend(message)
            return
        if message["op"] == "clock":
            self._system.has_stores_clock = True
            return
        if message["op"] == "spawn":
            message["env"] = self._environment = self._whole(message)
        self._waiting.append(message)

    def close(self) -> None:
        """Forget what waits; close the descriptors that nobody took."""
        self._waiting.clear()
        self._receiver.close_descriptors()

    def _whole(self, spawn: Message) -> dict[str, str]:
        """Return the environment of which a spawn has only what differs from the one before; raises WireError."""
        changed, unset = spawn["env"], spawn.pop("unset", [])
        if not isinstance(changed, dict) or not all(isinstance(value, str) for value in changed.values()):
            raise WireError("env does not map strings to strings")
        if not isinstance(unset, list):
            raise WireError("unset is no list of names")
        if not changed and not unset:
            return self._environment
        environment = {**self._environment, **changed}
        for name in unset:
            del environment[name]  # another would be no difference
        return environment

    def _extend(self, message: Message) -> None:
        deadline = deadline_of(message["deadline"])
        leader = self._tasks.get(message["id"])
        if leader is not None:
            leader.deadline = deadline
            return
        for waiting in self._waiting:  # its start may wait yet; else it ended while the message was on its way
            if waiting["op"] == "spawn" and waiting["id"] == message["id"]:
                waiting["deadline"] = deadline
