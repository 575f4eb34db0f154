"""Ids of tasks, and what becomes of one whose rules send it on to other queues."""

import re
from typing import Final

VALID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@+=-]{0,99}")
BATCH: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")  # a name that ids can begin with
PARAM: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")
OF_PUSH: Final = re.compile(r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}")  # as `jobq.task.new_id` makes them
_SENT_ON: Final = re.compile(r"(.+)\+([0-9]{1,9})(?:\.[0-9a-f]{12})?")
MOST_HOPS: Final = 32  # as many rules as a task may have
_MOST_COUNTED: Final = 10**9 - 1 - MOST_HOPS  # of a first id: no later count has more digits than are read


def sent_on(first: str, hops: int, life: str) -> str:
    """Return the id after so many hops, always the same for the same life of the same task.

    Args:
        first: the one that it had before them.
        hops: through how many queues rules have brought it from there, the next one included.
        life: what distinguishes this life from all others.
    """
    base, count = _base_of(first)
    later = f"+{count + hops}.{digest(life, 6)}"
    return base + later if VALID.fullmatch(base + later) else digest(base, 16) + later


def comes_from(id_: str, first: str, hops: int) -> bool:
    """Return whether an id is what becomes of a first one by so many hops."""
    found = _SENT_ON.fullmatch(id_)
    if not (found and VALID.fullmatch(id_) and VALID.fullmatch(first)):
        return False
    base, count = _base_of(first)
    return int(found[2]) == count + hops and found[1] in (base, digest(base, 16))


def _base_of(first: str) -> tuple[str, int]:
    """Return the id that it was before rules sent it on, and how often they have."""
    found = _SENT_ON.fullmatch(first)
    return (found[1], int(found[2])) if found and int(found[2]) <= _MOST_COUNTED else (first, 0)


def digest(text: str, size: int) -> str:
    """Return so many bytes of a hash, in hexadecimal."""
    from hashlib import blake2b  # noqa: PLC0415 - loads OpenSSL, which those who only look start without

    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=size).hexdigest()
