"""A worker for tests with a zygote: `warm_program.py MARK KIND[:MARKER] ...` calls these trees as tasks and waits.

SIGUSR1: move every deadline to 0.3 s from now, answered by a line.
"""

import asyncio
import contextlib
import os
import signal
import sys

from jobq.clock import SystemClock
from jobq.run.process import OBEYED
from jobq.run.process.spawner import Launch
from jobq.run.spawn.guardian_spawner import GuardianSpawner, inherited_connection
from tests.guardian.worker_program import say
from tests.guardian.zygote.warming import MODULE, argv_of, environment


async def main() -> None:
    null = os.open("/dev/null", os.O_WRONLY)
    connection = inherited_connection()

    def on_guardian_lost() -> None:
        with contextlib.suppress(OSError):  # the test that would read it may be over
            say("guardian lost")
        if connection is not None:
            os.kill(os.getpid(), signal.SIGKILL)

    mark, *trees = sys.argv[1:]
    stop = {"STOP_AT": os.environ["STOP_AT"]} if "STOP_AT" in os.environ else {}
    async with GuardianSpawner(connection, on_guardian_lost=on_guardian_lost) as spawner:
        await spawner.preload([MODULE], environment(MARK=mark, **stop))
        say(f"ready {os.getppid() if connection else spawner._child.pid if spawner._child else 0}")
        env = environment(MARK=mark)
        launches = [
            Launch(
                argv=argv_of("tree", kind=kind, mark=marker), env=env, stdout=null, stderr=null, cwd="/", forked=True
            )
            for kind, _, marker in (tree.partition(":") for tree in trees)
        ]
        spawned = await asyncio.gather(*(spawner.spawn(launch) for launch in launches), return_exceptions=True)
        processes = [process for process in spawned if not isinstance(process, BaseException)]

        def shorten() -> None:
            deadline = SystemClock().boottime() + 0.3
            for process in processes:
                process.extend(deadline)
            say(f"deadline {deadline}")

        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, shorten)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, OBEYED)
        say("started " + " ".join(str(process.pid) for process in processes))
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
