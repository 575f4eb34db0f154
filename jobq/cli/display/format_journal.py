"""How what a journal knows is shown to people and to programs; what tasks said may hold anything."""

import json
import time
from typing import TYPE_CHECKING, Any, Final

from jobq.cli.display import format_task, terminal
from jobq.cli.display.terminal import shortened
from jobq.formats import durations, sizes
from jobq.formats.checkpoint_format import StoredCheckpoint
from jobq.formats.visible_text import visible

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jobq.journal.records import Attempt, JournalStats, TaskRecord
    from jobq.task import TaskResult

_DAY_SECONDS: Final = 86400.0
_MOST_CELL: Final = 100  # characters, as many as an id of ours has


def record_as_json(record: "TaskRecord") -> dict[str, Any]:
    """Return where a task is, for a JSON object."""
    held: dict[str, Any] = {
        "id": record.id,
        "state": str(record.state),
        "attempt": record.attempt,
        "since": _moment(record.at),
        "worker": record.holder,
        "leased": _moment(record.leased_at),
        "lease_left_s": None if record.lease_left is None else round(record.lease_left, 1),
        "cancel_requested": record.cancel_requested,
        "checkpoint": StoredCheckpoint.decode(record.checkpoint).value,
        "checkpoint_files": StoredCheckpoint.decode(record.checkpoint).archive,
        "reason": record.reason,
        "description": record.description,
        "running": None,
        "last": None if record.last is None else attempt_as_json(record.last),
        "task": format_task.as_json(record.body, env=False)["task"] if record.body else None,
    }
    if record.batch is not None:
        held["batch"] = record.batch
    if record.beat is not None:
        beat = record.beat
        held["running"] = {
            "told": _moment(beat.at),
            "started": _moment(beat.started),
            "progress": beat.progress,
            "text": beat.text,
            "cpu_s": beat.cpu_seconds,
            "cores": beat.cores,
            "rss_bytes": beat.rss_bytes,
            "processes": beat.processes,
        }
    return held


def attempt_as_json(attempt: "Attempt") -> dict[str, Any]:
    """Return one attempt, for a JSON object."""
    usage = attempt.usage
    return {
        "attempt": attempt.attempt,
        "outcome": str(attempt.outcome),
        "then": attempt.then,
        "exit_code": attempt.exit_code,
        "signal": attempt.signal,
        "value": attempt.value,
        "detail": attempt.detail,
        "started": _moment(attempt.started),
        "ended": _moment(attempt.ended),
        "duration_s": None if attempt.started is None else round(max(0.0, attempt.ended - attempt.started), 3),
        "waited_s": attempt.waited,
        "host": attempt.host,
        "pid": attempt.pid,
        "program": attempt.program,
        "cpu_s": None if usage is None else usage.cpu_seconds,
        "max_rss_bytes": None if usage is None else usage.max_rss_bytes,
        "processes": None if usage is None else usage.processes,
    }


def result_as_json(task_id: str, state: str, result: "TaskResult") -> dict[str, Any]:
    """Return what a task came to, for a JSON object."""
    return {
        "id": task_id,
        "state": state,
        "outcome": str(result.outcome),
        "exit_code": result.exit_code,
        "signal": result.signal,
        "value": result.value,
        "attempt": result.attempt,
        "duration_s": round(result.duration, 3),
        "host": result.host,
        "detail": result.detail,
    }


def details(record: "TaskRecord", attempts: "Sequence[Attempt]") -> list[tuple[str, str]]:
    """Return where a task is, as labels and printable texts, with its attempts that have ended."""
    last, saved = record.last, StoredCheckpoint.decode(record.checkpoint)
    rows: list[tuple[str, str | None]] = [
        ("id", visible(record.id)),
        ("state", state_of(record)),
        ("batch", record.batch and visible(record.batch)),
        ("attempt", str(record.attempt)),
        ("since", None if record.at is None else format_task.local_time(record.at)),
        ("worker", record.holder and visible(record.holder)),
        ("lease", None if record.lease_left is None else lease_of(record)),
        ("progress", progress_of(record)),
        ("uses", usage_of(record)),
        ("checkpoint", visible((saved.value or "")[:200])),
        ("files", saved.archive and visible(saved.archive)),
        *(("" if number else "attempts", attempt_line(attempt)) for number, attempt in enumerate(attempts)),
        ("value", None if last is None or last.value is None else visible(json.dumps(last.value))[:500]),
        ("reason", record.reason and visible(record.reason)),
        ("description", record.description and visible(record.description.splitlines()[0])),
    ]
    known = [(label, text) for label, text in rows if text and text != "-"]
    held = format_task.details(record.body, env=False) if record.body else []
    # What a dead letter counts of itself is as it was last put back: its last failure is not among them.
    return known + [row for row in held if row[0] != "counters" or not record.state.is_final]


