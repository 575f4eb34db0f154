"""A process of a task that records its own life: `python -I -S stamping.py FOLDER TASK ATTEMPT`, in any environment.

It writes CLOCK_BOOTTIME in nanoseconds into a file of its own: its first moment once, its latest every few
milliseconds. A first attempt lives until FOLDER/end exists; a later one ends at once.
"""

import os
import sys
import time

STAMP_SECONDS = 0.01
LATER_SECONDS = 0.1


def boottime_ns() -> bytes:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME).to_bytes(8, "little")


def main(folder: str, task: str, attempt: str) -> None:
    stamps = os.open(f"{folder}/lives/{task}.{attempt}.{os.getpid()}", os.O_WRONLY | os.O_CREAT, 0o600)
    os.pwrite(stamps, boottime_ns() * 2, 0)
    end = time.monotonic() + LATER_SECONDS
    while not os.path.exists(f"{folder}/end") and (attempt == "1" or time.monotonic() < end):  # noqa: PTH110 - quick
        os.pwrite(stamps, boottime_ns(), 8)
        time.sleep(STAMP_SECONDS)


if __name__ == "__main__":
    main(*sys.argv[1:])
