"""What holds a worker's tasks together for the kernel, so that all of them can be killed at once (architecture 6).

A control group (cgroups(7), v2) is made where that is allowed and where no task would notice. Its name says who made
it, in a form that no later process can have: any that finds one of a dead maker kills what is in it, and removes it.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final, Literal, NamedTuple

from jobq.errors import ConfigurationError
from jobq.run.guardian.control_group import ControlGroup
from jobq.run.spawn.control_groups import PREFIX, NoControlGroup, own_group, what_tasks_would_notice
from jobq.run.spawn.dead_workers import new_id

Asked = Literal["auto", "cgroup", "off"]  # JOBQ_CONTAINMENT
CGROUP: Final = "cgroup"
NONE: Final = "off"
UNGUARDED: Final = "tasks run without the guardian"
_TRIAL_SECONDS: Final = 1.0  # for one that is empty to be gone


class ContainmentInUse(NamedTuple):
    """What is in use.

    Attributes:
        kind: "cgroup", or "off" for nothing.
        why: why it is no more than that, or where the group is.
    """

    kind: str
    why: str


def guardian_options(asked: Asked) -> list[str]:
    """Return the guardian's options that say what it is to make; the death of this process ends what is in a group.

    Args:
        asked: the setting.

    Raises:
        ConfigurationError: a control group was asked for and cannot be had.
    """
    try:
        path = _path_for(asked)
    except NoControlGroup as error:
        check(asked, ContainmentInUse(NONE, str(error)))
        return []
    return ["--group", path] if path else []


def check(asked: Asked, found: ContainmentInUse) -> None:
    """Raise ConfigurationError when a control group was asked for and none is in use."""
    if asked == CGROUP != found.kind:
        why = found.why or "its guardian was started without"
        raise ConfigurationError(
            f"JOBQ_CONTAINMENT=cgroup cannot be kept: {why}; run the worker in a control group that is its own, such as"
            " a systemd service with Delegate=yes, or set JOBQ_CONTAINMENT=auto"
        )


def try_here(asked: Asked, *, is_guarded: bool) -> ContainmentInUse:
    """Return what a worker that is started here would use, by trying it.

    Args:
        asked: the setting.
        is_guarded: whether it would be below a guardian.
    """
    if asked == NONE:
        return ContainmentInUse(NONE, "JOBQ_CONTAINMENT=off")
    if not is_guarded:
        return ContainmentInUse(NONE, UNGUARDED)
    try:
        path = _path_for(asked)
    except NoControlGroup as error:
        return ContainmentInUse(NONE, str(error))
    group = ControlGroup(path)

    def enter() -> str:
        group.enter()
        return group.why

    why = _in_a_child(enter)
    group.end(_TRIAL_SECONDS)
    return ContainmentInUse(NONE, why) if why else ContainmentInUse(CGROUP, f"below {Path(path).parent}")


def _path_for(asked: Asked) -> str:
    if asked == NONE:
        return ""
    group = own_group()
    if asked != CGROUP and (notice := what_tasks_would_notice(group)):
        raise NoControlGroup(notice)
    return str(group / f"{PREFIX}{new_id(os.getpid())}")


def _in_a_child(work: Callable[[], str]) -> str:
    seen, written = os.pipe()
    with os.fdopen(seen, "rb") as answer:
        if (trial := os.fork()) == 0:
            os.write(written, work().encode("utf-8", "surrogateescape"))
            os._exit(0)
        os.close(written)
        said = answer.read().decode("utf-8", "surrogateescape")
        os.waitpid(trial, 0)
    return said
