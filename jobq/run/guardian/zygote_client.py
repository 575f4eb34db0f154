"""The guardian's side of the zygote: starts it, asks it for tasks, and starts them cold when it cannot (P2 to P5).

A task that the zygote forks becomes the guardian's own child before it does anything: the zygote forks a process that
forks the task, announces its number and ends, so that the task falls to the guardian. It arms itself then, says so
through its gate, and waits there until the guardian knows it as a leader. A gate that is closed ends it.
"""

import contextlib
import os
import select
import signal
import socket
from collections.abc import Callable

from jobq.run.guardian import protocol
from jobq.run.guardian.protocol import Message, Receiver, Sender, WireError
from jobq.run.guardian.start_process import fork_zygote
from jobq.run.guardian.task_process import TaskProcess
from jobq.run.guardian.tasks import Tasks
from jobq.run.guardian.validation import check_preload
from jobq.run.process import kernel

ANSWER_SECONDS = 10.0  # until a zygote that was asked for a task and forks none is given up
AGAIN_SECONDS = 60.0  # between two starts of a zygote that was lost: tasks start cold meanwhile
_MOST_READS = 64  # of 64 KiB; what it has to say is never so much


class Asked:
    """A task that the zygote is to fork, with all that is needed to start it cold instead."""

    def __init__(self, leader: TaskProcess, message: Message, stdout: int, stderr: int) -> None:
        self.leader = leader
        self.message = message
        self.output = (stdout, stderr)
        self.give_up = kernel.boottime() + ANSWER_SECONDS


