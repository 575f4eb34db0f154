"""Events as text for people and as JSON lines; any event is taken, also one that this version does not know."""

import json
import logging
import re
import signal
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from jobq.cli.display.queue_name import to_copy
from jobq.clock import SystemClock
from jobq.events import Event
from jobq.formats import durations, sizes
from jobq.formats.task_ids import OF_PUSH
from jobq.formats.visible_text import visible

ID_CHARACTERS: Final = 8  # the end of an id: its beginning is the time, alike for all tasks of a batch
_NAME_CHARACTERS: Final = 20  # the end of an id that no push has made
PHRASES: Final = {
    "worker.started": "worker started",
    "worker.draining": "taking no new tasks",
    "worker.stopped": "worker stopped",
    "queue.paused": "waits: the queue is paused",
    "queue.resumed": "goes on: the queue is paused no more",
    "worker.receive_failed": "cannot receive tasks",
    "worker.held_back": "starts nothing new for now",
    "worker.breaker_tripped": "too many failures in a row, so the worker ends",
    "task.leased": "is leased",
    "task.output": "wrote a line",
    "task.timeout": "ran too long and was ended",
    "task.retry_scheduled": "will run again",
    "task.dead_lettered": "was given up",
    "task.lease_lost": "lost its lease and was stopped",
    "task.cancelled": "was canceled",
    "task.preempted": "was interrupted",
    "task.released": "was given back unstarted",
    "task.misfit": "asks for what is not to be had here, and was given back",
    "task.reserved": "waits here for room, and nothing else is taken",
    "worker.misfits": "leaves some to others",
    "task.runs_alone": "would be given up after one more crash, so it runs without neighbours",
    "task.settlement_unknown": "ended, but whether the queue knows is unknown",
    "task.result_not_kept": "has a result that is not kept",
    "task.not_settled": "ended, but the queue could not be reached",
}
_NO_DETAIL: Final = frozenset(
    {"task_id", "queue", "backend", "worker_id", "host", "detail", "trace_id", "span_id", "stream", "line", "fencing"}
    | {"max_attempts", "error_type", "waited_s"}
)
# Of a lost lease; both are seconds of CLOCK_BOOTTIME, which no other log of this machine shows.
_MOMENTS: Final = {"last_success": "last renewed", "deadline": "deadline"}
# What becomes of the task: which attempt that was has been shown.
_AFTERWARDS: Final = frozenset({"task.retry_scheduled", "task.dead_lettered", "task.released"})
_RESERVED: Final = ("ts", "level", "event", "msg")
_SGR: Final = re.compile("\x1b\\[[0-9;:]*m")
_RESET: Final = "\x1b[0m"


def sentence(name: str, fields: Mapping[str, Any]) -> str:
    """Return an event as one readable sentence."""
    family, _, verb = name.partition(".")
    if family in {"log", "console"}:
        return str(fields.get("detail", ""))
    phrase = PHRASES.get(name) or (verb or family).replace("_", " ")
    subject = ""
    if "task_id" in fields:
        subject = f"task {short_id(str(fields['task_id']))} "
    elif name not in PHRASES and verb:
        subject = f"{family} "
    detail_text = str(fields.get("detail", ""))
    hidden = _NO_DETAIL | {"attempt"} if name in _AFTERWARDS else _NO_DETAIL
    shown = [_detail(field, value) for field, value in fields.items() if field not in hidden]
    details = [detail for detail in shown if detail and detail not in detail_text]
    text = subject + phrase + (f" ({', '.join(details)})" if details else "")
    if name == "worker.stopped" and (given_up := fields.get("dead_lettered")):
        detail_text += f"{'; ' if detail_text else ''}{given_up} given up, see `jobq QUEUE dead list`"
    return to_copy(f"{text}: {detail_text}" if detail_text else text)


def _detail(name: str, value: Any) -> str:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if name in _MOMENTS and is_number:
        return f"{_MOMENTS[name]} {_local_time(time.time() + value - SystemClock().boottime())}"
    if name in _COUNTED and isinstance(value, int):
        return _COUNTED[name](value)
    if name.endswith("_s") and is_number:
        word = {"duration_s": "after", "delay_s": "in"}.get(name, name.removesuffix("_s").replace("_", " "))
        return f"{word} {durations.show(float(value))}"
    if name in {"attempt", "exit_code"}:
        return f"{name.replace('_', ' ')} {value}"
    if name == "reason":
        return str(value)
    return f"{name}={value}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


_COUNTED: Final[dict[str, Callable[[int], str]]] = {
    "signal": _signal_name,
    "max_rss_bytes": lambda size: f"peak {sizes.show(size)}",
    "lines_dropped": lambda count: f"{count} lines of output dropped: their reader is too slow",
    "results_not_kept": lambda count: f"results_not_kept={count}" if count else "",
    "processes": lambda count: f"{count} processes" if count > 1 else "",  # one goes without saying
}


def short_id(id_: str) -> str:
    """Return what distinguishes tasks for people; a name that somebody chose says more than its last letters."""
    return id_[-(ID_CHARACTERS if OF_PUSH.fullmatch(id_) else _NAME_CHARACTERS) :]


def text_line(event: Event) -> str:
    """Return an event as a line of a log for people, in local time."""
    at = _local_time(event.at)
    lines = sentence(event.name, event.fields).split("\n")
    text = "\n    ".join(visible(line) for line in lines)  # indented: a text with line ends cannot forge a log line
    return f"{at} {logging.getLevelName(event.level):<7} {text}"


def _local_time(wall: float) -> str:
    return datetime.fromtimestamp(wall, UTC).astimezone().strftime("%H:%M:%S")


def json_line(event: Event, **common: Any) -> str:
    """Return an event as a JSON object, in pure ASCII; `common` fields yield to the event's own."""
    head = {
        "ts": datetime.fromtimestamp(event.at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "level": logging.getLevelName(event.level).lower(),
        "event": event.name,
        "msg": sentence(event.name, event.fields),
    }
    rest = {name: value for name, value in {**common, **event.fields}.items() if name not in _RESERVED}
    try:
        return json.dumps({**head, **rest}, default=str, allow_nan=False)
    except (ValueError, TypeError, RecursionError):  # NaN, a cycle, a key that is no text
        return json.dumps({**head, **{str(name): repr(value) for name, value in rest.items()}})


def terminal_safe(line: str) -> str:
    """Return a line of a task's output that may be shown on a terminal: colours stay, all other controls are shown."""
    parts: list[str] = []
    position = 0
    for color in _SGR.finditer(line):
        parts += [_shown(line[position : color.start()]), color[0]]
        position = color.end()
    parts.append(_shown(line[position:]))
    return "".join(parts) + (_RESET if position else "")


def _shown(text: str) -> str:
    return "\t".join(visible(part) for part in text.split("\t"))  # a tab harms nobody
