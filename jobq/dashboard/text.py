"""How values are written on pages. What comes from users goes through `visible` or `block`, then Jinja's escaping."""

import time
from datetime import UTC, datetime
from typing import Final
from urllib.parse import unquote_plus

from jobq.formats import durations
from jobq.formats.visible_text import visible as visible_line
from jobq.journal.records import TaskState
from jobq.journal.views import Count

MOST_IN_LISTS: Final = 200  # characters
# Each state is a sign and a word: colour alone tells nobody anything.
SIGNS: Final = {
    TaskState.READY: "◷",
    TaskState.SCHEDULED: "◷",
    TaskState.RUNNING: "●",
    TaskState.EXPIRED: "!",
    TaskState.SUCCEEDED: "✓",
    TaskState.DEAD: "✗",
    TaskState.CANCELED: "⊘",
}


def visible(value: object, most: int = MOST_IN_LISTS) -> str:
    """Return foreign text as one line, cut to `most` characters."""
    text = str(value)
    return visible_line(text[:most]) + ("…" if len(text) > most else "")


def conditions(filter_: str) -> str:
    """Return the filter of an address as people read it: `state=dead, exit=137`."""
    return ", ".join(map(unquote_plus, filter_.split("&")))


def deed(did: str) -> str:
    """Return what was done, as the button that does it is called."""
    return did.replace("hasten", "run now")


def block(text: str) -> str:
    """Return foreign text of several lines, each of which is visible."""
    return "\n".join(visible_line(line) for line in text.split("\n"))


def capped(count: Count | None) -> str:
    """Return a count; one that was not counted to its end has a plus."""
    return "?" if count is None else f"{count.number:,}" + ("" if count.is_exact else "+")


def moment(at: float) -> str:
    """Return a wall time as ISO 8601, for `datetime`; one that no calendar has is empty."""
    try:
        return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    except (ValueError, OverflowError, OSError):
        return ""


def relative(at: float, now: float | None = None) -> str:
    """Return how long ago a wall time is, or when it comes, in its largest unit: `4m ago`, `in 2h`; `?` = never."""
    if not moment(at):
        return "?"
    away = (time.time() if now is None else now) - at
    return f"{coarse(away)} ago" if away >= 0 else f"in {coarse(-away)}"


def coarse(seconds: float) -> str:
    """Return a duration in its largest unit: `4s`, `12m`, `3h`, `9d`."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= size:
            return (
                f"{seconds / size:.0f}{unit}"
                if seconds >= 2 * size
                else f"{seconds / size:.1f}".removesuffix(".0") + unit
            )
    return f"{max(0.0, seconds):.0f}s"


def duration(seconds: float) -> str:
    """Return a duration as the command line writes it."""
    return durations.show(max(0.0, seconds))