class ZygoteClient:
    """One zygote at a time, and the tasks that it is asked for.

    Args:
        tasks: where they become leaders.
        poll: the loop's, which is to call `hear` when `fileno` is readable.
        send: sends a message to the worker.
        start_cold: starts a task that the zygote did not fork; it closes the descriptors.
    """

    def __init__(
        self, tasks: Tasks, poll: "select.poll", send: Callable[[Message], None], start_cold: Callable[[Asked], None]
    ) -> None:
        self._tasks = tasks
        self._loop_poll = poll
        self._send = send
        self._start_cold = start_cold
        self._wanted: Message | None = None  # the preload message
        self._connection: socket.socket | None = None
        self._poll = select.poll()
        self._is_ready = False
        self._was_ready = False
        self._is_cold = False  # nothing may be forked from what it has imported
        self._why = ""  # what it said is wrong
        self._start_after = 0.0  # boottime in seconds
        self._asked: dict[int, Asked] = {}
        self._refused: list[Asked] = []
        tasks.hear = self.hear

    def fileno(self) -> int:
        """Return what to poll; -1 = there is no zygote."""
        return -1 if self._connection is None else self._connection.fileno()

    def preload(self, message: Message) -> None:
        """Start a zygote that imports modules; what comes of it is reported. Raises WireError."""
        check_preload(message)
        if self._wanted is not None:
            raise WireError("modules were preloaded already")
        self._wanted = message
        self._start()

    def fork(self, message: Message, stdout: int, stderr: int) -> TaskProcess | None:
        """Ask for a task; None = it has to start cold, for now. The descriptors stay the caller's. Raises OSError."""
        if self._connection is None and self._was_ready and kernel.boottime() >= self._start_after:
            self._start()
        if not self._is_ready or self._tasks.zygote is None:
            return None
        gate, theirs = (end.detach() for end in socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM))
        given = [theirs]
        try:
            os.set_blocking(gate, False)
            given.insert(0, _letter(message))
            for output in (stdout, stderr, stdout, stderr):
                given.append(os.dup(output))  # noqa: PERF401 - those before one that fails are closed
        except OSError:
            protocol.close_all([gate, *given])
            raise
        leader = self._tasks.expect(message, gate)
        self._asked[leader.id] = Asked(leader, message, *given[protocol.FORK_DESCRIPTORS :])
        try:
            self._sender.send({"op": "fork", "id": leader.id}, tuple(given[: protocol.FORK_DESCRIPTORS]))
        except OSError:
            self._is_ready = False
            self._tasks.kill_zygote()  # its end brings the task here
        return leader

    def hear(self) -> None:
        """Take in what the zygote has said until now; whatever it is, only numbers are noted here."""
        if self._connection is None:
            return
        try:
            self._sender.flush()
            reads = 0
            while self._poll.poll(0):
                if not self._receiver.read():
                    raise ConnectionResetError
                reads += 1
                while (message := self._receiver.next()) is not None:
                    self._note(message)
                if reads > _MOST_READS:
                    raise WireError("it says too much")
        except OSError:  # it is dead, or as good as dead
            self._is_ready = False
            self._tasks.kill_zygote()
        except Exception as error:  # noqa: BLE001 - the user's imports live there: whatever it sent is no fault of ours
            self._why = self._why or f"it sent nonsense: {error!r}"
            self._is_ready = False
            self._tasks.kill_zygote()

    def _note(self, message: Message) -> None:
        match message["op"]:
            case "ready" if not self._is_ready:
                self._is_ready = self._was_ready = True
                self._send({"op": "zygote", "state": "ready", "why": ""})
            case "failed":
                self._why = str(message["why"])
            case "cold":
                self._is_cold, self._was_ready = True, False  # another one would be no better
                self._why = str(message["why"])
            case "forked":
                asked, pid = self._asked[message["id"]], message["pid"]
                if type(pid) is not int:
                    raise WireError("pid is no integer")
                self._tasks.is_forked(asked.leader, pid)
            case "unforked":
                self._refused.append(self._asked[message["id"]])
            case other:
                raise WireError(f"unknown message {other[:40]!r}")

    def arm(self, leader: TaskProcess) -> None:
        """Let a task go that says it is armed, once it is known as a leader; one that ended instead starts cold."""
        self.hear()  # its number was written before it could say anything
        try:
            said = os.read(leader.status, len(protocol.ARMED))
        except OSError:
            said = b""
        if not (leader.pid and kernel.is_child(leader.pid)):
            self._give_up(self._asked[leader.id])
            return
        asked = self._asked.pop(leader.id)
        protocol.close_all(asked.output)
        leader.armed = True
        if leader.killed:
            self._tasks.signal(leader, signal.SIGKILL)
        elif said == protocol.ARMED:
            with contextlib.suppress(OSError):  # it has died meanwhile
                os.write(leader.status, protocol.GO)

    def act(self) -> None:
        """Start cold what the zygote could not fork, and give it up when it is gone or does not answer."""
        refused, self._refused = self._refused, []
        for asked in refused:
            self._give_up(asked)
        if any(asked.give_up <= kernel.boottime() for asked in self._asked.values()):
            self._why = self._why or f"it did not answer for {ANSWER_SECONDS:g} s"
            self._is_ready = False
            self._tasks.kill_zygote()
            for asked in self._asked.values():
                asked.give_up += ANSWER_SECONDS
        if self._tasks.zygote_status is not None:
            self._lost(self._tasks.zygote_status)
        for asked in list(self._asked.values()):
            if asked.leader.ended is not None:  # reaped before it was armed: its end is reported
                protocol.close_all(self._asked.pop(asked.leader.id).output)

    def next_moment(self) -> float:
        """Return the boottime, in seconds, at which something is due."""
        return min((asked.give_up for asked in self._asked.values()), default=float("inf"))

    def _give_up(self, asked: Asked) -> None:
        if self._asked.pop(asked.leader.id, None) is not None:
            self._start_cold(asked)

    def _lost(self, status: int) -> None:
        """The zygote has ended; what it had not forked starts cold, what it had is not concerned."""
        self.hear()
        self._tasks.zygote_status = None
        if self._connection is not None:
            self._sender.close()
            self._receiver.close_descriptors()
            self._loop_poll.unregister(self._connection)
            self._connection.close()
            self._connection = None
        for asked in list(self._asked.values()):
            if not asked.leader.pid:
                self._give_up(asked)
        code = os.waitstatus_to_exitcode(status)
        why = self._why or (f"it ended with exit code {code}" if code >= 0 else f"signal {-code} killed it")
        state = "lost" if self._was_ready else "cold" if self._is_cold else "failed"
        if not self._was_ready and not self._why:
            why += " while it imported"
        self._is_ready, self._why = False, ""
        self._send({"op": "zygote", "state": state, "why": why[:1000]})

    def _start(self) -> None:
        assert self._wanted is not None
        self._start_after = kernel.boottime() + AGAIN_SECONDS
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        with theirs:
            try:
                self._tasks.zygote = self._tasks.zygote_session = fork_zygote(self._wanted, theirs.fileno())
            except OSError as error:
                ours.close()
                self._send({"op": "zygote", "state": "failed", "why": f"no process for it: {error.strerror}"})
                return
        ours.setblocking(False)
        self._connection = ours
        self._poll = select.poll()
        self._poll.register(ours, select.POLLIN)
        self._loop_poll.register(ours, select.POLLIN)
        self._receiver = Receiver(ours, protocol.FORK_DESCRIPTORS)
        self._sender = Sender(ours)


def _letter(message: Message) -> int:
    """Return a file that says to a task what to do; no one but the task reads it, the zygote least of all (A6)."""
    letter = os.memfd_create("jobq-letter")
    try:
        data = memoryview(protocol.encode({"op": "run", **{name: message[name] for name in ("argv", "env", "cwd")}}))
        while data:
            data = data[os.write(letter, data) :]
    except BaseException:
        os.close(letter)
        raise
    return letter
