"""Clearing a queue in steps, for services where one step over everything would hold up others' claims and renewals."""

import math
import time
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol, runtime_checkable

from jobq.errors import ConfigurationError

_MOST_PAUSE_SECONDS: Final = 0.1  # a service that is asked for many steps at once pauses by itself


class Cleared(NamedTuple):
    """What a step came to.

    Attributes:
        deleted: how many tasks.
        cursor: for the next step; None = what was there at first is gone.
    """

    deleted: int
    cursor: str | None


@runtime_checkable
class ClearsInSteps(Protocol):
    """A backend that can be cleared so."""

    async def clear_some(self, cursor: str) -> Cleared:
        """Delete some of what waits or is leased, for a few hundredths of a second; "" = begin.

        Steps end with what was there when they began: what is pushed meanwhile stays. Steps that are never taken leave
        the rest as it is.

        Raises:
            ConfigurationError: this is no cursor.
        """
        ...


async def clear_in_steps(
    backend: ClearsInSteps,
    on_progress: Callable[[int], None] = lambda _: None,
    *,
    begin: str = "",
    seconds: float = math.inf,
) -> Cleared:
    """Delete what waits or is leased.

    Args:
        backend: as it says.
        on_progress: called with how many are deleted so far.
        begin: the cursor to begin with.
        seconds: begin no step after that.
    """
    import asyncio  # noqa: PLC0415 - most short commands clear nothing, and start without it

    count, cursor = 0, begin
    end = time.monotonic() + seconds
    while True:
        began = time.monotonic()
        step = await backend.clear_some(cursor)
        count += step.deleted
        on_progress(count)
        if step.cursor is None or time.monotonic() >= end:
            return Cleared(count, step.cursor)
        cursor = step.cursor
        await asyncio.sleep(min(time.monotonic() - began, _MOST_PAUSE_SECONDS))  # as much time for others as for this


def cursor_of(text: str) -> tuple[int, int] | None:
    """Return the row that was reached and the last one; None for ""; raises ConfigurationError."""
    if not text:
        return None
    after, _, last = text.partition("-")
    if not all(part.isascii() and part.isdigit() and len(part) < 19 for part in (after, last)):  # noqa: PLR2004 - 63 bits
        raise ConfigurationError(f"{text[:50]!a} is no cursor of a clear; begin with none")
    return int(after), int(last)
