"""Durations as people write them: `90`, `1.5s`, `10m`, `1h30m`, `7d`."""

import math
import re
from datetime import timedelta
from typing import Final

_UNIT_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_PART: Final = re.compile(r"(\d+(?:\.\d+)?|\.\d+)\s*(ms|s|m|h|d|w)", re.ASCII)
LONGEST_SECONDS: Final = 100 * 365 * 86400.0


def parse(text: str) -> timedelta:
    """Return the duration; a bare number counts seconds. Raises ValueError with what would be right."""
    compact = text.strip().lower()
    seconds = _seconds(compact)
    if seconds is None or not math.isfinite(seconds) or seconds < 0:
        raise ValueError(f"{text!r} is not a duration; write a number with ms, s, m, h, d or w: 90s, 10m, 1h30m")
    if seconds > LONGEST_SECONDS:
        raise ValueError(f"{text!r} is more than a hundred years")
    return timedelta(seconds=seconds)


def _seconds(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        pass
    total, position = 0.0, 0
    while position < len(text):
        part = _PART.match(text, position)
        if part is None:
            return None
        total += float(part[1]) * _UNIT_SECONDS[part[2]]
        position = part.end()
        while position < len(text) and text[position] == " ":
            position += 1
    return total if text else None


def show(duration: timedelta | float) -> str:
    """Return a short form for people, such as `45s`, `1.5s`, `10m` or `1h30m`."""
    seconds = duration.total_seconds() if isinstance(duration, timedelta) else duration
    if seconds < 60:  # noqa: PLR2004 - a minute
        return f"{seconds:.3g}s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:  # noqa: PLR2004 - an hour
        return f"{minutes}m{rest}s" if rest else f"{minutes}m"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes}m" if minutes else f"{hours}h"