def state_of(record: "TaskRecord") -> str:
    """Return the state in words."""
    return f"{record.state}, to be canceled" if record.cancel_requested and not record.state.is_final else record.state


def lease_of(record: "TaskRecord") -> str:
    """Return how long the lease lasts, or for how long it has been over."""
    left = record.lease_left or 0.0
    return f"{left:.0f}s" if left > 0 else f"over {age(-left)}"


def progress_of(record: "TaskRecord") -> str:
    """Return what a task says of its progress."""
    beat = record.beat
    if beat is None or (beat.progress is None and not beat.text):
        return "-"
    share = "" if beat.progress is None else f"{beat.progress:.0%} "
    return (share + visible(beat.text)).strip()


def usage_of(record: "TaskRecord") -> str:
    """Return what a running task uses."""
    beat = record.beat
    if beat is None or beat.rss_bytes is None:
        return "-"
    return f"{(beat.cores or 0.0) * 100:.0f}% {sizes.show(beat.rss_bytes)}"


def attempt_line(attempt: "Attempt") -> str:
    """Return one attempt on one line."""
    started = "not started" if attempt.started is None else format_task.local_time(attempt.started)
    took = "" if attempt.started is None else f" {age(attempt.ended - attempt.started)}"
    where = f" on {visible(attempt.host)}:{attempt.pid}" if attempt.host else ""
    waited = "" if attempt.waited is None else f", waited {age(attempt.waited)}"
    how = f"{attempt.attempt} {visible(str(attempt.outcome))} ({attempt.then}): {visible(attempt.detail)}"
    return f"{how}; {started}{took}{where}{waited}"


def age(seconds: float) -> str:
    """Return a time span, short enough for a table."""
    seconds = max(0.0, seconds)
    if seconds < 10:  # noqa: PLR2004 - a digit more for short ones
        return f"{seconds:.1f}s"
    from datetime import timedelta  # noqa: PLC0415 - rare

    whole = round(seconds)
    whole -= whole % 60 if seconds > _DAY_SECONDS else 0
    return durations.show(timedelta(seconds=whole))


def pace(stats: "JournalStats") -> str:
    """Return how fast tasks end, and about how long the rest takes, to be appended; empty where nothing has ended."""
    if not stats.rate:
        return ""
    left = "" if stats.seconds_left is None else f", about {age(stats.seconds_left)} left"
    return f" ({stats.rate:.3g}/s{left})"


def how_far(listed: int, stats: "JournalStats | None") -> str:
    """Return how many run and wait, and how fast that goes, as far as it is known."""
    runs = f"{listed} shown" if listed else "nothing runs"
    if stats is None:
        return runs
    waiting = stats.states["ready"] + stats.states["scheduled"]
    return runs + (f", {waiting} waiting" if waiting else "") + pace(stats)


def since(wall: float | None) -> str:
    """Return how long ago a wall time was."""
    return "-" if wall is None else age(time.time() - wall)


def running(records: "Sequence[TaskRecord]", width: int) -> list[str]:
    """Return the lines of a table of what runs.

    Args:
        records: with the last beats of their attempts.
        width: of the screen, in columns; 0 = nothing is cut.
    """
    rows = [
        (
            visible(record.id),
            visible(record.holder or "-"),
            since(record.leased_at),
            str(record.attempt),
            shortened(progress_of(record), 24),
            usage_of(record),
            "canceling" if record.cancel_requested else lease_of(record),
            format_task.what_runs(record.body),
        )
        for record in records
    ]
    return table(("ID", "WORKER", "AGE", "ATTEMPT", "PROGRESS", "CPU MEMORY", "LEASE", "RUNS"), rows, width)


def table(head: "Sequence[str]", rows: "Sequence[Sequence[str]]", width: int) -> list[str]:
    """Return the lines of a table; the last column is cut so that a line fits, unless the width is 0."""
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    lines = []
    for row in (head, *rows):
        line = "  ".join(text.ljust(widths[column]) for column, text in enumerate(row)).rstrip()
        lines.append(line if not width or len(line) <= width else line[: max(0, width - 3)] + "...")
    return lines


def put_rows(head: "Sequence[str]", rows: "Sequence[Sequence[str]]", *, full: bool) -> None:
    """Print rows: on a terminal as a table, cut to what fits unless all is wanted; elsewhere as they are.

    What stands before the last column is bounded: an id that another program chose may be longer than any screen.
    """
    if not full:
        rows = [(*(terminal.shortened(cell, _MOST_CELL) for cell in cells), last) for *cells, last in rows]
    lines = table(head, rows, 0) if rows and terminal.width() else ["  ".join(row) for row in rows]
    for line in lines:
        terminal.put(terminal.fitted(line, full=full))


def _moment(seconds: float | None) -> str | None:
    return None if seconds is None else format_task.moment(seconds)
