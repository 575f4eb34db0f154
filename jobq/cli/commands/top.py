"""`jobq QUEUE top`: a queue as it lives, on a terminal: how many tasks are where, how fast they end, what runs now."""

import asyncio
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import click

from jobq.cli.common import ExampleCommand, duration, json_option, with_queue
from jobq.cli.display import format_journal, terminal
from jobq.cli.display.queue_watch import MOST_BATCHES, TopSnapshot, WatchedQueue
from jobq.formats import durations

if TYPE_CHECKING:
    from rich.console import RenderableType

    from jobq.backend import Backend, QueueStats
    from jobq.batches import Batch
    from jobq.journal.records import TaskRecord

_DEFAULT: Final = timedelta(seconds=2)
_LEAST: Final = timedelta(milliseconds=100)
_COUNTS: Final = ("visible", "leased", "scheduled", "dead", "total")


@click.command(
    cls=ExampleCommand,
    examples=("jobq demo top", "jobq demo top --batch s7", "jobq demo top --interval 10s", "jobq demo top --once"),
)
@click.option("--batch", metavar="NAME", help="Watch this batch: its counts, what of it runs, how long the rest takes.")
@click.option("--interval", metavar="DURATION", callback=duration, help="Between two looks. Default: 2s.")
@click.option("--once", is_flag=True, help="TopSnapshot once, print it and end.")
@json_option
@click.pass_context
def top(ctx: click.Context, batch: str | None, interval: timedelta | None, once: bool, as_json: bool) -> int:
    """Show a queue as it lives: tasks by state, what ended lately, open batches, what runs now. Ctrl-C ends it.

    Where there is no terminal, or one that cannot move its cursor, it looks once. A queue without a journal shows its
    counts and how they change; each look is a request that Azure bills.
    """
    pause = interval or _DEFAULT
    if pause < _LEAST:
        raise click.BadParameter(f"at least {durations.show(_LEAST)}", ctx, param_hint="--interval")

    async def work(backend: "Backend") -> None:
        watched = WatchedQueue(backend, batch)
        found = await watched.look()
        if as_json:
            await _as_json(watched, found, pause, once=once)
        elif once or not _is_screen():
            _print(_drawn(backend.name, found))
        else:
            await _live(watched, found, pause)

    return with_queue(ctx, work, interruptible=True)  # SIGTERM too leaves the terminal as it was


def _is_screen() -> bool:
    """Return whether standard output can be drawn on: a terminal whose cursor moves."""
    return sys.stdout.isatty() and os.environ.get("TERM", "") not in {"", "dumb"}


async def _as_json(watched: WatchedQueue, found: TopSnapshot, pause: timedelta, *, once: bool) -> None:
    while True:
        terminal.put_json(_object(found))
        terminal.flush()
        if once or not sys.stdout.isatty():
            return
        await asyncio.sleep(pause.total_seconds())
        found = await watched.look(found)


def _object(found: TopSnapshot) -> dict[str, Any]:
    from jobq.cli.display import format_batch  # noqa: PLC0415 - as above

    journal = found.journal
    paused = None if found.stats.paused is None else asdict(found.stats.paused)
    if found.batch is not None:
        return {
            "batch": format_batch.as_json(found.batch),
            "paused": paused,
            "running": [format_journal.record_as_json(record) for record in found.running or ()],
            "fault": found.fault or None,
        }
    return {
        "counts": _counts(found.stats),
        "paused": paused,
        "batches": [format_batch.as_json(each) for each in found.batches[:MOST_BATCHES]],
        "ended": None if journal is None else dict(journal.ended),
        "window_s": None if journal is None else journal.window_seconds,
        "oldest_ready_s": None if journal is None else journal.oldest_ready_seconds,
        "running": [format_journal.record_as_json(record) for record in found.running or ()],
        "fault": found.fault or None,
    }


async def _live(watched: WatchedQueue, found: TopSnapshot, pause: timedelta) -> None:
    from rich.live import Live  # noqa: PLC0415 - only a terminal needs it

    first, before = found, None
    with Live(screen=True, auto_refresh=False) as live:
        while True:
            live.update(_drawn(watched.backend.name, found, before, first, height=live.console.height), refresh=True)
            await asyncio.sleep(pause.total_seconds())
            before, found = found, await watched.look(found)


def _print(drawn: "RenderableType") -> None:
    from rich.console import Console  # noqa: PLC0415 - as above

    console = Console(file=sys.stdout, highlight=False, no_color=not terminal.uses_color(sys.stdout))
    with console.capture() as capture:
        console.print(drawn)
    for line in capture.get().splitlines():
        terminal.put_text(line.rstrip())


