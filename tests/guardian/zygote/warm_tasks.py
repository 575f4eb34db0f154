"""Functions that the tests of the zygote call, as tasks; also a module to preload."""

import atexit
import ctypes
import json
import os
import random
import re
import signal
import sys
import threading
import time
from pathlib import Path

LOADED_BY = os.getpid()
LIBC = ctypes.CDLL(None, use_errno=True)


def look() -> None:
    """Print what a task finds."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    death, reaper = ctypes.c_int(), ctypes.c_int()
    LIBC.prctl(2, ctypes.byref(death), 0, 0, 0)
    LIBC.prctl(37, ctypes.byref(reaper), 0, 0, 0)
    found = {
        "parent": os.getppid(),
        "leads": os.getsid(0) == os.getpgrp() == os.getpid(),
        "death": death.value,
        "reaper": reaper.value,
        "descriptors": sorted(path.name for path in Path("/proc/self/fd").iterdir())[:-1],  # the last one lists them
        "stdin": str(Path("/proc/self/fd/0").readlink()),
        "argv": sys.argv,
        "cwd": str(Path.cwd()),
        "path": sys.path[0],
        "env": dict(os.environ),
        # The real-time signals that glibc keeps for itself are as make or whoever left them.
        "signals": [int(status[name], 16) & 0x7FFFFFFF for name in ("SigBlk", "SigIgn", "SigCgt")],
        "name": Path("/proc/self/comm").read_text().strip(),
        "threads": len(list(Path("/proc/self/task").iterdir())),
        "warm": os.getpid() != LOADED_BY,
        "zone": time.strftime("%Z"),
    }
    print(json.dumps(found))


def nothing(**_arguments: object) -> None:
    pass


def length(text: str) -> None:
    print(len(text))


async def waits(text: str) -> int:
    print(text)
    return 7


def end(code: object) -> None:
    sys.exit(code)  # type: ignore[arg-type] # whatever the test says


def fail() -> None:
    raise ValueError("on purpose")


def interrupt() -> None:
    raise KeyboardInterrupt


def die(number: int) -> None:
    os.kill(os.getpid(), number)


def late() -> None:
    """Say something from a thread, from atexit, and without a line's end."""

    def slow() -> None:
        time.sleep(0.05)
        print("thread")

    threading.Thread(target=slow).start()
    atexit.register(print, "atexit")
    print("function", end=" ")


def full() -> None:
    os.dup2(os.open("/dev/full", os.O_WRONLY), 1)
    print("lost")


def number() -> None:
    print(random.random())


def sleep(seconds: float = 1000) -> None:
    print("up", flush=True)
    time.sleep(seconds)


def remember(secret: str) -> None:
    assert os.environ["SECRET"] == secret


def search(reverse: str) -> None:
    """Print how often the memory of this process holds a text, which is given reversed and never put together here."""
    wanted = re.compile("".join(f"[{character}]" for character in reversed(reverse)).encode())
    found = 0
    with Path("/proc/self/mem").open("rb", buffering=0) as memory:
        for line in Path("/proc/self/maps").read_text().splitlines():
            place, mode = line.split()[:2]
            start, stop = (int(part, 16) for part in place.split("-"))
            if "rw" in mode:
                try:
                    memory.seek(start)
                    found += len(wanted.findall(memory.read(stop - start)))
                except OSError:
                    continue
    print(found)


def tree(kind: str, mark: str, quick: bool = False) -> None:
    """Grow a hostile tree; `quick`: end at once and leave it behind."""
    from tests.guardian import hostile  # noqa: PLC0415 - a task's own import

    hostile.MARKER = mark
    for ignored in hostile.IGNORED:
        signal.signal(ignored, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    hostile.TREES[kind][0]()
    print("grown", flush=True)
    if not quick:
        hostile.idle()


STOP_AT = os.environ.get("STOP_AT")
if STOP_AT:  # the zygote that preloads this: what it forks stops at a given point
    from jobq.run.guardian import protocol

    zygote = os.getpid()
    real_encode = protocol.encode
    is_ready = False

    def stop() -> None:
        os.kill(os.getpid(), signal.SIGSTOP)

    def encode(message: protocol.Message) -> bytes:
        global is_ready  # noqa: PLW0603 - the smallest way
        is_ready = is_ready or message["op"] == "ready"  # what it forks before is no task
        if message["op"] == "forked" and STOP_AT == "announcing":
            stop()
        return real_encode(message)

    def stopping(name: str) -> None:
        real = getattr(os, name)

        def stops(*arguments: object) -> object:
            if is_ready and os.getpid() != zygote and (name != "_exit" or os.getppid() == zygote):
                setattr(os, name, real)
                stop()
            return real(*arguments)

        setattr(os, name, stops)

    protocol.encode = encode
    if STOP_AT != "announcing":
        stopping(STOP_AT)
