"""The guardian's loop. It never waits for anything but this: a deadline, a signal, a message."""

import math
import os
import select
import signal
import socket
from collections.abc import Callable

from jobq.run.guardian import protocol
from jobq.run.guardian.child_worker import ChildWorker
from jobq.run.guardian.control_group import ControlGroup
from jobq.run.guardian.freeze import FreezeWatch
from jobq.run.guardian.heartbeat import Heartbeat
from jobq.run.guardian.inbox import MOST_WAITING, Inbox
from jobq.run.guardian.protocol import Message, Sender, WireError
from jobq.run.guardian.running_clock import RunningClock
from jobq.run.guardian.starts import Starts
from jobq.run.guardian.system import System
from jobq.run.guardian.tasks import Tasks
from jobq.run.process.kernel import SignalPipe

SWEEP_TICK_SECONDS = 0.02  # while something is waited for; far less than what `RunningClock` takes for a stop
TURN_SECONDS = 0.005  # how long messages may keep the loop from its deadlines
ENDING_SECONDS = 5.0  # how long the guardian stays for trees that will not die


class Guardian:
    """Guards one worker and its tasks.

    Args:
        connection: the socket to the worker.
        signals: those of this process.
        child: the worker's number when it is our child, which gets our signals and ends us; None = the worker started
            us, and its end, or that of the connection, ends us.
        heartbeat: to the watcher, whose end ends us and our child; None = there is none.
        stop_within: seconds that our child may take to end once a signal has asked it to.
        strangers: children that this process had before it was a guardian; they are left alone.
        group: the control group of this process and the tasks.
        system: the kernel.
    """

    def __init__(
        self,
        connection: socket.socket,
        signals: SignalPipe,
        child: int | None,
        heartbeat: Heartbeat | None = None,
        stop_within: float = math.inf,
        strangers: frozenset[int] = frozenset(),
        group: ControlGroup | None = None,
        system: System | None = None,
    ) -> None:
        self._system = system = system or System()
        self._signals = signals
        self._group = group or ControlGroup("")
        self._connection = connection
        self._sender = Sender(connection)
        self._tasks = Tasks(child, strangers, system)
        self._child = None if child is None else ChildWorker(child, self._tasks, stop_within, system)
        self._inbox = Inbox(connection, self._tasks, system)
        self._connected = True
        self._clocks = FreezeWatch(system)
        self._clock = RunningClock(system)
        self._give_up = math.inf  # time of that clock at which it ends, whatever still lives
        self._unreaped = False  # whether the last turn left something to reap or to kill
        self._poll = system.poll()
        self._poll.register(signals, select.POLLIN)
        self._poll.register(connection, select.POLLIN)
        self._heartbeat = heartbeat or Heartbeat()
        self._heartbeat.register(self._poll)
        self._starts = Starts(self._tasks, self._inbox, self._poll, self._send, system)
        self._parent = -1 if child is not None else self._watch_parent()

    @property
    def asked_to_stop(self) -> bool:
        """Whether our child was to end, so that no other is started in its place."""
        return self._child is not None and self._child.asked_to_stop

    @property
    def has_said_why(self) -> bool:
        """Whether we killed our child, and have said why."""
        return self._child is not None and self._child.has_said_why

    def run(self) -> int | None:
        """Guard until the worker has ended and nothing of its tasks is left; return its wait status if it was ours."""
        try:
            self.begin()
            while self.goes_on():
                self.step(self.wait(self.patience()))
        finally:  # also of an error of ours: whatever it was, nothing may live on unguarded
            self.end()
        return self._tasks.worker_status

    def begin(self) -> None:
        """Say hello to the worker."""
        self._connection.setblocking(False)
        who = {"version": protocol.VERSION, "pid": self._system.getpid()}
        self._send({"op": "hello", **who, "group": self._group.path, "why": self._group.why})

    def goes_on(self) -> bool:
        """Whether there is something to guard; for some seconds at most once the worker is gone."""
        if self._connected if self._child is None else self._child.is_there:
            return True
        now = self._clock.seconds()
        self._give_up = min(self._give_up, now + ENDING_SECONDS)
        return bool(self._tasks or self._tasks.is_sweeping) and now < self._give_up

    def end(self) -> None:
        """Kill and reap what is left."""
        self._disconnect()
        self._tasks.reap()
        status = self._tasks.worker_status
        if status is None or os.WIFSIGNALED(status):  # only what was killed could not remove its folder (P5)
            self._system.remove_folders_of_the_dead()
        if self._parent >= 0:
            self._system.close(self._parent)

    def _watch_parent(self) -> int:
        pidfd, is_parent = self._system.open_peer(self._connection)
        if is_parent:
            self._poll.register(pidfd, select.POLLIN)
        else:
            self._connected = False
        return pidfd

    def step(self, events: dict[int, int]) -> None:
        """Take one turn.

        Args:
            events: what `wait` returned.
        """
        came = self._signals.read() if self._signals.fileno() in events else b""
        if (jump := self._clocks.jump()) > 0 and not self._system.has_stores_clock:
            self._kill_leased(jump)
        if self._child is not None:
            self._child.forward(came)
        self._heartbeat.beat()
        if self._heartbeat.fileno() in events:
            self._end_at_once()
        if self._parent in events:
            self._disconnect()
        self._kill_late()
        self._starts.see(events)
        if self._connected:
            self._converse(events.get(self._connection.fileno(), 0))
        if not events:
            self._tasks.kill_again()
        if signal.SIGCHLD in came or self._unreaped or self._tasks.is_sweeping or not events:
            self._unreaped = not self._tasks.reap()
            self._report_finished()
        if self._tasks.worker_status is not None:
            self._disconnect()

    def wait(self, seconds: float) -> dict[int, int]:
        """Return what happens, by descriptor; empty = nothing within so many seconds."""
        return dict(self._poll.poll(seconds * 1000))

    def patience(self) -> float:
        """Return for how many seconds there is nothing to do unless something happens."""
        if self._inbox or self._unreaped:
            return 0.0
        waits = self._tasks.is_sweeping or math.isfinite(self._give_up)
        longest = SWEEP_TICK_SECONDS if waits else self._system.tick_seconds
        end_by = math.inf if self._child is None else self._child.end_by
        moment = min(self._tasks.next_moment(), end_by)
        return min(longest, max(0.0, moment - self._system.boottime()))

    def _end_at_once(self) -> None:
        """The watcher was killed: nobody would see to what we leave if we were too, so all of it ends now."""
        self._poll.unregister(self._heartbeat)
        self._system.say(
            "the watcher was killed: so are the worker and what it ran; its tasks come back when their leases run out"
        )
        # Tasks first: until they are dead the worker is the last who could see to it, should we be killed as well.
        if self._group.leave():
            self._group.kill()
        self._disconnect()
        if self._child is not None:
            self._child.kill()

    def _kill_late(self) -> None:
        now = self._system.boottime()
        if self._tasks.has_overdue(now):
            # This process may have been stopped, at any point of a turn: it reads what was sent meanwhile first, finds
            # the deadlines moved, and kills nothing whose lease is good.
            self._guarded(self._inbox.catch_up)
            self._tasks.kill_overdue(now)
        if self._child is not None:
            self._child.kill_if_deaf()
            self._child.continue_if_held_up()

    def _kill_leased(self, jump: float) -> None:
        """Kill all that runs, or is about to, under a lease: the host froze this machine, and none can be relied on."""
        self._system.say(
            f"the wall clock jumped {jump:.1f} s, this machine may have been frozen: what runs under a lease is killed"
        )
        self._tasks.kill_overdue(math.inf)
        self._guarded(self._inbox.catch_up)
        self._guarded(self._starts.refuse)

    def _converse(self, event: int) -> None:
        if event & (select.POLLHUP | select.POLLERR):
            self._disconnect()  # it is dead: what it still asked for is not begun any more (P2)
            return
        if event & select.POLLOUT:
            self._guarded(self._flush)
        if event & select.POLLIN:
            self._guarded(self._inbox.read)
        self._guarded(self._obey_all)
        self._watch_connection()

    def _guarded(self, step: Callable[[], bool]) -> None:
        """Take a step of the conversation; disconnect at its end, and whatever it raises."""
        if not self._connected:
            return
        try:
            goes_on = step()
        except Exception as error:  # noqa: BLE001 - whatever nonsense it sent, it must not end the guardian
            self._system.say(f"the worker's connection broke: {error!r}")
            goes_on = False
        if not goes_on:
            self._disconnect()

    def _flush(self) -> bool:
        self._sender.flush()
        return True

    def _obey_all(self) -> bool:
        until = self._system.monotonic() + TURN_SECONDS
        while self._connected and self._inbox:
            # As in `_kill_late`: it may have been stopped since it read this start, and its deadline has moved since.
            if self._inbox.is_late(self._system.boottime()) and not self._inbox.catch_up():
                return False
            self._obey(self._inbox.next())
            if self._system.monotonic() >= until:
                break
        return True

    def _obey(self, message: Message) -> None:
        if message["op"] == "spawn":
            self._starts.begin(message)
            return
        if message["op"] == "ping":
            self._send({"op": "pong"})
            return
        leader = self._tasks.get(message["id"])
        match message["op"]:
            case "signal":
                wanted = signal.Signals(message["number"])
                if leader is not None:
                    self._tasks.signal(leader, wanted)
            case "kill":
                if leader is not None:
                    self._tasks.kill(leader, "asked")
            case other:
                raise WireError(f"unknown message {other[:40]!r}")

    def _report_finished(self) -> None:
        for leader in self._tasks.finished(all_reaped=not self._unreaped):
            if leader.status >= 0:
                # It ended before its start was reported: the order is started or failed, then ended.
                self._starts.report(leader)
            if leader.ended is not None:
                self._send(leader.failure or leader.ended)
        for leader in self._tasks.gone(all_reaped=not self._unreaped):
            self._send({"op": "gone", "id": leader.id})

    def _send(self, message: Message, descriptors: tuple[int, ...] = ()) -> None:
        if not self._connected:
            protocol.close_all(descriptors)
            return
        try:
            self._sender.send(message, descriptors)
        except OSError:
            self._disconnect()
        self._watch_connection()

    def _watch_connection(self) -> None:
        if self._connected:
            interest = select.POLLOUT if self._sender.waiting else 0
            if self._sender.waiting < MOST_WAITING and len(self._inbox) < MOST_WAITING:
                interest |= select.POLLIN
            self._poll.modify(self._connection, interest)

    def _disconnect(self) -> None:
        """The worker is gone, or as good as gone: everything that ran for it dies now (P2)."""
        self._tasks.kill_all()
        self._connected = False
        if self._connection.fileno() >= 0:
            self._poll.unregister(self._connection)
            self._inbox.close()
            self._sender.close()
            self._connection.close()
