"""As whom tasks run: another user than the worker's, or one of a range, which a slot has to itself (A6, A11)."""

import fcntl
import os
import pwd
import threading
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from jobq.errors import ConfigurationError
from jobq.files.rights_of import is_possible
from jobq.settings import Settings

# Of capabilities(7): to become another user, to give files away and read what comes back, and to kill.
_NEEDED: Final = {"CAP_CHOWN": 0, "CAP_DAC_OVERRIDE": 1, "CAP_KILL": 5, "CAP_SETGID": 6, "CAP_SETUID": 7}
_MOST_UID: Final = 2**32 - 4
_MOST_USED: Final = 4096  # of a range
_TAKEN: Final = Path("/run/jobq-task-users")  # in which each worker locks the bytes of its own range
_WHOSE: Final = ("HOME", "USER", "LOGNAME", "SHELL", "MAIL")


@dataclass(frozen=True)
class TaskUser:
    """A user as whom a task runs.

    Attributes:
        uid, gid: its numbers.
        is_alone: nobody else runs as this user: what does when an attempt begins or ends is killed.
        variables: where it lives, and how it is called.
    """

    uid: int
    gid: int
    is_alone: bool
    variables: Mapping[str, str]

    def environment(self, base: Mapping[str, str]) -> dict[str, str]:
        """Return the worker's variables as this user's."""
        return {name: value for name, value in base.items() if name not in _WHOSE} | dict(self.variables)


class TaskUsers:
    """Those of a program: its workers and what it pulls itself share them, from whatever threads.

    Args:
        users: one, or a range of which each attempt has one to itself; none = tasks run as the worker's own user.
    """

    def __init__(self, users: Iterable[TaskUser] = ()) -> None:
        self._free = deque(users)

    def take(self) -> TaskUser | None:
        """Return whom an attempt runs as; None = there is none, or none is free."""
        with suppress(IndexError):
            return self._free.popleft() if self._free[0].is_alone else self._free[0]
        return None

    def give_back(self, user: TaskUser) -> None:
        """Let others run as this user: nothing of the attempt lives any more."""
        if user.is_alone:
            self._free.append(user)


_ranges: Final[dict[range, TaskUsers]] = {}  # that this program has taken
_opening: Final = threading.Lock()


def _forget_ranges() -> None:
    """The locks stay the parent's (fcntl_locking(2)): a child that was forked has taken none."""
    _ranges.clear()
    _opening.release()


os.register_at_fork(before=_opening.acquire, after_in_parent=_opening.release, after_in_child=_forget_ranges)


def users_of(settings: Settings) -> TaskUsers:
    """Return the users that JOBQ_TASK_USER names.

    Raises:
        ConfigurationError: there is no such user, it cannot be kept apart, or this process has not the right to.
    """
    text = settings.task_user
    if text is None:
        return TaskUsers()
    first, _, last = text.partition("-")
    numbers = range(int(first), int(last) + 1) if first.isdecimal() and last.isdecimal() else None
    _check(settings, numbers)
    if numbers is None:
        return TaskUsers([_named(text)])
    with _opening:
        if (known := _ranges.get(numbers)) is None:
            if any(each.start < numbers.stop and numbers.start < each.stop for each in _ranges):
                raise _shared(text)  # a lock of this process is none against itself (fcntl_locking(2))
            users = [_numbered(uid) for uid in numbers[:_MOST_USED]]
            _lock(text, numbers)
            known = _ranges[numbers] = TaskUsers(users)
    return known


def _numbered(uid: int) -> TaskUser:
    with suppress(KeyError):
        name = pwd.getpwuid(uid).pw_name
        raise ConfigurationError(
            f"JOBQ_TASK_USER: user {uid} is {name!r}; a range is of numbers that are nobody's, for whatever runs as one"
            " of them is killed"
        )
    return TaskUser(uid, uid, is_alone=True, variables={"HOME": "/"})


