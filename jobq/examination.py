"""What `jobq check` asks of a backend: what is wrong with a queue, and whether its service does what jobq assumes."""

from collections.abc import AsyncIterator
from enum import StrEnum
from typing import Protocol, runtime_checkable

from jobq.formats.lazy_dataclass import dataclass


class Verdict(StrEnum):
    """What a finding means for who uses the queue."""

    OK = "ok"
    NOTED = "noted"  # worth knowing; nothing goes wrong
    DIFFERS = "differs"  # jobq assumes otherwise, or something is to be done
    UNKNOWN = "unknown"  # it could not be looked at


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that was looked at, or tried out.

    Attributes:
        what: was looked at, in words.
        found: as it is.
        verdict: what that means.
        assumed: by jobq; empty where it assumes nothing.
        advice: what to do about it; empty for nothing.
    """

    what: str
    found: str
    verdict: Verdict = Verdict.OK
    assumed: str = ""
    advice: str = ""


@runtime_checkable
class Examinable(Protocol):
    """A backend that can say more of its queue than the protocol asks for."""

    def findings(self) -> AsyncIterator[Finding]:
        """Look at the queue's settings and at what this identity may do; changes nothing."""
        ...


@runtime_checkable
class Deletable(Protocol):
    """A backend whose queue can be deleted: a check makes some of its own."""

    async def delete(self, *, only_empty: bool = False) -> None:
        """Delete the queue for good, with all in it and its dead letters; what runs loses its lease.

        Args:
            only_empty: raise QueueNotEmpty instead where it holds anything, by a service that can do both in one step;
                others trust that the caller has looked.
        """
        ...
