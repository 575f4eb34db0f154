"""A file that tells whether a worker is alive, for probes that have to be cheap: `jobq healthcheck` reads it.

Standard library only: an exec probe starts a Python each time. The worker's event loop writes the file, so a loop that
is blocked, which renews no lease either, is told as unhealthy.
"""

import asyncio
import json
import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_log = logging.getLogger(__name__)
WRITE_SECONDS: Final = 5.0
MAX_AGE_SECONDS: Final = 30.0  # what a probe takes for alive; six writes
_BOOTTIME: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
_MOST_BYTES: Final = 4096


@dataclass(frozen=True)
class Health:
    """What a health file says.

    Attributes:
        age: seconds since it was written, on the clock that goes on while the machine sleeps; the wall clock, which may
            be set, has no say.
        state: working, draining or stopped.
        busy: slots with a task in them.
        slots: all slots.
    """

    age: float
    state: str
    busy: int
    slots: int


class Unhealthy(Exception):
    """Why a worker does not count as alive."""


def read(path: Path) -> Health:
    """Return what a worker wrote; raises Unhealthy where there is nothing to read."""
    try:
        with path.open("rb") as file:
            told = json.loads(file.read(_MOST_BYTES))
        return Health(
            age=time.clock_gettime(_BOOTTIME) - float(told["boottime"]),
            state=str(told["state"]),
            busy=int(told["busy"]),
            slots=int(told["slots"]),
        )
    except FileNotFoundError:
        raise Unhealthy(f"there is no {path}: no worker runs here, or it has not begun") from None
    except OSError as error:
        raise Unhealthy(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError):
        raise Unhealthy(f"{path} is no health file") from None


def check(path: Path, max_age: float = MAX_AGE_SECONDS) -> Health:
    """Return what a worker wrote lately; raises Unhealthy where it wrote nothing, or too long ago.

    Args:
        path: the file.
        max_age: seconds.
    """
    found = read(path)
    # Written before this boot: the clock began anew.
    if found.age > max_age or found.age < 0:
        age = f"{found.age:.0f} s ago" if found.age >= 0 else "before this machine started"
        raise Unhealthy(f"the worker wrote {path} {age}: it is stopped, blocked or gone")
    return found


class HealthFile:
    """Keeps a health file fresh while a worker lives, and takes it away when that ends.

    Args:
        path: the file; its folder must exist.
        state: tells state, busy slots and all slots.
        seconds: between two writes.
    """

    def __init__(self, path: Path, state: Callable[[], tuple[str, int, int]], seconds: float = WRITE_SECONDS) -> None:
        self._path = path
        self._state = state
        self._seconds = seconds
        self._failed = False

    async def run(self) -> None:
        """Write until cancelled."""
        try:
            while True:
                self.write()
                await asyncio.sleep(self._seconds)
        finally:
            self._path.unlink(missing_ok=True)

    def write(self) -> None:
        """Write the file, as a whole or not at all; a failure is told once and harms no task."""
        state, busy, slots = self._state()
        told = {"boottime": time.clock_gettime(_BOOTTIME), "state": state, "busy": busy, "slots": slots}
        beside = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        try:
            beside.write_text(json.dumps(told))
            beside.replace(self._path)
        except OSError as error:
            if not self._failed:
                _log.warning("cannot write the health file %s: %s; probes will fail", self._path, error.strerror)
            self._failed = True
        else:
            self._failed = False
