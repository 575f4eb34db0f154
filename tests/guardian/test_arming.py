"""Nothing is ever alive unarmed, and nothing is shown that is not to be seen (P2; A6)."""

import os
import select
import signal
import sys

import pytest

from tests.guardian.stage import (
    Program,
    children,
    gone,
    guardian,
    hostile,
    living,
    marker,
    state,
    until,
)

# The guardian, whose forked children stop at a given point between fork and exec.
STOPS_AT = """
import os, runpy, signal, sys
point, sys.argv[1:] = sys.argv[1], sys.argv[2:]
real, guardian = getattr(os, point), os.getpid()
def forked_a_task():
    import traceback
    return any(frame.name == "become" for frame in traceback.extract_stack())
def stops(*arguments):
    if os.getpid() != guardian and forked_a_task():
        os.kill(os.getpid(), signal.SIGSTOP)
    return real(*arguments)
setattr(os, point, stops)
sys.argv[0] = "guardian"
runpy.run_module("jobq.run.guardian", run_name="__main__", alter_sys=True)
"""


@pytest.mark.parametrize("point", ["setsid", "getppid", "dup2", "chdir"])
def test_p2_nothing_is_alive_unarmed_when_the_guardian_dies_between_fork_and_exec(point: str) -> None:
    mark = marker()
    code = (
        "import asyncio, os\n"
        "from jobq.run.spawn.guardian_spawner import *\n"
        "from jobq.run.process.spawner import Launch\n"
        "async def main():\n"
        "    async with GuardianSpawner(inherited_connection()) as spawner:\n"
        f"        launch = Launch(argv={hostile('idle', mark)!r}, env=dict(os.environ), stdout=2, stderr=2, cwd='/')\n"
        "        os.write(1, b'asking\\n')\n"
        "        await spawner.spawn(launch)\n"
        "asyncio.run(main())\n"
    )
    command = [sys.executable, "-P", "-c", STOPS_AT, point, "--restart", "0", "--", sys.executable, "-c", code]
    with Program(*command) as program:
        assert program.line() == "asking"
        until(lambda: any(state(pid) == "T" for pid in children(program.pid)))
        child = next(pid for pid in children(program.pid) if state(pid) == "T")
        pidfd = os.pidfd_open(child)
        program.signal(signal.SIGKILL)
        program.wait()
        if state(child) == "T":  # not armed yet: it looks at its parent as soon as it goes on
            signal.pidfd_send_signal(pidfd, signal.SIGCONT)
        assert select.select([pidfd], [], [], 1)[0]
        os.close(pidfd)
    assert living(mark) == []


def test_p2_nothing_is_alive_unarmed_after_a_storm_of_starts() -> None:
    mark = marker()
    code = (
        "import asyncio, os\n"
        "from jobq.run.spawn.guardian_spawner import *\n"
        "from jobq.run.process.spawner import Launch\n"
        "async def main():\n"
        "    async with GuardianSpawner(inherited_connection()) as spawner:\n"
        f"        launch = Launch(argv={hostile('idle', mark)!r}, env=dict(os.environ), stdout=2, stderr=2)\n"
        "        os.write(1, b'asking\\n')\n"
        "        await asyncio.gather(*(spawner.spawn(launch) for _ in range(500)))\n"
        "asyncio.run(main())\n"
    )
    for _ in range(3):
        with guardian(sys.executable, "-c", code) as program:
            assert program.line() == "asking"
            until(lambda: len(living(mark)) > 3)
            program.signal(signal.SIGKILL)
            program.wait()
            assert gone([mark]) == {}


@pytest.mark.skipif(os.getuid() != 0, reason="drops privileges to be a user that may not read everything")
def test_a6_its_environment_is_hidden_and_it_works_without_privileges() -> None:
    # Forked, not executed: that user may not be able to read this Python. PR_SET_DUMPABLE (4): setuid has cleared it,
    # and it must be the guardian that does.
    code = (
        "import asyncio, ctypes, os, socket\n"
        "from jobq.run.guardian.__main__ import main as guard\n"
        "from jobq.run.spawn.guardian_spawner import GuardianSpawner\n"
        "from jobq.run.process.spawner import Launch\n"
        "import concurrent.futures.thread, encodings.ascii\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)\n"
        "ours, theirs = socket.socketpair()\n"
        "guardian = os.fork()\n"
        "if guardian == 0:\n"
        "    ours.close()\n"
        "    os._exit(guard(['--attached', str(theirs.detach())]))\n"
        "theirs.close()\n"
        "open('/proc/self/environ').read()\n"
        "async def main():\n"
        "    async with GuardianSpawner(ours) as spawner:\n"
        "        try:\n"
        "            open(f'/proc/{guardian}/environ').read()\n"
        "        except PermissionError:\n"
        "            print('hidden')\n"
        "        null = os.open('/dev/null', os.O_RDWR)\n"
        "        argv = ('/bin/sh', '-c', 'sleep 1000 & setsid -f sleep 1000; exit 3')\n"
        "        launch = Launch(argv=argv, env=dict(PATH=os.environ['PATH']), stdout=null, stderr=null)\n"
        "        status = await (await spawner.spawn(launch)).wait()\n"
        "        children = open(f'/proc/{guardian}/task/{guardian}/children').read()\n"
        "        print(status.exit_code, repr(children))\n"
        "asyncio.run(main())\n"
        "print(os.waitpid(guardian, 0)[1])\n"
    )
    with Program(sys.executable, "-c", code, cwd="/") as program:
        assert program.rest() == "hidden\n3 ''\n0\n"
        assert program.wait() == 0


def test_p2_a_forked_child_of_the_worker_that_holds_the_connection_does_not_keep_tasks_alive() -> None:
    mark = marker()
    code = (
        "import asyncio, os, time\n"
        "from jobq.run.spawn.guardian_spawner import GuardianSpawner\n"
        "from jobq.run.process.spawner import Launch\n"
        f"mark, argv = {mark!r}, {hostile('idle', mark)!r}\n"
        "async def main():\n"
        "    async with GuardianSpawner() as spawner:\n"
        "        await spawner.spawn(Launch(argv=argv, env=dict(os.environ), stdout=2, stderr=2))\n"
        "        child = os.fork()\n"
        "        if child == 0: time.sleep(1000)\n"
        "        os.write(1, f'{child}\\n'.encode())\n"
        "        await asyncio.Event().wait()\n"
        "asyncio.run(main())\n"
    )
    with Program(sys.executable, "-c", code) as program:
        child = os.pidfd_open(int(program.line()))
        try:
            until(lambda: len(living(mark)) == 1)
            program.signal(signal.SIGKILL)
            assert gone([mark]) == {}
        finally:
            signal.pidfd_send_signal(child, signal.SIGKILL)
            os.close(child)
