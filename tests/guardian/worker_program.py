"""A worker for tests: `worker_program.py KIND MARKER [KIND MARKER ...]` runs these hostile trees and waits.

SIGUSR1: move every deadline to 0.3 s from now. SIGUSR2: block the event loop. Each is answered by a line.
"""

import asyncio
import contextlib
import os
import signal
import sys
import time

from jobq.clock import SystemClock
from jobq.run.process import OBEYED
from jobq.run.process.spawner import Launch
from jobq.run.spawn.guardian_spawner import GuardianSpawner, inherited_connection
from tests.guardian.stage import hostile


def say(text: str) -> None:
    os.write(1, f"{text}\n".encode())


async def main() -> None:
    null = os.open("/dev/null", os.O_WRONLY)
    connection = inherited_connection()

    def on_guardian_lost() -> None:
        with contextlib.suppress(OSError):  # the test that would read it may be over
            say("guardian lost")
        if connection is not None:
            os.kill(os.getpid(), signal.SIGKILL)  # as `jobq worker` does, once what was left is killed

    async with GuardianSpawner(connection, on_guardian_lost=on_guardian_lost) as spawner:
        pairs = list(zip(sys.argv[1::2], sys.argv[2::2], strict=True))
        launches = [
            Launch(argv=hostile(*pair), env={"PATH": os.environ["PATH"]}, stdout=null, stderr=null) for pair in pairs
        ]
        processes = [await spawner.spawn(launch) for launch in launches]

        def shorten() -> None:
            deadline = SystemClock().boottime() + 0.3
            for process in processes:
                process.extend(deadline)
            say(f"deadline {deadline}")

        def block() -> None:
            say("blocked")
            time.sleep(1000)

        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, shorten)
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR2, block)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, OBEYED)
        say(
            f"ready {os.getppid() if connection else spawner._child.pid if spawner._child else 0} "
            + " ".join(str(p.pid) for p in processes)
        )
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
