"""Pausing a queue: a mark on it, by which nothing new is handed out while what runs goes on, renews and settles."""

import getpass
import json
import math
import os
import socket
import time
from dataclasses import asdict
from typing import Final, Protocol, Self, runtime_checkable

from jobq.errors import ConfigurationError
from jobq.formats import durations
from jobq.formats.lazy_dataclass import dataclass

_LATEST: Final = 1e12  # seconds since the epoch that a mark may name
MOST_CHARACTERS: Final = 200  # of a reason, and of who paused it


@dataclass(frozen=True, kw_only=True)
class Pause:
    """The mark.

    Attributes:
        at: when it was set, wall time in seconds since the epoch.
        by: who set it, such as `ada@host`; "" = that is not told.
        reason: why, for people; may be empty.
    """

    at: float
    by: str
    reason: str = ""

    def encode(self) -> str:
        """Return it as ASCII text, for a store."""
        return json.dumps(asdict(self))

    @classmethod
    def decode(cls, text: str | None) -> Self | None:
        """Return what a store holds; a mark that cannot be read is one all the same, and None is none."""
        if text is None:
            return None
        try:
            fields = json.loads(text)
            at, by, reason = float(fields["at"]), str(fields["by"]), str(fields["reason"])
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
            at, by, reason = math.nan, "somebody", text
        if not 0 <= at < _LATEST:
            at = time.time()
        return cls(at=at, by=by[:MOST_CHARACTERS], reason=reason[:MOST_CHARACTERS])

    def __str__(self) -> str:
        """Return it for people: `paused for 12m by ada@host: GPU driver update`."""
        since = durations.show(float(max(0, round(time.time() - self.at))))
        by = f" by {self.by}" if self.by else ""
        return f"paused for {since}{by}" + (f": {self.reason}" if self.reason else "")

    def without_words(self) -> "Pause":
        """Return it for who may see numbers alone: since when, and neither by whom nor why."""
        return Pause(at=self.at, by="")


@runtime_checkable
class Pausable(Protocol):
    """A backend whose queue can be paused; `QueueStats.paused` says whether it is."""

    async def pause(self, mark: Pause) -> None:
        """Hand nothing out from now on; a mark that is there already is replaced."""
        ...

    async def resume(self) -> Pause | None:
        """Hand tasks out again; return the mark that was there, None where it was not paused."""
        ...

    async def paused(self) -> Pause | None:
        """Return the mark that an empty receive has met, or a newer one; needs no more rights than a receive."""
        ...


def pausable(backend: object) -> Pausable:
    """Return a backend whose queue can be paused.

    Raises:
        ConfigurationError: it is none; says what else there is.
    """
    if isinstance(backend, Pausable):
        return backend
    raise ConfigurationError(
        "a queue of this kind cannot be paused: there is no place for it that each worker may read. Drain the workers"
        " (SIGUSR1, or --time-limit) and start none"
    )


def mark_of(reason: str) -> Pause:
    """Return a mark of this user, now.

    Raises:
        ConfigurationError: the reason is too long, or cannot be shown.
    """
    if len(reason) > MOST_CHARACTERS or not reason.isprintable():
        raise ConfigurationError(f"a reason has at most {MOST_CHARACTERS} characters, and they can be printed")
    return Pause(at=time.time(), by=this_user(), reason=reason)


def this_user() -> str:
    """Return who runs this, for people: `ada@host`, of at most MOST_CHARACTERS."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's number without a name
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"[:MOST_CHARACTERS]


def mark_field(mark: Pause | None) -> dict[str, dict[str, object]]:
    """Return a mark as a field of JSON; nothing where there is none."""
    return {} if mark is None else {"paused": asdict(mark)}
