"""What a worker left alive that died with its watcher and its guardian, and whether nothing of a worker lives.

The id that a worker gives to its tasks says who guards them, in a form that no later process can have: so a task whose
guardian is dead is known by its environment alone, without a file that may be missing or stale. What is not surely of
this user, this boot of this machine and this PID namespace is left alone; so is what another service has adopted.

A task may have scrubbed its environment, or be another user's by now. So only a worker whose tasks the kernel holds
together says to others, with its leases, that they may judge it: what is left of its tasks shows, whatever they did.
"""

import contextlib
import hashlib
import os
import secrets
from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from typing import Final, NamedTuple

from jobq.run.guardian.control_group import ControlGroup
from jobq.run.spawn.control_groups import PREFIX, made_by_jobq, members, raise_if_short
from jobq.run.spawn.survivors import LOOKS_WITHOUT, WORKER_ID_VARIABLE, kill_all_of, newest_numbers

_MARK: Final = f"{WORKER_ID_VARIABLE}=".encode("ascii")
_TOO_LONG: Final = 10  # characters of a number that no process has
_HELD: Final = "held"
_GROUP_SECONDS: Final = 1.0  # for what was killed to be gone
_STATE, _PARENT, _STARTED = 0, 1, 19  # among what follows the name in /proc/PID/stat (proc(5))


class _Seen(NamedTuple):
    parent: int
    worker_id: str


def new_worker_id(guardian: int) -> str:
    """Return an id for the tasks of this process: random, with the place and who guards them.

    Guardian, watcher and worker stand in it, each with its number and its start; a program that embeds jobq is worker
    and the guardian's parent in one. Where they are hidden from us (hidepid, proc(5)) none does: nobody can judge it.
    """
    try:
        return new_id(guardian, int(_stat(guardian)[_PARENT]), os.getpid())
    except OSError:  # or the guardian has ended, as its connection will show
        return new_id()


def new_id(*guards: int) -> str:
    """Return a random id with the place and with these processes, whose death says what becomes of what bears it.

    Raises:
        OSError: one of them is gone, or hidden.
    """
    guards = tuple(number for number in dict.fromkeys(guards) if number)  # 0 = PID 1's parent
    return "-".join((secrets.token_hex(16), _where(), *(f"{number}-{_stat(number)[_STARTED]}" for number in guards)))


def holder_of(worker_id: str) -> str:
    """Return what the leases of a worker say whose tasks a control group holds together.

    Control groups can be mounted, or not, in each mount namespace, and are not all below each root: who has others may
    see nothing of ours.
    """
    root = Path("/").stat()
    seen = f"{Path('/proc/self/ns/mnt').stat().st_ino}.{root.st_dev}.{root.st_ino}"
    return f"{worker_id}-{_HELD}-{seen}" if worker_id else ""


def without_survivors(holders: Iterable[str]) -> list[str]:
    """Return those workers of which nothing lives: guardian, watcher, worker, and what they ran, which is killed first.

    Who cannot be judged from here, and of whom something carries the id yet, or could not be killed in its control
    group, is not among them.

    Args:
        holders: what their leases say.

    Raises:
        OSError: this process is short of something, and cannot know.
    """
    ids = {each: each.partition(f"-{_HELD}-")[0] for each in holders}
    dead = {each: worker_id for each, worker_id in ids.items() if holder_of(worker_id) == each and _are_dead(worker_id)}
    if not dead:
        return []
    _end_groups()
    _kill_carriers(_all_seen())
    carried = {found.worker_id for found in _all_seen().values()}
    left = {guard for group in made_by_jobq() for guard in _guards(group.name.removeprefix(PREFIX))}
    return [
        holder for holder, worker_id in dead.items() if worker_id not in carried and left.isdisjoint(_guards(worker_id))
    ]


def kill_what_dead_workers_left() -> int:
    """Kill what dead workers left: in control groups of theirs, and what else carries their ids; return how many.

    By its id in the environment only what fell to init or to one of our ancestors is known: another service may have
    adopted the rest.
    """
    return _end_groups() + _kill_carriers(_seen_among(_numbers()))


