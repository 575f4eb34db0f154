"""One task's leading process, and the report of its end."""

import os
import resource

from jobq.run.guardian.protocol import Message


class TaskProcess:
    """One task's leading process, from fork to reap.

    Attributes:
        id: the worker's name for it.
        pid: its number, and that of its session and group; ours until it is reaped (P4).
        status: the read end of the pipe that exec closes, or that says why there was no exec; -1 once read.
        deadline: boottime in seconds by which the tree must be dead; None = no deadline.
        killed: "", "asked" or "deadline".
        failure: what to report in place of its end, since nothing was executed; None = it was, or is not known yet.
        ended: what to report once the tree is swept; None until the leader is reaped.
        sweep_until: time of the `RunningClock` at which waiting for survivors ends: nothing dies while the machine is
            suspended, and nothing that falls to the guardian is killed while that is stopped.
        foreign: strays with at most this number were there while it still lived: they cannot be of its tree.
    """

    def __init__(self, number: int, pid: int, status: int, deadline: float | None) -> None:
        self.id = number
        self.pid = pid
        self.status = status
        self.deadline = deadline
        self.killed = ""
        self.failure: Message | None = None
        self.ended: Message | None = None
        self.sweep_until = 0.0
        self.foreign = 0

    def is_overdue(self, now: float) -> bool:
        """Whether it lives beyond its deadline and nobody has killed it yet."""
        return self.deadline is not None and self.deadline <= now and not self.killed


def ending(leader: TaskProcess, status: int, usage: resource.struct_rusage, max_rss_kib: int | None) -> Message:
    """Return the message that says how a leader ended; its survivors are counted later."""
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
