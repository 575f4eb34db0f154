"""A command that writes its token and the time into a file every 10 ms, as does a child of it that has left its group.

python beats.py FILE [how many seconds]
"""

import os
import sys
import time


def beat(path: str, seconds: float) -> None:
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        os.write(file, f"{os.environ['JOBQ_LEASE_TOKEN']} {time.clock_gettime(time.CLOCK_BOOTTIME)}\n".encode())
        time.sleep(0.01)


if __name__ == "__main__":
    seconds = float(sys.argv[2]) if len(sys.argv) > 2 else 60.0
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            beat(sys.argv[1], seconds)
        os._exit(0)
    beat(sys.argv[1], seconds)
