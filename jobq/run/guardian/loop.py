"""The guardian's loop. It never waits for anything but this: a deadline, a signal, a message."""

import errno
import math
import os
import select
import signal
import socket
import time

from jobq.run import task_folder
from jobq.run.guardian import kernel, wire
from jobq.run.guardian.checks import check_spawn, deadline_of
from jobq.run.guardian.kernel import Signals, say
from jobq.run.guardian.leader import Leader
from jobq.run.guardian.tasks import Tasks
from jobq.run.guardian.warm import Asked, Warm
from jobq.run.guardian.wire import Message, Receiver, Sender, WireError

TICK_SECONDS = 0.5  # poll sleeps on CLOCK_MONOTONIC, which stops in suspend: the longest that a deadline may slip
SWEEP_TICK_SECONDS = 0.02  # while something that was killed is not gone yet
TURN_SECONDS = 0.005  # how long messages may keep the loop from its deadlines
LATE_SECONDS = 0.3  # beyond TICK_SECONDS: so much between two turns, and this process was stopped
HEARING_SECONDS = 0.3  # how long, after that, messages that wait may move deadlines that have passed meanwhile
ENDING_SECONDS = 5.0  # how long the guardian stays for trees that will not die
SECOND_ASKING_SECONDS = 10.0  # how long the worker has after a second Ctrl-C: it kills, gives back, and ends
MOST_WAITING = 1024  # messages that a worker may leave unread before it is not listened to either
STOPPING = frozenset({signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT})


