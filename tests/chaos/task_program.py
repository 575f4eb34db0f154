"""A task that writes its own history: `python -I -S task_program.py HISTORY SECONDS ENDING`, below jobq's worker.

Three processes: a leader, a plain child, and one that left by setsid and double fork, with an empty environment. Each
appends lines to HISTORY, one write(2) each: at its start, every 50 ms, and the leader at its own end.

    TASK TOKEN PID BOOTTIME_NS WHAT KEEPER

KEEPER is the number of the leader's parent. The leader ends after SECONDS, or once HISTORY.end exists: ENDING is `ok`,
`fail`, `fail-first`, which fails in the first attempt, or `ok-again`, whose later attempts are short. Nothing else ends
any of them.
"""

import os
import signal
import sys
import time

BEAT_SECONDS = 0.05
_ESCAPEE = "escapee"


def main(history: str, seconds: str, ending: str) -> None:
    is_first = os.environ["JOBQ_ATTEMPT"] == "1"
    end = time.monotonic() + (BEAT_SECONDS if ending == "ok-again" and not is_first else float(seconds))
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no zombies
    who = (os.environ["JOBQ_TASK_ID"], os.environ["JOBQ_LEASE_TOKEN"], str(os.getppid()))
    log = begin(history, "start", *who)
    told = f"{history}.end"
    if os.fork() == 0:
        live(begin(history, "child", *who), who, float("inf"))
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.execve(sys.executable, [sys.executable, "-I", "-S", __file__, _ESCAPEE, history, *who], {})
        os._exit(0)
    live(log, who, end, told)
    write(log, "end", *who)
    os._exit(1 if ending == "fail" or (ending == "fail-first" and is_first) else 0)


def begin(history: str, what: str, task: str, token: str, keeper: str) -> int:
    log = os.open(history, os.O_WRONLY | os.O_APPEND)
    write(log, what, task, token, keeper)
    return log


def live(log: int, who: tuple[str, ...], end: float, told: str = "") -> None:
    while time.monotonic() < end and not (told and os.path.exists(told)):  # noqa: PTH110 - quick to import
        time.sleep(BEAT_SECONDS)
        write(log, "beat", *who)


def write(log: int, what: str, task: str, token: str, keeper: str) -> None:
    now = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    os.write(log, f"{task} {token} {os.getpid()} {now} {what} {keeper}\n".encode())


if __name__ == "__main__":
    if sys.argv[1] == _ESCAPEE:
        live(begin(sys.argv[2], "child", *sys.argv[3:]), tuple(sys.argv[3:]), float("inf"))
    main(*sys.argv[1:])
