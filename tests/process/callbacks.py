"""Plain callbacks that can be imported by name, for the process that calls them."""

import datetime as dt
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

import jobq


def double(n: int) -> int:
    return 2 * n


def facts(delivery: jobq.SyncTaskContext) -> dict[str, Any]:
    return {
        "id": delivery.id,
        "attempt": delivery.attempt,
        "fencing": str(delivery.fencing_number) == os.environ["JOBQ_LEASE_TOKEN"],
        "rises": delivery.fencing_number > (0, 0, 0),
        "checkpoint": delivery.checkpoint,
        "remaining": delivery.remaining(),
        "lost": delivery.lock_lost,
        "hidden": "JOBQ_CALLBACK_SOCKET" not in os.environ,
        "name": os.environ.get("NAME"),
        "cwd": str(Path.cwd()),
    }


def fail() -> NoReturn:
    raise ValueError("the text of it")


def leave(code: int) -> NoReturn:
    sys.exit(code)


def vanish(code: int) -> NoReturn:
    os._exit(code)


def when() -> dt.datetime:
    return dt.datetime.now(tz=dt.UTC)


def large() -> str:
    return "a" * 2_000_000


class Changing(dict[str, int]):
    def items(self) -> NoReturn:
        raise RuntimeError("it changes")


def changing() -> dict[str, int]:
    return Changing(n=1)


def deep() -> list[Any]:
    value: list[Any] = []
    for _ in range(100):
        value = [value]
    return value


def print_and_return() -> None:
    print("told")


async def coroutine(n: int) -> int:
    return n + 1


def returns_a_coroutine(n: int) -> Any:
    return coroutine(n)


def tree() -> None:
    """Start a child that leaves the group, tell both, and stay."""
    child = subprocess.Popen(["setsid", "sleep", "1000"])
    print(f"up {os.getpid()} {child.pid}", flush=True)
    time.sleep(1000)


def resume(delivery: jobq.SyncTaskContext) -> str | None:
    if delivery.checkpoint is None:
        delivery.save_checkpoint("first")
        delivery.save_checkpoint("second")
        raise RuntimeError
    return delivery.checkpoint


def save_when_told(delivery: jobq.SyncTaskContext, flag: str) -> str:
    print("up", flush=True)
    while not Path(flag).exists():
        time.sleep(0.005)
    try:
        delivery.save_checkpoint("late")
    except jobq.JobqError as error:
        print(type(error).__name__, flush=True)
        raise
    return "saved"


def see_a_renewal(delivery: jobq.SyncTaskContext) -> bool:
    """Return once the lease's deadline has moved, as the time that is left shows."""
    last = delivery.remaining()
    for _ in range(4000):
        time.sleep(0.005)
        left = delivery.remaining()
        if left > last:
            return True
        last = left
    return False


def forks(delivery: jobq.SyncTaskContext) -> int:
    """Use the context in a child, which is refused: two processes would mix their words."""
    child = os.fork()
    if child == 0:
        try:
            delivery.remaining()
        except RuntimeError:
            os._exit(7)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def fill(megabytes: int) -> None:
    held = bytearray(b"a") * (megabytes * 1024 * 1024)
    time.sleep(1000)
    del held


def save_when_stopped(delivery: jobq.SyncTaskContext) -> str | None:
    """Is mostly in the midst of a question when the signal comes."""
    if delivery.checkpoint is not None:
        return delivery.checkpoint

    def save(*_: object) -> NoReturn:
        delivery.save_checkpoint("at the end")
        sys.exit(1)

    signal.signal(signal.SIGTERM, save)
    print("ready", flush=True)
    while True:
        delivery.remaining()


def interrupted_again_and_again(delivery: jobq.SyncTaskContext) -> float:
    def interrupt(*_: object) -> NoReturn:
        raise TimeoutError

    signal.signal(signal.SIGALRM, interrupt)
    for _ in range(100):
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.001)
            while True:
                delivery.remaining()
        except TimeoutError:
            pass
    signal.setitimer(signal.ITIMER_REAL, 0)
    delivery.save_checkpoint("still in step")
    return delivery.remaining()
