"""What a worker left alive that died with its watcher and its guardian: the next worker's start ends it.

The id that a worker gives to its tasks says who guards them, in a form that no later process can have: so a task whose
guardian is dead is known by its environment alone, without a file that may be missing or stale. What is not surely of
this user, this boot of this machine and this PID namespace is left alone; so is what another service has adopted.
"""

import hashlib
import os
import secrets
from pathlib import Path
from typing import Final, NamedTuple

from jobq.run.guardian.control_group import ControlGroup
from jobq.run.spawn.control_groups import PREFIX, made_by_jobq, members
from jobq.run.spawn.survivors import WORKER_ID_VARIABLE, kill_all_of

_MARK: Final = f"{WORKER_ID_VARIABLE}=".encode("ascii")
_GROUP_SECONDS: Final = 1.0  # for what was killed to be gone
_STATE, _PARENT, _STARTED = 0, 1, 19  # among what follows the name in /proc/PID/stat (proc(5))


class _Seen(NamedTuple):
    parent: int
    worker_id: str


def new_worker_id(guardian: int) -> str:
    """Return an id for the tasks of a worker: random, and with the place, the number and the start of its guardian.

    Raises:
        OSError: the guardian is gone.
    """
    return f"{secrets.token_hex(16)}-{_where()}-{guardian}-{_stat(guardian)[_STARTED]}"


def kill_what_dead_workers_left() -> int:
    """Kill what dead workers left: in control groups of theirs, and what else carries their ids; return how many.

    By its id in the environment only what fell to init or to one of our ancestors is known: another service may have
    adopted the rest.
    """
    return _end_groups() + _kill_carriers()


def _end_groups() -> int:
    """Kill what is in the groups whose makers are dead, and remove them; not those that this process is in."""
    killed = 0
    for group in made_by_jobq():
        if _is_dead(group.name.removeprefix(PREFIX)) and str(os.getpid()) not in members(group):
            killed += len(members(group))
            ControlGroup(str(group)).end(_GROUP_SECONDS)
    return killed


def _kill_carriers() -> int:
    seen = {number: found for number in _numbers() if (found := _seen(number)) is not None}
    ours = _ancestors()
    own_ids = {seen[number].worker_id for number in ours if number in seen}  # we may be a task ourselves
    left = set[str]()
    for number, (_, worker_id) in seen.items():
        if worker_id not in own_ids and _adopter(number, seen) in ours and _is_dead(worker_id):
            left.add(worker_id)
    return sum(kill_all_of(worker_id) for worker_id in left)


def _adopter(number: int, seen: dict[int, _Seen]) -> int:
    """Return the first process above this one that does not carry the same id."""
    worker_id = seen[number].worker_id
    while number in seen and seen[number].worker_id == worker_id:
        number = seen[number].parent
    return number


def _is_dead(worker_id: str) -> bool:
    _, where, guardian, started = (*worker_id.split("-"), "", "", "")[:4]
    if where != _where() or not guardian.isdecimal():
        return False
    try:
        found = _stat(int(guardian))
        return found[_STATE] in "ZX" or found[_STARTED] != started
    except OSError:
        return True


def _where() -> str:
    """Return what tells this boot of this machine and this PID namespace from others: numbers mean nothing there."""
    parts = [Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()]
    for kind in ("pid", "time"):
        try:
            parts.append(str(Path(f"/proc/self/ns/{kind}").readlink()))
        except OSError:  # a kernel before 5.6 has no time namespaces
            parts.append("")
    return hashlib.blake2s("\0".join(parts).encode(), digest_size=6).hexdigest()


def _ancestors() -> set[int]:
    """Return our number, those above it, and init's."""
    found, number = {1}, os.getpid()
    while number > 1 and number not in found:
        found.add(number)
        number = int(_stat(number)[_PARENT])
    return found


def _seen(number: int) -> _Seen | None:
    try:
        for variable in Path(f"/proc/{number}/environ").read_bytes().split(b"\0"):
            if variable.startswith(_MARK):
                return _Seen(int(_stat(number)[_PARENT]), variable.removeprefix(_MARK).decode("ascii", "replace"))
    except OSError:  # it has ended meanwhile, or is another user's
        pass
    return None


def _stat(number: int) -> list[str]:
    return Path(f"/proc/{number}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()


def _numbers() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208 - plain names, and quicker