class Guardian:
    """Guards one worker and its tasks.

    Args:
        connection: the socket to the worker.
        signals: those of this process.
        child: the worker's number when it is our child, which gets our signals and ends us; None = the worker started
            us, and its end, or that of the connection, ends us.
        stop_within: seconds that our child may take to end once a signal has asked it to.
        strangers: children that this process had before it was a guardian; they are left alone.
    """

    def __init__(
        self,
        connection: socket.socket,
        signals: Signals,
        child: int | None,
        stop_within: float = math.inf,
        strangers: frozenset[int] = frozenset(),
    ) -> None:
        self.asked_to_stop = False
        self._child = child
        self._stop_within = stop_within
        self._interrupts = 0
        self._end_by = math.inf  # boottime in seconds at which a worker that was asked to end is killed
        self._signals = signals
        self._connection = connection
        self._receiver = Receiver(connection, wire.SPAWN_DESCRIPTORS)
        self._sender = Sender(connection)
        self._tasks = Tasks(child, strangers)
        self._connected = True
        self._last_turn = kernel.boottime()
        self._hearing_until = 0.0  # boottime in seconds; see HEARING_SECONDS
        self._unheard = False  # whether messages were read and not obeyed yet
        self._unreaped = False  # whether the last turn left something to reap or to kill
        self._starting: dict[int, Leader] = {}
        self._poll = select.poll()
        self._poll.register(signals, select.POLLIN)
        self._poll.register(connection, select.POLLIN)
        self._warm = Warm(self._tasks, self._poll, self._tell, self._start_cold)
        self._parent = -1 if child is not None else self._watch_parent()

    def run(self) -> int | None:
        """Guard until the worker has ended and nothing of its tasks is left; return its wait status if it was ours."""
        try:
            self._connection.setblocking(False)
            self._tell({"op": "hello", "version": wire.VERSION, "pid": os.getpid()})
            while self._is_needed():
                self._step()
            give_up = kernel.boottime() + ENDING_SECONDS
            while (self._tasks or self._tasks.is_sweeping) and kernel.boottime() < give_up:
                self._step()
        finally:  # also of an error of ours: whatever it was, nothing may live on unguarded
            self._disconnect()
            self._tasks.reap()
            self._warm.act()
            task_folder.sweep()  # the worker's, which it could not remove if it was killed (P5)
            if self._parent >= 0:
                os.close(self._parent)
        return self._tasks.worker_status

    def _watch_parent(self) -> int:
        pidfd, is_parent = kernel.open_peer(self._connection)
        if is_parent:
            self._poll.register(pidfd, select.POLLIN)
        else:
            self._connected = False
        return pidfd

    def _is_needed(self) -> bool:
        return self._connected if self._child is None else self._tasks.worker_status is None

    def _step(self) -> None:
        events = dict(self._poll.poll(self._patience() * 1000))
        self._note_turn()
        came = self._signals.read() if self._signals.fileno() in events else b""
        self._forward(came)
        if self._parent in events:
            self._disconnect()
        if self._warm.fileno() in events:
            self._warm.hear()
        for descriptor in events:
            leader = self._starting.get(descriptor)
            if leader is None:
                continue
            if leader.armed:
                self._tell_started(leader)
            else:
                self._warm.arm(leader)
        if self._connected:
            self._converse(events.get(self._connection.fileno(), 0))
        self._kill_late()  # after the news, which are read for some milliseconds at most
        if not events:
            self._tasks.kill_again()
        if signal.SIGCHLD in came or self._unreaped or self._tasks.is_sweeping or not events:
            self._unreaped = not self._tasks.reap()
            self._tell_finished()
        self._warm.act()
        if self._tasks.worker_status is not None:
            self._disconnect()

    def _note_turn(self) -> None:
        now = kernel.boottime()
        if now - self._last_turn > TICK_SECONDS + LATE_SECONDS:
            # A guardian that was stopped for a while reads all the news first: it finds the deadlines moved, and kills
            # nothing whose lease is good.
            self._hearing_until = now + HEARING_SECONDS
        self._last_turn = now

    def _has_news(self) -> bool:
        if not self._connected:
            return False
        return self._unheard or bool(select.select([self._connection], [], [], 0)[0])

    def _patience(self) -> float:
        if self._unheard or self._unreaped:
            return 0.0
        longest = SWEEP_TICK_SECONDS if self._tasks.is_sweeping else TICK_SECONDS
        moment = min(self._tasks.next_moment(), self._warm.next_moment(), self._end_by)
        return min(longest, max(0.0, moment - kernel.boottime()))

    def _forward(self, numbers: bytes) -> None:
        """Pass each signal on to the worker exactly once; it alone knows what it means."""
        for number in numbers:
            if number not in kernel.FORWARDED or self._child is None:
                continue
            if number in STOPPING or number == signal.SIGUSR1:
                self.asked_to_stop = True  # also while a dead worker's trees are swept: no other is started then
            if self._tasks.worker_status is not None:
                continue
            os.kill(self._child, number)  # our un-reaped child (P4)
            if number in STOPPING:
                os.kill(self._child, signal.SIGCONT)  # a stopped worker could not obey
                self._interrupts += number == signal.SIGINT
                hurried = self._interrupts > 1  # only a second Ctrl-C ends the tasks' grace; a second SIGTERM does not
                within = min(self._stop_within, SECOND_ASKING_SECONDS if hurried else math.inf)
                self._end_by = min(self._end_by, kernel.boottime() + within)

    def _kill_late(self) -> None:
        if kernel.boottime() >= self._hearing_until or not self._has_news():
            self._tasks.kill_overdue(kernel.boottime())
        self._kill_deaf_worker()

    def _kill_deaf_worker(self) -> None:
        """Kill a worker that was asked to end and is too blocked to: its tasks die too, and their leases run out."""
        if self._end_by <= kernel.boottime() and self._child is not None and self._tasks.worker_status is None:
            say(
                "the worker was asked to end and did not in time: killed; its tasks come back when their leases run out"
            )
            os.kill(self._child, signal.SIGKILL)  # our un-reaped child (P4)
            self._end_by = math.inf

    def _converse(self, event: int) -> None:
        try:
            if event & (select.POLLHUP | select.POLLERR):
                self._disconnect()  # it is dead: what it still asked for is not begun any more (P2)
                return
            if event & select.POLLOUT:
                self._sender.flush()
            if event & select.POLLIN and not self._unheard and not self._receiver.read():
                self._disconnect()
                return
            if event or self._unheard:
                self._obey_all()
        except Exception as error:  # noqa: BLE001 - whatever nonsense it sent, it must not end the guardian
            say(f"the worker's connection broke: {error!r}")
            self._disconnect()
        self._watch_connection()

    def _obey_all(self) -> None:
        until = time.monotonic() + TURN_SECONDS
        self._unheard = False
        while self._connected and (message := self._receiver.next()) is not None:
            self._obey(message)
            if time.monotonic() >= until:
                self._unheard = True
                return

    def _obey(self, message: Message) -> None:
        number = message.get("id")
        if type(number) is not int:
            raise WireError("id is no integer")
        if message["op"] == "spawn":
            self._spawn(message)
            return
        if message["op"] == "preload":
            self._warm.preload(message)
            return
        leader = self._tasks.get(number)
        match message["op"]:
            case "extend":
                deadline = deadline_of(message["deadline"])
                if leader is not None:  # None: it ended while the message was on its way
                    leader.deadline = deadline
            case "signal":
                wanted = signal.Signals(message["number"])
                if leader is not None:
                    self._tasks.signal(leader, wanted)
            case "kill":
                if leader is not None:
                    self._tasks.kill(leader, "asked")
            case other:
                raise WireError(f"unknown message {other[:40]!r}")

    def _spawn(self, message: Message) -> None:
        descriptors = self._receiver.take_descriptors()
        try:
            check_spawn(message)
            if self._tasks.get(message["id"]) is not None:
                raise WireError(f"id {message['id']} is in use")
            self._start(message, *descriptors)
        finally:
            wire.close_all(descriptors)

    def _start(self, message: Message, stdout: int, stderr: int, *, cold: bool = False) -> None:
        try:
            if wire.LOST in {stdout, stderr}:
                raise OSError(errno.EMFILE, "no descriptor left")
            leader = None
            if message.get("forked") and not cold:
                leader = self._warm.fork(message, stdout, stderr)
            leader = leader or self._tasks.spawn(message, stdout, stderr)
        except OSError as error:
            self._tell({"op": "failed", "id": message["id"], "errno": error.errno, "at": "program"})
            return
        self._starting[leader.status] = leader
        self._poll.register(leader.status, select.POLLIN)

    def _start_cold(self, asked: Asked) -> None:
        """Start a task that the zygote could not fork, unless it is to be dead by now."""
        leader = asked.leader
        del self._starting[leader.status]
        self._poll.unregister(leader.status)
        self._tasks.forget(leader)
        if leader.killed:
            self._tell({"op": "failed", "id": leader.id, "errno": errno.ECANCELED, "at": "program"})
        else:
            self._start({**asked.message, "deadline": leader.deadline}, *asked.output, cold=True)
        wire.close_all(asked.output)

    def _tell_started(self, leader: Leader) -> None:
        del self._starting[leader.status]
        self._poll.unregister(leader.status)
        failure = self._tasks.started(leader)
        if failure is not None:
            leader.failed = True
            self._tell({"op": "failed", "id": leader.id, "errno": failure[1], "at": failure[0]})
            return
        handle: tuple[int, ...] = ()
        if leader.ended is None:  # else its number is not its own any more (P4)
            try:
                handle = (os.pidfd_open(leader.pid),)
            except OSError:  # no descriptor is left: the guardian still kills
                handle = ()
        self._tell({"op": "started", "id": leader.id, "pid": leader.pid, "handle": bool(handle)}, handle)

    def _tell_finished(self) -> None:
        for leader in self._tasks.finished(all_reaped=not self._unreaped):
            if leader.status >= 0:
                # It ended before its start was told: the order is started or failed, then ended.
                self._tell_started(leader)
            if leader.ended is not None and not leader.failed:
                self._tell(leader.ended)

    def _tell(self, message: Message, descriptors: tuple[int, ...] = ()) -> None:
        if not self._connected:
            wire.close_all(descriptors)
            return
        try:
            self._sender.send(message, descriptors)
        except OSError:
            self._disconnect()
        self._watch_connection()

    def _watch_connection(self) -> None:
        if self._connected:
            interest = select.POLLOUT if self._sender.waiting else 0
            if self._sender.waiting < MOST_WAITING:
                interest |= select.POLLIN
            self._poll.modify(self._connection, interest)

    def _disconnect(self) -> None:
        """The worker is gone, or as good as gone: everything that ran for it dies now (P2)."""
        self._tasks.kill_all()
        self._tasks.kill_zygote()
        self._connected = self._unheard = False
        if self._connection.fileno() >= 0:
            self._poll.unregister(self._connection)
            self._receiver.close_descriptors()
            self._sender.close()
            self._connection.close()
