"""The trees: fork armed, kill whole, reap (P2 to P5). Everything here runs on the guardian's one thread.

Each leader is the subreaper of its own tree, so whatever leaves its process group stays below it while it lives, and
falls to the guardian when it dies. So a child of the guardian that is neither the worker nor a live leader belongs to
a task that has ended, and is killed.
"""

import contextlib
import math
import signal

from jobq.run.guardian.protocol import Message
from jobq.run.guardian.running_clock import RunningClock
from jobq.run.guardian.system import System
from jobq.run.guardian.task_process import TaskProcess, ending
from jobq.run.process import kernel

SWEEP_SECONDS = 1.0  # how long a killed tree may take to be gone before its end is reported with survivors
REAP_SECONDS = 10.0  # how much longer when there are so many that they are dead and not all reaped yet
LONGEST_TURN_SECONDS = 0.05  # of reaping in a crowd, where listing what is left takes long itself
TURN_SECONDS = 0.01  # how long reaping, and again how long sweeping, may keep the loop from its deadlines


class Tasks:
    """All leaders of one guardian.

    Args:
        worker: the number of the child that is no task; None = there is none.
        strangers: children from before this process was a guardian: `exec jobq worker` keeps those of a shell.
        system: the kernel.
    """

    def __init__(
        self,
        worker: int | None,
        strangers: frozenset[int] = frozenset(),
        system: System | None = None,
    ) -> None:
        self._system = system = system or System()
        self.worker_status: int | None = None
        self._worker = worker
        self._strangers = set(strangers)  # ours un-reaped, so their numbers stay their own (P4)
        self._by_id: dict[int, TaskProcess] = {}  # live ones only, as in the next
        self._by_pid: dict[int, TaskProcess] = {}
        self._sweeping: list[TaskProcess] = []  # reaped: their numbers may be others' by now
        self._survived: list[TaskProcess] = []  # their ends were reported, with survivors
        self._killed: dict[int, int] = {}  # strays that were sent SIGKILL, numbered as they were discovered
        self._discovered = 0
        self._foreign = 0  # strays up to this number were there when no leader waited to be reaped
        self._hopeless: dict[int, float] = {}  # those that were waited for in vain, and by `_clock` until when
        self._clock = RunningClock(system)
        self._me = system.getpid()
        self._session = system.getsid(0)
        self._our_peak_kib = 0
        self._listing_seconds = 0.0  # of the last look for strays

    def __len__(self) -> int:
        return len(self._by_id) + len(self._sweeping)

    @property
    def is_sweeping(self) -> bool:
        """Whether something that was killed is not gone yet."""
        return bool(self._sweeping or self._killed.keys() - self._hopeless.keys())

    def get(self, number: int) -> TaskProcess | None:
        """Return a leader by the worker's name for it; None when it has ended."""
        return self._by_id.get(number)

    def spawn(self, message: Message, stdout: int, stderr: int) -> TaskProcess:
        """Fork a task; whether exec works is written to `status`. Raises OSError, see `System.start`."""
        pid, status = self._system.fork_task(message, stdout, stderr)
        leader = TaskProcess(message["id"], pid, status, message["deadline"])
        self._by_id[leader.id] = self._by_pid[pid] = leader
        return leader

    def started(self, leader: TaskProcess) -> tuple[str, int] | None:
        """Read `status`: None when the program runs, or was killed before it could; else (stage, errno)."""
        try:
            said = self._system.read(leader.status)
        except OSError:  # it was killed before it read our word, or a neighbour in the making still holds its end
            said = b""
        self._system.close(leader.status)
        leader.status = -1
        if not said:
            return None
        stage, _, number = said.decode("ascii", "replace").partition(":")
        return stage, int(number) if number.isdecimal() else 0

    def signal(self, leader: TaskProcess, number: int) -> None:
        """Send a signal to a leader's group while its number is ours (P4)."""
        if leader.ended is not None:
            return
        try:
            self._system.killpg(leader.pid, number)
        except ProcessLookupError:  # it was forked but has no group of its own yet
            with contextlib.suppress(ProcessLookupError, PermissionError):
                self._system.kill(leader.pid, number)
        except PermissionError:
            pass  # it has become another user: reported as a survivor

    def kill(self, leader: TaskProcess, why: str) -> None:
        """Kill the group; the leader's end then brings the rest of its tree here, where `reap` kills it."""
        leader.killed = leader.killed or why
        self.signal(leader, signal.SIGKILL)

    def kill_all(self) -> None:
        """Kill every tree."""
        for leader in self._by_id.values():
            self.kill(leader, "asked")

    def has_overdue(self, now: float) -> bool:
        """Whether `kill_overdue` would kill anything."""
        return any(leader.is_overdue(now) for leader in self._by_id.values())

    def kill_overdue(self, now: float) -> None:
        """Kill the trees that live beyond their deadline (P1)."""
        for leader in self._by_id.values():
            if leader.is_overdue(now):
                self.kill(leader, "deadline")

    def next_moment(self) -> float:
        """Return the boottime, in seconds, at which something is due; infinity = nothing is."""
        moments = []
        for leader in self._by_id.values():
            if leader.deadline is not None and not leader.killed:
                moments.append(leader.deadline)  # noqa: PERF401 - mypy does not narrow in a comprehension's condition
        return min(moments, default=math.inf)

    def reap(self) -> bool:
        """Reap what has ended and kill what it left behind; return False when there is more to do at once."""
        until = self._system.monotonic() + min(max(TURN_SECONDS, 3 * self._listing_seconds), LONGEST_TURN_SECONDS)
        while True:
            more = self._reap_one()
            in_time = self._system.monotonic() < until
            if more and in_time:
                continue
            # Newest first: one that forks and ends again and again is caught only as its newest self.
            fresh = [pid for pid in reversed(self._strays()) if pid not in self._killed]
            all_killed = self._kill(fresh)
            if not fresh or not in_time or not all_killed:
                return not fresh and not more

    def kill_again(self) -> None:
        """Kill what was killed and is not gone: SIGKILL is sure, but it may have been refused to us for a moment."""
        self._kill(self._strays())

    def finished(self, *, all_reaped: bool) -> list[TaskProcess]:
        """Return, and forget, the leaders whose whole tree is gone, or was waited for in vain.

        Args:
            all_reaped: nothing that is dead was left unreaped a moment ago.
        """
        if not self._sweeping:
            return []
        strays = self._strays()
        now = self._clock.seconds()
        finished: list[TaskProcess] = []
        for leader in list(self._sweeping):
            # One that is not even numbered yet may be anybody's.
            own = [pid for pid in strays if self._killed.get(pid, math.inf) > leader.foreign]
            # Later tasks wait for none that was given up before, and are not blamed for it; one that waits with others
            # may be the one that it is of.
            reaped = leader.sweep_until - SWEEP_SECONDS
            own = [pid for pid in own if self._hopeless.get(pid, math.inf) >= reaped]
            if own and now < leader.sweep_until + (0 if all_reaped else REAP_SECONDS):
                continue
            own = [pid for pid in own if not self._system.is_dead(pid)]
            assert leader.ended is not None
            leader.ended["survivors"] = len(own)
            for pid in own:
                self._hopeless.setdefault(pid, now)
            finished.append(leader)
            self._sweeping.remove(leader)
            if own and leader.failure is None:
                self._survived.append(leader)
        return finished

    def gone(self, *, all_reaped: bool) -> list[TaskProcess]:
        """Return, and forget, the leaders that ended with survivors, once nothing is left that may be of their trees.

        Args:
            all_reaped: as of `finished`.
        """
        if not self._survived or not all_reaped:
            return []
        strays = self._strays()  # what a survivor leaves falls to us with its death, so it is among these by then
        gone = [
            leader
            for leader in self._survived
            if all(self._killed.get(pid, math.inf) <= leader.foreign for pid in strays)
        ]
        self._survived = [leader for leader in self._survived if leader not in gone]
        return gone

    def _reap_one(self) -> bool:
        pid = self._system.ended_child()
        if pid is None:
            self._foreign = self._discovered
            return False
        leader = self._by_pid.get(pid)
        if leader is not None:
            # The zombie still holds the number, so the group that is killed can be no other (P4, P5).
            self.signal(leader, signal.SIGKILL)
        status, usage = self._system.reap(pid)
        self._strangers.discard(pid)
        self._killed.pop(pid, None)
        self._hopeless.pop(pid, None)
        if leader is not None:
            leader.sweep_until = self._clock.seconds() + SWEEP_SECONDS
            leader.foreign = self._foreign  # found before it was last known to live, when its own were still below it
            leader.ended = ending(leader, status, usage, self._own_rss(usage.ru_maxrss))
            del self._by_pid[pid]
            del self._by_id[leader.id]
            self._sweeping.append(leader)
        elif pid == self._worker:
            self._worker = None
            self.worker_status = status
        return True

    def _own_rss(self, max_rss_kib: int) -> int | None:
        """Return the value unless it may be that of what exec replaced, a copy of this process: Linux counts it too."""
        if max_rss_kib > self._our_peak_kib:  # ours never falls, so it is read only when it might matter
            self._our_peak_kib = self._system.peak_rss_kib()
        return max_rss_kib if max_rss_kib > self._our_peak_kib else None

    def _strays(self) -> list[int]:
        began = self._system.monotonic()
        strays = [pid for pid in self._system.children() if not self._is_known(pid)]
        self._listing_seconds = self._system.monotonic() - began
        return strays

    def _is_known(self, pid: int) -> bool:
        return pid in self._by_pid or pid == self._worker or pid in self._strangers

    def _kill(self, strays: list[int]) -> bool:
        """Kill what ended tasks left; each death may bring its own children here, and a SIGCHLD with it.

        Returns:
            Whether there was time for all of them: a tree of thousands must not hold up another's deadline (S11).
        """
        until = self._system.monotonic() + TURN_SECONDS
        groups = set[int]()
        for pid in strays:
            if self._system.monotonic() >= until:
                return False
            self._note(pid)
            # Our own session is the worker's and its helpers', not a task's.
            kernel.kill_stray(pid, groups, (self._session,), self._system)
        return True

    def _note(self, stray: int) -> None:
        if stray not in self._killed:
            self._discovered += 1
            self._killed[stray] = self._discovered