def _named(text: str) -> TaskUser:
    try:
        found = pwd.getpwuid(int(text)) if text.isdecimal() else pwd.getpwnam(text)
    except (KeyError, OverflowError):
        if not text.isdecimal() or not 0 < int(text) <= _MOST_UID:
            raise ConfigurationError(f"JOBQ_TASK_USER: there is no user {text!r} on this machine") from None
        return TaskUser(int(text), int(text), is_alone=False, variables={"HOME": "/"})
    if found.pw_uid == 0:
        raise ConfigurationError(f"JOBQ_TASK_USER={text} is root, as the worker is: it is to be another user")
    variables = {"HOME": found.pw_dir, "USER": found.pw_name, "LOGNAME": found.pw_name, "SHELL": found.pw_shell}
    return TaskUser(found.pw_uid, found.pw_gid, is_alone=False, variables=variables)


def _check(settings: Settings, numbers: range | None) -> None:
    """Raise ConfigurationError for what does not go together, and where this process lacks a right."""
    if settings.guardian == "off" or not hasattr(os, "pidfd_open"):
        raise ConfigurationError("JOBQ_TASK_USER needs the guardian, which starts tasks as another user and kills them")
    if settings.checkpoint_store is not None and not is_possible():
        raise ConfigurationError(
            "JOBQ_TASK_USER and JOBQ_CHECKPOINT_STORE do not go together on this machine: the worker would read"
            " with its own rights what another user has put into the folder"
        )
    if os.geteuid() != 0 or (missing := _missing_rights()):
        lacks = f"lacks {', '.join(missing)}" if os.geteuid() == 0 else "is not root's"
        raise ConfigurationError(
            f"this process may not run tasks as another user, for it {lacks}: start the worker as root, or leave out"
            " --task-user (JOBQ_TASK_USER)"
        )
    if numbers is None:
        return
    from jobq.run.process.kernel import NOBODYS  # noqa: PLC0415 - Linux alone has what it imports

    if not _is_mapped(NOBODYS):
        raise ConfigurationError(
            f"JOBQ_TASK_USER={settings.task_user}: this container has a user namespace without the number {NOBODYS}, as"
            " which tasks of a range are killed; name one user, or one for each container"
        )
    if not numbers or numbers[0] == 0 or numbers[-1] > _MOST_UID:
        raise ConfigurationError(f"JOBQ_TASK_USER={settings.task_user} is no range of users; 2000-2063 is one")
    if len(numbers) < settings.num_workers:
        raise ConfigurationError(
            f"JOBQ_TASK_USER={settings.task_user} has {len(numbers)} users for {settings.num_workers} slots; each slot"
            " needs one of its own"
        )


def _missing_rights() -> list[str]:
    from jobq.run.process.kernel import capabilities  # noqa: PLC0415 - Linux alone has what it imports

    effective = capabilities()
    return [name for name, bit in _NEEDED.items() if not effective >> bit & 1]


def _is_mapped(uid: int) -> bool:
    """Return whether a number stands for a user here (user_namespaces(7))."""
    lines = (tuple(map(int, line.split())) for line in Path("/proc/self/uid_map").read_text().splitlines())
    return any(first <= uid < first + count for first, _, count in lines)


def _lock(text: str, numbers: range) -> None:
    """Take a range for as long as this process lives: two workers that share a user would kill each other's tasks.

    Where /run cannot be written to, nobody sees that.
    """
    try:
        taken = _opened()
    except OSError:
        return
    try:
        fcntl.lockf(taken, fcntl.LOCK_EX | fcntl.LOCK_NB, len(numbers), numbers[0])
    except OSError:
        raise _shared(text) from None


@cache
def _opened() -> int:
    """Return the descriptor of the file, which stays open: to close any of it gives back all that is locked here."""
    return os.open(_TAKEN, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def _shared(text: str) -> ConfigurationError:
    return ConfigurationError(
        f"JOBQ_TASK_USER={text}: another worker of this machine has some of these users; give each its own range"
    )
