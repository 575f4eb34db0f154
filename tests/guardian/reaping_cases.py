"""What the guardian kills, and in which order: `python -m tests.guardian.reaping_cases NAME` tries one case.

Each is a process of its own, since it reaps whatever falls to it. Children, groups and signals are real; where a case
is about what the kernel shows late, or refuses, the one function that asks it is replaced.
"""

import os
import select
import signal
import sys
from collections.abc import Callable
from typing import Any, Final

from jobq.run.guardian import tasks
from jobq.run.guardian.task_process import TaskProcess
from jobq.run.guardian.tasks import Tasks
from jobq.run.process import kernel

_SECONDS: Final = 2.0


def newest_first() -> None:
    """One that forks and ends again and again is caught only as its newest self."""
    children = [_child(signal.pause) for _ in range(4)]
    killed: list[int] = []
    really = kernel.kill_stray

    def kill(pid: int, groups: set[int], spared: tuple[int | None, ...], system: Any = os) -> None:
        killed.append(pid)
        really(pid, groups, spared, system)

    kernel.kill_stray = kill
    Tasks(None).reap()
    assert killed == children[::-1], (killed, children)


def group_before_reap() -> None:
    """What a leader's group holds dies by it, also what the kernel does not list as our child yet."""
    told, tell = os.pipe()

    def lead() -> None:
        os.setpgid(0, 0)
        os.write(tell, b"%d" % _child(signal.pause))

    guarded = Tasks(None)
    leader = _expected(guarded, lead)
    left = os.pidfd_open(int(os.read(told, 16)))
    _await_zombie(leader.pid)
    kernel.children = list
    guarded.reap()
    assert _is_dead(left)


def group_of_a_stray() -> None:
    """What shares a stray's group dies with it, before it can fork on."""
    told, tell = os.pipe()

    def stray() -> None:
        os.setsid()
        os.write(tell, b"%d" % _child(signal.pause))
        signal.pause()

    pid = _child(stray)
    neighbour = os.pidfd_open(int(os.read(told, 16)))
    kernel.children = lambda: [pid]
    Tasks(None).reap()
    assert _is_dead(neighbour)


def strays_of_a_neighbour() -> None:
    """A task waits for no stray that was there while its own tree was still below it, and is not blamed for it."""
    _child(signal.pause)
    kernel.kill_stray = _refused
    guarded = Tasks(None)
    guarded.reap()
    leader = _expected(guarded, lambda: None)
    _await_zombie(leader.pid)
    guarded.reap()
    assert guarded.finished(all_reaped=True) == [leader]
    assert leader.ended is not None
    assert leader.ended["survivors"] == 0


def hopeless_until_reaped() -> None:
    """What was waited for in vain is forgotten once it is reaped: its number may come back as another's."""
    guarded = Tasks(None)
    leader = _expected(guarded, lambda: None)
    _await_zombie(leader.pid)
    stray = _child(signal.pause)
    kernel.kill_stray = _refused
    guarded.reap()
    tasks.SWEEP_SECONDS = 0.0
    leader.sweep_until = 0.0
    assert guarded.finished(all_reaped=True) == [leader]
    assert leader.ended is not None
    assert leader.ended["survivors"] == 1
    assert guarded._hopeless.keys() == {stray}
    os.kill(stray, signal.SIGKILL)
    _await_zombie(stray)
    guarded.reap()
    assert not guarded._hopeless


def _child(program: Callable[[], object]) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            program()
        finally:
            os._exit(0)
    return pid


def _expected(guarded: Tasks, program: Callable[[], object], number: int = 1) -> TaskProcess:
    guarded._system.fork_task = lambda *_: (_child(program), -1)  # type: ignore[method-assign] # runs ours
    return guarded.spawn({"id": number, "deadline": None}, -1, -1)


def _await_zombie(pid: int) -> None:
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


def _is_dead(pidfd: int) -> bool:
    return bool(select.select([pidfd], [], [], _SECONDS)[0])


def _refused(pid: int, groups: set[int], spared: tuple[int | None, ...], system: Any = os) -> None:
    """Kill nothing: it has become another user's."""


CASES: Final = {
    case.__name__: case
    for case in (
        newest_first,
        group_before_reap,
        group_of_a_stray,
        strays_of_a_neighbour,
        hopeless_until_reaped,
    )
}

if __name__ == "__main__":
    kernel.become_subreaper()
    listed = kernel.children
    try:
        CASES[sys.argv[1]]()
    finally:
        for child in listed():
            os.kill(child, signal.SIGKILL)
