"""Reads what a worker writes of its health; imports next to nothing, since a probe starts a Python each time."""

import json
import os
import time
from typing import Final, NamedTuple

MAX_AGE_SECONDS: Final = 30.0  # what a probe takes for alive; six writes of a worker
VARIABLE: Final = "JOBQ_HEALTH_FILE"
_BOOTTIME: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
_MOST_BYTES: Final = 4096


def now() -> float:
    """Return the time by which health is judged: in seconds, on the clock that goes on while the machine sleeps."""
    return time.clock_gettime(_BOOTTIME)


class Health(NamedTuple):
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


def read(path: str | os.PathLike[str]) -> Health:
    """Return what a worker wrote; raises Unhealthy where there is nothing to read."""
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - pathlib takes a tenth of a probe
            sign = json.loads(file.read(_MOST_BYTES))
        return Health(
            age=now() - float(sign["boottime"]),
            state=str(sign["state"]),
            busy=int(sign["busy"]),
            slots=int(sign["slots"]),
        )
    except FileNotFoundError:
        raise Unhealthy(f"there is no {path}: no worker runs here, or it has not begun") from None
    except OSError as error:
        raise Unhealthy(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):  # Infinity, many brackets
        raise Unhealthy(f"{path} is no health file") from None


def check(path: str | os.PathLike[str], max_age: float = MAX_AGE_SECONDS) -> Health:
    """Return what a worker wrote lately; raises Unhealthy where it wrote nothing, or too long ago.

    Args:
        path: the file.
        max_age: seconds.
    """
    found = read(path)
    if not 0 <= found.age <= max_age:  # so it is not healthy with NaN either
        # Negative: written before this boot; the clock began anew.
        age = "before this machine started" if found.age < 0 else f"{found.age:.0f} s ago"
        raise Unhealthy(f"the worker wrote {path} {age}: it is stopped, blocked or gone")
    return found


def sentence(found: Health) -> str:
    """Return it as text for people."""
    return f"{found.state}: {found.busy} of {found.slots} slots busy, {found.age:.0f} s ago"


def answer(path: str) -> tuple[int, str]:
    """Return the exit code of a probe, and its words."""
    try:
        return 0, sentence(check(path))
    except Unhealthy as error:
        return 1, str(error)
