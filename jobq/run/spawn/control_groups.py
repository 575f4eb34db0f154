"""Where this process is among the control groups (cgroups(7), v2), and which groups a jobq has made."""

import errno
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

PREFIX: Final = "jobq-"
_LIMITS: Final = ("memory.max", "memory.high", "cpu.max")
_SHORT: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
_OCTAL: Final = re.compile(r"\\([0-7]{3})")


class NoControlGroup(Exception):
    """This process can have no control group of its own; says why not."""


def own_group(proc: Path = Path("/proc")) -> Path:
    """Return the folder of the control group that this process is in, where it may make another one below.

    Args:
        proc: where the proc file system is.

    Raises:
        NoControlGroup: there is none, or it may not.
    """
    try:
        lines = (proc / "self/cgroup").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError as error:
        raise NoControlGroup(f"no control groups: {error.strerror}") from None
    named = [line.removeprefix("0::") for line in lines if line.startswith("0::")]
    if not named:
        raise NoControlGroup("no control groups of version 2 on this machine")
    me = str(os.getpid())
    for folder in _folders_of(named[0], proc):
        try:
            if me in (folder / "cgroup.procs").read_text(encoding="ascii").split():
                _check(folder)
                return folder
        except OSError:  # threaded (EOPNOTSUPP), hidden, or another mount's
            continue
    raise NoControlGroup(f"the control group of this process ({named[0]}) is not mounted here, or is threaded")


def what_tasks_would_notice(group: Path) -> str:
    """Return what programs that look into their own group would miss in one below; nothing when all is alike."""
    for name in _LIMITS:
        if _content(group / name).partition(" ")[0] not in ("max", ""):
            return f"programs look for their limits in {group} ({name})"
    if _content(group / "cgroup.subtree_control"):
        return f"{group} divides its resources among the groups below"
    return ""


def made_by_jobq(proc: Path = Path("/proc")) -> Iterator[Path]:
    """Yield the folders of this user's groups that a jobq has made, outer ones first."""
    for _, mount in _mounts(proc):
        for folder, below, _ in os.walk(mount, onerror=raise_if_short):
            for name in below:
                if name.startswith(PREFIX) and _is_ours(path := Path(folder, name)):
                    yield path


def raise_if_short(error: OSError) -> None:
    """Raise an error that says that this process is short of something: it does not mean that a thing is not there."""
    if error.errno in _SHORT:
        raise error


def members(group: Path) -> set[str]:
    """Return the numbers of the processes in a group and below; none if it is gone."""
    files = [Path(folder, "cgroup.procs") for folder, _, _ in os.walk(group)]
    return {number for file in files for number in _content(file).split()}


def _check(group: Path) -> None:
    if _content(group / "cgroup.type") not in ("domain", ""):  # the root has none
        raise NoControlGroup(f"the control group {group} is threaded")
    if not (os.access(group, os.W_OK | os.X_OK) and os.access(group / "cgroup.procs", os.W_OK)):
        raise NoControlGroup(f"no right to make a control group in {group}")


def _folders_of(group: str, proc: Path) -> Iterator[Path]:
    for root, mount in _mounts(proc):
        if group == root or group.startswith(root.rstrip("/") + "/"):
            yield mount / group[len(root.rstrip("/")) :].lstrip("/")


def _mounts(proc: Path) -> Iterator[tuple[str, Path]]:
    """Yield what each mount of version 2 shows, as a path among the groups, and where it is."""
    try:
        lines = (proc / "self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError as error:
        raise_if_short(error)
        return
    for line in lines:
        ours, _, theirs = line.partition(" - ")
        if theirs.startswith("cgroup2 "):
            root, mount = (_OCTAL.sub(lambda found: chr(int(found[1], 8)), word) for word in ours.split()[3:5])
            yield root, Path(mount)


def _is_ours(path: Path) -> bool:
    try:
        return path.stat().st_uid == os.geteuid()
    except OSError as error:  # it is gone
        raise_if_short(error)
        return False


def _content(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii").strip()
    except OSError:
        return ""
