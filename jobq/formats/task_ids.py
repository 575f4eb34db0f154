"""Ids of tasks, and what becomes of one whose rules send it on to other queues."""

import hashlib
import re
from typing import Final

VALID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@+=-]{0,99}")
_SENT_ON: Final = re.compile(r"(.+)\+([0-9]{1,9})(?:\.[0-9a-f]{12})?")


def sent_on(id_: str, life: str) -> str:
    """Return the id in the next queue, always the same for the same life of the same task.

    Args:
        id_: the one that it has.
        life: what distinguishes this life from all others.
    """
    base, count = base_of(id_)
    later = f"+{count + 1}.{digest(life, 6)}"
    return base + later if VALID.fullmatch(base + later) else digest(base, 16) + later


def base_of(id_: str) -> tuple[str, int]:
    """Return the id that it was before rules sent it on, and how often they have."""
    found = _SENT_ON.fullmatch(id_)
    return (found[1], int(found[2])) if found else (id_, 0)


def comes_from(id_: str, first: str, hops: int) -> bool:
    """Return whether an id is what becomes of a first one by so many hops."""
    if not (VALID.fullmatch(id_) and VALID.fullmatch(first)):
        return False
    (base, count), (former, before) = base_of(id_), base_of(first)
    return count == before + hops and base in (former, digest(former, 16))


def digest(text: str, size: int) -> str:
    """Return so many bytes of a hash, in hexadecimal."""
    return hashlib.blake2b(text.encode(), digest_size=size).hexdigest()
