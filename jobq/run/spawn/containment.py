"""What holds a worker's tasks together for the kernel, so that all of them can be killed at once (DESIGN section 6).

A control group (cgroups(7), v2) is made where that is allowed and where no task would notice. Its name says who made
it, in a form that no later process can have: whoever finds one of a dead maker kills what is in it, and removes it.
"""

import os
from pathlib import Path
from typing import Final, Literal, NamedTuple

from jobq.errors import ConfigurationError
from jobq.run.guardian.control_group import ControlGroup
from jobq.run.spawn.control_groups import PREFIX, NoControlGroup, own_group, what_tasks_would_notice
from jobq.run.spawn.dead_workers import new_worker_id

Asked = Literal["auto", "cgroup", "off"]  # JOBQ_CONTAINMENT
CGROUP: Final = "cgroup"
NONE: Final = "off"
UNGUARDED: Final = "tasks run without the guardian"
_TRIAL_SECONDS: Final = 1.0  # for one that is empty to be gone
_ADVICE: Final = (
    "run the worker in a control group that is its own, such as a systemd service with Delegate=yes or"
    " `systemd-run --user --scope -p Delegate=yes`, or set JOBQ_CONTAINMENT=auto"
)


class InUse(NamedTuple):
    """What is in use.

    Attributes:
        kind: "cgroup", or "off" for nothing.
        why: why it is no more than that, or where the group is.
    """

    kind: str
    why: str


def new_group(asked: Asked) -> str:
    """Return the path of a group that is still to be made; the death of this process will be that of its members.

    Args:
        asked: the setting.

    Returns:
        Nothing where there is to be none.

    Raises:
        ConfigurationError: one was asked for and cannot be had.
    """
    try:
        return _path_for(asked)
    except NoControlGroup as error:
        if asked == CGROUP:
            raise refused(str(error)) from None
        return ""


def refused(why: str) -> ConfigurationError:
    """Return the error for who asked for a control group that cannot be had."""
    return ConfigurationError(f"JOBQ_CONTAINMENT={CGROUP} cannot be kept: {why}; {_ADVICE}")


def try_here(asked: Asked, *, is_guarded: bool) -> InUse:
    """Return what a worker that is started here would use, by trying it.

    Args:
        asked: the setting.
        is_guarded: whether it would be below a guardian.
    """
    if asked == NONE:
        return InUse(NONE, "JOBQ_CONTAINMENT=off")
    if not is_guarded:
        return InUse(NONE, UNGUARDED)
    try:
        path = _path_for(asked)
    except NoControlGroup as error:
        return InUse(NONE, str(error))
    seen, told = os.pipe()
    with os.fdopen(seen, "rb") as answer:
        group = ControlGroup(path)
        if (trial := os.fork()) == 0:
            group.enter()
            os.write(told, group.why.encode("utf-8", "surrogateescape"))
            os._exit(0)
        os.close(told)
        why = answer.read().decode("utf-8", "surrogateescape")
        os.waitpid(trial, 0)
    group.end(_TRIAL_SECONDS)
    return InUse(NONE, why) if why else InUse(CGROUP, f"below {Path(path).parent}")


def _path_for(asked: Asked) -> str:
    if asked == NONE:
        return ""
    group = own_group()
    if asked != CGROUP and (notice := what_tasks_would_notice(group)):
        raise NoControlGroup(notice)
    return str(group / f"{PREFIX}{new_worker_id(os.getpid())}")
