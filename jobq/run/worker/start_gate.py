"""Holds new tasks back while this machine is busy (`--load`, `--memfree`); what runs is never touched."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from jobq.formats import sizes
from jobq.settings import Settings

LOOK_SECONDS: Final = 0.25  # between two looks while nothing may start
_MEMORY: Final = Path("/proc/meminfo")
_LOAD: Final = Path("/proc/loadavg")
Reason = Callable[[], str]  # why nothing may start now; "" = it may


class StartGate:
    """Asks whether a task may start now.

    Args:
        reasons: each is asked.
        one_by_one: whether the machine is looked at before each task, since each changes what the next look finds.
    """

    def __init__(self, reasons: Sequence[Reason] = (), *, one_by_one: bool = False) -> None:
        self.most_at_once: Final = 1 if one_by_one else None
        self._reasons = tuple(reasons)

    @classmethod
    def of(cls, settings: Settings, reasons: Sequence[Reason] = ()) -> "StartGate":
        """Return the gate that the settings ask for, with more reasons."""
        limit, least = settings.load, settings.memfree
        own: list[Reason] = []
        if limit is not None:
            own.append(lambda: _too_busy(limit))
        if least is not None:
            own.append(lambda: _too_full(least))
        return cls((*own, *reasons), one_by_one=bool(own))

    def closed_by(self) -> str:
        """Return why nothing may start now; empty = it may."""
        return next(filter(None, (reason() for reason in self._reasons)), "")


def _too_busy(limit: float) -> str:
    load = max(os.getloadavg()[0], _runnable())
    return f"the load is {load:.1f}, and --load says {limit:g}" if load > limit else ""


def _runnable() -> int:
    """Return how many threads want a processor now, this one not counted: the load average is a minute late."""
    try:
        return int(_LOAD.read_text().split()[3].partition("/")[0]) - 1
    except (OSError, ValueError, IndexError):  # no Linux
        return 0


def _too_full(least: int) -> str:
    try:
        lines = dict(line.split(":", 1) for line in _MEMORY.read_text().splitlines())
        free = int(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, ValueError, KeyError):  # no Linux: there is nothing to ask
        return ""
    return f"{sizes.show(free)} of memory are free, and --memfree says {sizes.show(least)}" if free < least else ""