def _drawn(
    queue: str,
    found: TopSnapshot,
    before: TopSnapshot | None = None,
    first: TopSnapshot | None = None,
    *,
    height: int = 0,
) -> "RenderableType":
    """Return what to show.

    Args:
        queue: its name.
        found: what was seen now.
        before: and in the look before.
        first: and when it began.
        height: of the screen in lines; 0 = nothing is cut.
    """
    from rich.console import Group  # noqa: PLC0415 - as above
    from rich.text import Text  # noqa: PLC0415 - as above

    lines = [Text(f"{terminal.visible(queue)}  {time.strftime('%H:%M:%S')}", style="bold")]
    if found.batch is None:
        lines.append(Text(_sentence(_counts(found.stats))))
    lines += map(Text, _batches(found))
    if found.stats.paused is not None:
        lines.append(Text(terminal.visible(str(found.stats.paused)), style="yellow"))
    if found.journal is not None:
        oldest = found.journal.oldest_ready_seconds
        lines.append(Text(f"oldest ready: {'-' if oldest is None else format_journal.age(oldest)}"))
        ended = _sentence(found.journal.ended) or "none"
        lines.append(Text(f"attempts ended in the last hour: {ended}{format_journal.pace(found.journal)}"))
        if (rate := _rate(found, before)) is not None:
            lines.append(Text(f"ending now: {rate:.3g}/s"))
    elif found.batch is None and first is not None and first is not found:
        lines.append(Text(_change(found, first)))
    if found.running is None:
        lines.append(Text("this queue keeps no journal: what runs is not known", style="dim"))
    if found.fault:
        lines.append(Text(f"the last look failed: {terminal.visible(found.fault)}", style="red"))
    if found.running is not None:
        lines += [Text(""), *map(Text, _running(found.running, height - len(lines) - 1 if height else 0))]
    for line in lines:
        line.no_wrap, line.overflow = True, "ellipsis"
    return Group(*lines)


def _batches(found: TopSnapshot) -> list[str]:
    """Return how far the batch is that is watched, or those are that have not finished."""
    from jobq.cli.display import format_batch  # noqa: PLC0415 - as above

    def line(batch: "Batch") -> str:
        left = found.left.get(batch.name, "")
        return f"batch {terminal.visible(batch.name)}: {format_batch.how_far(batch, left)}"

    if found.batch is not None:
        return [line(found.batch), format_batch.counts(found.batch)]
    more = ["and more batches: `batch list` shows them"] if len(found.batches) > MOST_BATCHES else []
    return [*map(line, found.batches[:MOST_BATCHES]), *more]


def _running(records: "list[TaskRecord]", height: int) -> list[str]:
    """Return what runs, in as many lines as there are; what has no room is counted."""
    if not records:
        return ["nothing runs"]
    lines = format_journal.running(records, 0)
    if not height or len(lines) <= height:
        return lines
    room = max(0, height - 1)
    return [*lines[:room], f"... {len(lines) - max(1, room)} more"]


def _change(found: TopSnapshot, first: TopSnapshot) -> str:
    """Return what has changed since the first look: all that the counts alone say of a pace."""
    if not (found.stats.is_known and first.stats.is_known):
        return "the service does not say how many tasks there are"
    seconds = max(found.at - first.at, 0.001)
    left = found.stats.unfinished - first.stats.unfinished
    text = f"in {durations.show(round(seconds))}: {left:+} unfinished ({left / seconds:+.2g}/s)"
    if found.stats.dead is not None and first.stats.dead is not None:
        text += f", {found.stats.dead - first.stats.dead:+} dead"
    return text


def _counts(stats: "QueueStats") -> dict[str, int]:
    return {name: count for name in _COUNTS if (count := getattr(stats, name)) is not None}


def _sentence(counts: Mapping[str, int]) -> str:
    return "  ".join(f"{count} {terminal.visible(name)}" for name, count in counts.items())


def _rate(found: TopSnapshot, before: TopSnapshot | None) -> float | None:
    """Return how many attempts ended in a second between two looks; None before there are two."""
    if before is None or before.journal is None or found.journal is None or found.at <= before.at:
        return None
    # What left the window of an hour meanwhile is missed: a little too low at a change of rate.
    ended = sum(found.journal.ended.values()) - sum(before.journal.ended.values())
    return max(0, ended) / (found.at - before.at)
