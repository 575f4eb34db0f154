"""A task that records its own life: `python -I -S task_program.py FOLDER`, run below jobq's worker.

Three processes, a leader, a plain child and one that left by setsid and double fork. Each says once who it is, in
one line into FOLDER/births, and writes CLOCK_BOOTTIME in nanoseconds into a file of its own: its first moment once,
its latest every few milliseconds. The last of these is the latest moment at which it surely lived.

The leader exits 0 as soon as FOLDER/ends/TASK exists. Nothing else ends any of them.
"""

import os
import signal
import sys
import time

STAMP_SECONDS = 0.005
ROLES = ("leader", "child", "escapee")


def boottime_ns() -> bytes:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME).to_bytes(8, "little")


def main(folder: str) -> None:
    first = boottime_ns()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no zombies
    parent = os.getppid()
    births = os.open(f"{folder}/births", os.O_WRONLY)
    end = f"{folder}/ends/{os.environ['JOBQ_TASK_ID']}"
    stamps = be_born(folder, births, "leader", parent, first)
    for role in ROLES[1:]:
        if os.fork() == 0:
            try:
                if role == "escapee":
                    os.setsid()
                    if os.fork() != 0:
                        os._exit(0)
                live(be_born(folder, births, role, parent, boottime_ns()), "")
            finally:
                os._exit(1)
    live(stamps, end)


def be_born(folder: str, births: int, role: str, parent: int, first: bytes) -> int:
    """Begin the record of this process, and announce it; return the record's descriptor."""
    task, attempt, token = (os.environ[f"JOBQ_{name}"] for name in ("TASK_ID", "ATTEMPT", "LEASE_TOKEN"))
    stamps = os.open(f"{folder}/lives/{task}.{attempt}.{os.getpid()}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    os.pwrite(stamps, first + boottime_ns(), 0)
    os.write(births, f"{task} {attempt} {token} {role} {os.getpid()} {parent}\n".encode())
    return stamps


def live(stamps: int, end: str) -> None:
    while not (end and os.path.exists(end)):  # noqa: PTH110 - pathlib takes longer to import than the rest to start
        os.pwrite(stamps, boottime_ns(), 8)
        time.sleep(STAMP_SECONDS)


if __name__ == "__main__":
    main(sys.argv[1])
