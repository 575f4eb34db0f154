"""A task that writes its own history: `python -I -S task_program.py HISTORY SECONDS ENDING`, below jobq's worker.

Three processes: a leader, a plain child, and one that left by setsid and double fork. Each appends lines to HISTORY,
one write(2) each: at its start, every 50 ms, and the leader at its own end.

    TASK TOKEN PID BOOTTIME_NS WHAT KEEPER

KEEPER is the number of the leader's parent. The leader ends after SECONDS: ENDING is `ok`, `fail`, or `fail-first`,
which fails in the first attempt. Nothing else ends any of them.
"""

import os
import signal
import sys
import time

BEAT_SECONDS = 0.05


def main(history: str, seconds: str, ending: str) -> None:
    end = time.monotonic() + float(seconds)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no zombies
    log, keeper = os.open(history, os.O_WRONLY | os.O_APPEND), os.getppid()
    write(log, "start", keeper)
    for role in ("child", "escapee"):
        if os.fork() == 0:
            try:
                if role == "escapee":
                    os.setsid()
                    if os.fork() != 0:
                        os._exit(0)
                write(log, "child", keeper)
                live(log, keeper, float("inf"))
            finally:
                os._exit(1)
    live(log, keeper, end)
    write(log, "end", keeper)
    fails = ending == "fail" or (ending == "fail-first" and os.environ["JOBQ_ATTEMPT"] == "1")
    os._exit(1 if fails else 0)


def live(log: int, keeper: int, end: float) -> None:
    while time.monotonic() < end:
        time.sleep(BEAT_SECONDS)
        write(log, "beat", keeper)


def write(log: int, what: str, keeper: int) -> None:
    task, token = os.environ["JOBQ_TASK_ID"], os.environ["JOBQ_LEASE_TOKEN"]
    now = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    os.write(log, f"{task} {token} {os.getpid()} {now} {what} {keeper}\n".encode())


if __name__ == "__main__":
    main(*sys.argv[1:])
