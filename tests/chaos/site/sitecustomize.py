"""Read by each Python of a worker of a campaign: lets its event loop be blocked, and breaks a rule when asked to."""

import os
import signal
import time
from typing import Any

# The worker's alone is sent it; the loop stands still, its other threads go on.
if "CHAOS_BLOCK_SECONDS" in os.environ:
    signal.signal(signal.SIGRTMIN, lambda *_: time.sleep(float(os.environ["CHAOS_BLOCK_SECONDS"])))

match os.environ.get("CHAOS_BROKEN"):
    case "hold":  # rules.md 1.3, rule 2: the worker kills in time
        from jobq.lease.timing import LeaseTiming

        LeaseTiming.hold = property(lambda timing: 1.6 * timing.lease)  # type: ignore[method-assign, assignment]
    case "deadline":  # P1: the guardian kills what its worker does not
        from jobq.run.guardian.task_process import TaskProcess

        TaskProcess.is_overdue = lambda *_: False  # type: ignore[method-assign]
    case "heard":  # rules.md 1.3, rules 1 and 5: a lease counts from before it was asked for
        from jobq.clock import Clock, Moment
        from jobq.lease.keeper import LeaseKeeper, Renewable

        begin = LeaseKeeper.__init__

        def begin_when_heard(self: LeaseKeeper, leased: Renewable, *, clock: Clock, **more: Any) -> None:
            begin(self, leased, clock=clock, **{**more, "since": Moment.of(clock)})

        LeaseKeeper.__init__ = begin_when_heard  # type: ignore[method-assign]
