"""The trees: fork armed, kill whole, reap (P2 to P5). Everything here runs on the guardian's one thread.

Each leader is the subreaper of its own tree, so whatever leaves its process group stays below it while it lives, and
falls to the guardian when it dies. So a child of the guardian that is neither the worker nor a live leader belongs to
a task that has ended, and is killed.
"""

import contextlib
import math
import os
import resource
import signal
import time

from jobq.run.guardian import kernel
from jobq.run.guardian.wire import Message

SWEEP_SECONDS = 1.0  # how long a killed tree may take to be gone before its end is told with survivors
TURN_SECONDS = 0.01  # how long reaping and sweeping may keep the loop from its deadlines


class Leader:
    """One task's leading process, from fork to reap.

    Attributes:
        id: the worker's name for it.
        pid: its number, and that of its session and group; ours until it is reaped (P4).
        status: the read end of the pipe that exec closes, or that tells why there was no exec; -1 once read.
        deadline: boottime in seconds by which the tree must be dead; None = no deadline.
        killed: "", "asked" or "deadline".
        failed: nothing was executed, and the worker was told so; its end is not told again.
        ended: what to tell once the tree is swept; None until the leader is reaped.
        sweep_until: boottime in seconds at which waiting for survivors ends.
    """

    def __init__(self, number: int, pid: int, status: int, deadline: float | None) -> None:
        self.id = number
        self.pid = pid
        self.status = status
        self.deadline = deadline
        self.killed = ""
        self.failed = False
        self.ended: Message | None = None
        self.sweep_until = 0.0


class Tasks:
    """All leaders of one guardian.

    Args:
        worker: the number of the child that is no task; None = there is none.
    """

    def __init__(self, worker: int | None) -> None:
        self.worker_status: int | None = None
        self._worker = worker
        self._by_id: dict[int, Leader] = {}  # live ones only, as in the next
        self._by_pid: dict[int, Leader] = {}
        self._sweeping: list[Leader] = []  # reaped: their numbers may be others' by now
        self._killed: set[int] = set()  # strays that were sent SIGKILL
        self._hopeless: set[int] = set()  # those that were waited for in vain
        self._me = os.getpid()
        self._session = os.getsid(0)
        self._our_peak_kib = 0

    def __len__(self) -> int:
        return len(self._by_id) + len(self._sweeping)

    @property
    def is_sweeping(self) -> bool:
        """Whether something that was killed is not gone yet."""
        return bool(self._sweeping or self._killed - self._hopeless)

    def get(self, number: int) -> Leader | None:
        """Return a leader by the worker's name for it; None when it has ended."""
        return self._by_id.get(number)

    def spawn(self, message: Message, stdout: int, stderr: int) -> Leader:
        """Fork a task that is armed before it executes anything (P2); whether exec works is told on `status`.

        Raises:
            OSError: no process or descriptor could be had.
        """
        status, report = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            pid = kernel.fork()
        except OSError:
            os.close(status)
            os.close(report)
            raise
        if pid == 0:
            _become(message, stdout, stderr, report, self._me)
        os.close(report)
        leader = Leader(message["id"], pid, status, message["deadline"])
        self._by_id[leader.id] = self._by_pid[pid] = leader
        return leader

    def started(self, leader: Leader) -> tuple[str, int] | None:
        """Read `status`: None when the program runs, or was killed before it could; else (stage, errno)."""
        told = os.read(leader.status, 64)
        os.close(leader.status)
        leader.status = -1
        if not told:
            return None
        stage, _, number = told.decode("ascii").partition(":")
        return stage, int(number)

    def signal(self, leader: Leader, number: int) -> None:
        """Send a signal to a leader's group while its number is ours (P4)."""
        if leader.ended is not None:
            return
        try:
            os.killpg(leader.pid, number)
        except ProcessLookupError:  # it was forked but has no group of its own yet
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(leader.pid, number)
        except PermissionError:
            pass  # it has become another user: told as a survivor

    def kill(self, leader: Leader, why: str) -> None:
        """Kill the group; the leader's end then brings the rest of its tree here, where `reap` kills it."""
        leader.killed = leader.killed or why
        self.signal(leader, signal.SIGKILL)

    def kill_all(self) -> None:
        """Kill every tree."""
        for leader in self._by_id.values():
            self.kill(leader, "asked")

    def kill_overdue(self, now: float) -> None:
        """Kill the trees that live beyond their deadline (P1)."""
        for leader in self._by_id.values():
            if leader.deadline is not None and leader.deadline <= now and not leader.killed:
                self.kill(leader, "deadline")

    def next_moment(self) -> float:
        """Return the boottime, in seconds, at which something is due; infinity = nothing is."""
        moments = [leader.sweep_until for leader in self._sweeping]
        for leader in self._by_id.values():
            if leader.deadline is not None and not leader.killed:
                moments.append(leader.deadline)  # noqa: PERF401 - mypy does not narrow in a comprehension's condition
        return min(moments, default=math.inf)

    def reap(self) -> bool:
        """Reap what has ended and kill what it left behind; return False when there is more to do at once."""
        until = time.monotonic() + TURN_SECONDS
        while True:
            more = self._reap_one()
            in_time = time.monotonic() < until
            if more and in_time:
                continue
            # Newest first: one that forks and ends again and again is caught only as its newest self.
            fresh = [pid for pid in reversed(self._strays()) if pid not in self._killed]
            self._kill(fresh)
            if not fresh or not in_time:
                return not fresh and not more

    def kill_again(self) -> None:
        """Kill what was killed and is not gone: SIGKILL is sure, but it may have been refused to us for a moment."""
        self._kill(self._strays())

    def finished(self) -> list[Leader]:
        """Return, and forget, the leaders whose whole tree is gone, or was waited for in vain."""
        if not self._sweeping:
            return []
        strays = set(self._strays()) - self._hopeless
        now = kernel.boottime()
        told = [leader for leader in self._sweeping if not strays or leader.sweep_until <= now]
        for leader in told:
            assert leader.ended is not None
            leader.ended["survivors"] = len(strays)
            self._sweeping.remove(leader)
        if told:
            self._hopeless |= strays  # or each later task would wait for them too, and be blamed for them
        return told

    def _reap_one(self) -> bool:
        try:
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return False
        if found is None:
            return False
        pid = found.si_pid
        leader = self._by_pid.get(pid)
        if leader is not None:
            # The zombie still holds the number, so the group that is killed can be no other (P4, P5).
            self.signal(leader, signal.SIGKILL)
        _, status, usage = os.wait4(pid, 0)
        self._killed.discard(pid)
        self._hopeless.discard(pid)
        if leader is not None:
            leader.sweep_until = kernel.boottime() + SWEEP_SECONDS
            leader.ended = _ending(leader, status, usage, self._own_rss(usage.ru_maxrss))
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
            self._our_peak_kib = kernel.peak_rss_kib()
        return max_rss_kib if max_rss_kib > self._our_peak_kib else None

    def _strays(self) -> list[int]:
        return [pid for pid in kernel.children() if pid not in self._by_pid and pid != self._worker]

    def _kill(self, strays: list[int]) -> None:
        """Kill what ended tasks left; each death may bring its own children here, and a SIGCHLD with it."""
        for pid in strays:
            self._killed.add(pid)
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)  # our un-reaped child, so the number is its own (P4)
                # Whatever shares its group and session dies with it, before it can fork on. It is dead or dying and
                # not reaped: it cannot leave the group any more, and its membership keeps the number (P4). Our own
                # session is the worker's and its helpers', not a task's.
                if os.getsid(pid) != self._session and (group := os.getpgid(pid)) > 0:  # 0: of another PID namespace
                    os.killpg(group, signal.SIGKILL)


