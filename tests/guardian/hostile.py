"""Programs that try to outlive their task: `python -S -E hostile.py KIND MARKER`. The leader exits 0 on SIGUSR1."""

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable

KIND, MARKER = sys.argv[1:3] if __name__ == "__main__" else ("", "")
AGAIN = [sys.executable, "-S", "-E", __file__, "idle", MARKER]
IGNORED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)
LIBC = ctypes.CDLL(None)


def idle() -> None:
    while True:
        time.sleep(1000)


def child(run: Callable[[], object]) -> None:
    if os.fork() == 0:
        try:
            run()
            idle()
        finally:
            os._exit(0)


def daemon() -> None:
    os.setsid()
    child(idle)
    os._exit(0)


def storm() -> None:
    for _ in range(200):
        child(os.setsid)


def move(leave: Callable[[], object]) -> None:
    """Fork, end, fork: no look into /proc is sure to see it, so it leaves a trace."""
    trace = os.open(f"/tmp/{MARKER}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.setsid()
    while True:
        leave()
        if os.fork() != 0:
            os._exit(0)
        os.write(trace, b".")


def new_session() -> None:
    if os.getpgrp() != os.getpid():  # a leader may not
        os.setsid()


def reparent() -> None:
    move(lambda: time.sleep(0.0005))


def reparent_in_new_sessions() -> None:
    move(new_session)


def subreaper() -> None:
    LIBC.prctl(36, 1, 0, 0, 0)
    os.setsid()
    child(daemon)


def stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def traced() -> None:
    """Stop in the hands of a tracer, the parent, that never lets go on."""
    LIBC.ptrace(0, 0, 0, 0)  # PTRACE_TRACEME
    os.kill(os.getpid(), signal.SIGSTOP)


def close() -> None:
    os.closerange(0, 100)
    os.setsid()


def rename() -> None:
    LIBC.prctl(15, b"kworker/0:1", 0, 0, 0)
    os.setsid()


def background(*command: str) -> Callable[[], object]:
    return lambda: subprocess.Popen([*command, *AGAIN], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


TREES: dict[str, tuple[Callable[[], object], int]] = {  # how it starts; how many processes it has then
    "idle": (lambda: None, 1),
    "double_fork": (lambda: child(daemon), 2),
    "setsid": (lambda: child(os.setsid), 2),
    "nohup": (background("nohup"), 2),
    "env_i_setsid": (background("env", "-i", "setsid"), 2),
    "ignores_term": (lambda: child(lambda: child(idle)), 3),
    "storm": (storm, 201),
    "closed_stdio": (lambda: child(close), 2),
    "holds_pipe": (lambda: child(idle), 2),
    "stopped": (lambda: child(stop), 2),
    "traced": (lambda: child(traced), 2),
    "renamed": (lambda: child(rename), 2),
    "exec_a": (background("bash", "-c", 'exec -a innocent "$@"', "bash"), 2),
    "reparenting": (lambda: child(reparent), 2),
    "reparenting_in_new_sessions": (lambda: child(reparent_in_new_sessions), 2),
    "subreaper": (lambda: child(subreaper), 3),
}

if __name__ == "__main__":
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no zombies, or the fast ones fill the table of processes
    TREES[KIND][0]()
    if KIND != "idle":
        signal.signal(signal.SIGUSR1, lambda *_: os._exit(0))
    idle()
