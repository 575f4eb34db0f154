"""Who starts the tasks: a guardian wherever there is one (architecture 6), and how `jobq worker` gets below it."""

import logging
import os
import resource
import signal
import sys
from collections.abc import Sequence
from typing import Final

from jobq.clock import Clock
from jobq.errors import ConfigurationError
from jobq.run.process import OUR_PYTHON
from jobq.run.process.environment import start_environment
from jobq.run.process.spawner import Spawner
from jobq.run.process.task_folder import remove_held
from jobq.run.spawn import launchers
from jobq.run.spawn.asyncio_spawner import AsyncioSpawner
from jobq.run.spawn.containment import NONE, UNGUARDED, ContainmentInUse, check, guardian_options
from jobq.run.spawn.guardian_spawner import FD_VARIABLE, GuardianSpawner, inherited_connection
from jobq.run.spawn.launch import launch
from jobq.run.stopping import GIVE_BACK_SECONDS
from jobq.settings import Settings

_log: Final = logging.getLogger(__name__)
_WEAKER: Final = (
    "tasks run without the guardian: they outlive a worker that is killed, stopped or blocked, and processes that leave"
    " their group outlive the task"
)


def is_possible() -> bool:
    """Return whether this system can have a guardian: Linux 5.3 or newer."""
    return sys.platform == "linux" and hasattr(os, "pidfd_open")


def spawner_for(settings: Settings) -> Spawner:
    """Return the spawner of this process: through the guardian that is its parent, one of its own, or none."""
    if sys.platform == "linux":  # what signs in to the queue is in our memory, and no task's to read (A6)
        from jobq.run.process.kernel import hide_from_same_user  # noqa: PLC0415 - Linux alone has what it imports

        hide_from_same_user()
    if settings.guardian_fd is not None and (connection := inherited_connection()) is not None:
        _allow_descriptors()
        return GuardianSpawner(connection, on_guardian_lost=_follow, contained=settings.containment)
    if settings.guardian == "on" and is_possible():
        _check_proc()
        return GuardianSpawner(contained=settings.containment, launcher=settings.launcher)
    check(settings.containment, ContainmentInUse(NONE, UNGUARDED))
    _log.warning(_WEAKER)
    return AsyncioSpawner()


def below_guardian(arguments: Sequence[str], settings: Settings) -> Settings:
    """Go on as the worker below a guardian, where there can be one and is none yet; the watcher keeps this pid.

    Args:
        arguments: of `jobq`, as they were given.
        settings: how often a worker that dies by a signal is started again, and how long one may take to stop.

    Returns:
        What the worker goes by.

    Raises:
        ConfigurationError: there is no guardian to be had, or no control group, and one was asked for; or /proc shows
            another PID namespace.
    """
    if settings.guardian == "off" or settings.guardian_fd is not None or not is_possible():
        return settings
    _check_proc()
    options = [
        *launchers.guardian_options(settings.launcher),
        *("--restart", str(settings.restart)),
        *("--stop-within", str(settings.stop_grace.total_seconds() + GIVE_BACK_SECONDS)),
    ]
    group = guardian_options(settings.containment)
    try:
        command = [sys.executable, *OUR_PYTHON, "jobq", *arguments]
        shown = start_environment(os.environ, settings.task_env)
        descriptor = launch([*group, *options, "--", *command], group, shown).detach()
    except OSError as error:  # this machine is short of processes or memory
        raise ConfigurationError(f"the guardian could not be started: {error}") from error
    os.environ[FD_VARIABLE] = str(descriptor)
    return settings.copied({"guardian_fd": descriptor})


def _check_proc() -> None:
    """Raise ConfigurationError unless /proc numbers processes as the kernel does for us: others would be signalled."""
    try:
        shown = os.readlink("/proc/self")  # noqa: PTH115 - a number, no path
    except OSError:
        shown = ""
    if shown != str(os.getpid()):
        raise ConfigurationError(
            "/proc is not that of this PID namespace, so the guardian cannot know what is its own; mount it"
            " (`unshare --mount-proc`), or set JOBQ_GUARDIAN=off"
        )


def _allow_descriptors() -> None:
    """Raise the soft limit of open files to the hard one, for many slots; tasks inherit the guardian's limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _follow() -> None:
    """The guardian was killed and its tasks with it: a worker without one would break the promise (P2)."""
    remove_held()  # the guardian would have done it (P5)
    os.kill(os.getpid(), signal.SIGKILL)


def keep_clock(spawner: Spawner, clock: Clock) -> None:
    """Have what keeps the deadlines of tasks keep them by the clock of their leases."""
    if getattr(clock, "is_stores", False) and (keep := getattr(spawner, "keep_stores_clock", None)) is not None:
        keep()