def _ending(leader: Leader, status: int, usage: resource.struct_rusage, max_rss_kib: int | None) -> Message:
    code = os.waitstatus_to_exitcode(status)
    return {
        "op": "ended",
        "id": leader.id,
        "code": code if code >= 0 else None,
        "signal": -code if code < 0 else None,
        "cpu_seconds": usage.ru_utime + usage.ru_stime,
        "max_rss_bytes": None if max_rss_kib is None else max_rss_kib * 1024,
        "killed": leader.killed,
        "survivors": 0,
    }


def _become(message: Message, stdout: int, stderr: int, report: int, guardian: int) -> None:
    """In the child: arm, connect, execute; never returns."""
    stage = "program"
    try:
        os.setsid()
        kernel.become_subreaper()
        kernel.die_with_parent()
        if os.getppid() != guardian:
            os._exit(127)  # the guardian died before this process was armed
        null = os.open("/dev/null", os.O_RDONLY)
        for source, target in ((null, 0), (stdout, 1), (stderr, 2)):
            os.dup2(source, target)
        # All that is not the task's: also the connection, before a slow chdir can hold it open.
        os.closerange(3, report)
        os.closerange(report + 1, max(report + 2, os.sysconf("SC_OPEN_MAX")))
        kernel.default_signals()
        if message["cwd"] is not None:
            stage = "cwd"
            os.chdir(message["cwd"])
            stage = "program"
        os.execvpe(message["argv"][0], message["argv"], message["env"])  # noqa: S606 - what a worker is for
    except OSError as error:
        os.write(report, f"{stage}:{error.errno or 0}".encode("ascii"))
    except BaseException:  # noqa: BLE001 - a child must not run on as a second guardian
        os.write(report, f"{stage}:0".encode("ascii"))
    os._exit(127)