def _end_groups() -> int:
    """Kill what is in the groups whose makers are dead, and remove them; not those that this process is in."""
    killed = 0
    for group in made_by_jobq():
        if _is_dead(group.name.removeprefix(PREFIX)) and str(os.getpid()) not in members(group):
            killed += len(members(group))
            ControlGroup(str(group)).end(_GROUP_SECONDS)
    return killed


def _kill_carriers(seen: dict[int, _Seen]) -> int:
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
    """Return whether its guardian is."""
    return any(_ended(worker_id)[:1])


def _are_dead(worker_id: str) -> bool:
    """Return whether all of its guards are."""
    ended = _ended(worker_id)
    return len(ended) > 1 and all(ended)  # an id of another shape says nothing of its watcher


def _ended(worker_id: str) -> list[bool]:
    """Return for each of its guards whether it has ended, the guardian first; nothing where that is not known here."""
    where, guards = worker_id.partition("-")[2].partition("-")[0], _guards(worker_id)
    if where != _where() or not all(number.isdecimal() and len(number) < _TOO_LONG for number, _ in guards):
        return []
    return [_has_ended(int(number), started) for number, started in guards]


def _guards(worker_id: str) -> list[tuple[str, str]]:
    """Return number and start of each, the guardian first."""
    guards = worker_id.split("-")[2:]
    return list(zip(guards[::2], guards[1::2], strict=False))


def _has_ended(number: int, started: str) -> bool:
    try:
        os.kill(number, 0)  # no signal: who is hidden from us in /proc is no less alive
    except ProcessLookupError:
        return True
    except PermissionError:
        pass  # another user's by now
    try:
        found = _stat(number)
    except OSError:
        return False  # hidden, or it ends just now
    return found[_STATE] in "ZX" or found[_STARTED] != started


def _where() -> str:
    """Return what names this user, boot and PID namespace among others: numbers mean nothing there, or are hidden.

    So do its capabilities: the environment of who has more of them cannot be read (ptrace(2)).
    """
    parts = [Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip(), str(os.getuid())]
    for kind in ("pid", "time", "user"):
        try:
            parts.append(str(Path(f"/proc/self/ns/{kind}").readlink()))
        except OSError:  # a kernel before 5.6 has no time namespaces
            parts.append("")
    status = Path("/proc/self/status").read_text(encoding="utf-8", errors="replace")
    parts += [line for line in status.splitlines() if line.startswith("CapPrm:")]
    return hashlib.blake2s("\0".join(parts).encode(), digest_size=6).hexdigest()


def _ancestors() -> set[int]:
    """Return our number, those above it up to one that is hidden from us (hidepid, proc(5)), and init's."""
    found, number = {1}, os.getpid()
    with contextlib.suppress(OSError):
        while number > 1 and number not in found:
            found.add(number)
            number = int(_stat(number)[_PARENT])
    return found


def _all_seen() -> dict[int, _Seen]:
    """Return what carries an id, also what forks and ends again and again: no one look is sure to see that."""
    moving = chain.from_iterable(newest_numbers() for _ in range(LOOKS_WITHOUT))
    return _seen_among(chain(_numbers(), moving, _numbers()))


def _seen_among(numbers: Iterable[int]) -> dict[int, _Seen]:
    return {number: found for number in numbers if (found := _seen(number)) is not None}


def _seen(number: int) -> _Seen | None:
    try:
        for variable in Path(f"/proc/{number}/environ").read_bytes().split(b"\0"):
            if variable.startswith(_MARK):
                return _Seen(
                    int(_stat(number)[_PARENT]), variable.removeprefix(_MARK).decode("ascii", "surrogateescape")
                )
    except OSError as error:  # it has ended meanwhile, or is another user's
        raise_if_short(error)
    return None


def _stat(number: int) -> list[str]:
    return Path(f"/proc/{number}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()


def _numbers() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208 - plain names, and quicker
