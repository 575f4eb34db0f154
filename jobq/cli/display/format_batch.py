"""Batches as lines and as JSON."""

import time
from typing import Any

from jobq.batches import UNFINISHED, Batch, BatchState
from jobq.cli.display import format_journal, format_task, terminal
from jobq.formats import durations

HEADINGS = ("BATCH", "STATE", "ROUND", "TOTAL", "LEFT", "SUCCEEDED", "DEAD", "OTHERS")


def as_json(batch: Batch) -> dict[str, Any]:
    """Return it as JSON has it, with times as everywhere."""
    fields = batch.as_fields()
    fields["left_s"] = None if batch.seconds_left is None else round(batch.seconds_left, 1)
    for name in ("created", "sealed", "finished"):
        fields[name] = None if fields[name] is None else format_task.moment(fields[name])
    for each in fields["rounds"]:
        each["finished"] = format_task.moment(each["finished"])
    return fields


def row(batch: Batch) -> tuple[str, ...]:
    """Return the line of a list."""
    counts = batch.counts
    numbers = (batch.round, batch.total, batch.unfinished, counts["succeeded"], counts["dead"])
    return terminal.visible(batch.name), state(batch), *map(str, numbers), str(counts["canceled"] + counts["gone"])


def state(batch: Batch) -> str:
    """Return where it is, in a word or two."""
    if batch.is_canceled:
        return "canceled" if batch.state is BatchState.FINISHED else "canceling"
    return str(batch.state)


def details(batch: Batch, pushing: str = "") -> list[tuple[str, str]]:
    """Return labels and texts for people.

    Args:
        batch: as it stands.
        pushing: who adds to it, in words; "" = nobody knows.
    """
    sealed, finished = batch.sealed, batch.finished
    rows = [
        ("batch", terminal.visible(batch.name)),
        ("state", f"{state(batch)}, round {batch.round}" + f"; {pushing}" * bool(pushing)),
        ("runs", terminal.visible(batch.template)),
        ("begun", _when(batch.created)),
        ("sealed", "" if sealed is None else _when(sealed)),
        ("finished", "" if finished is None else _when(finished)),
        ("tasks", counts(batch)),
        ("left", _left(batch)),
    ]
    rows += [
        (f"round {each.number}", f"finished {_when(each.finished)}: {_counts(each.counts)}") for each in batch.rounds
    ]
    return [(label, text) for label, text in rows if text]


def counts(batch: Batch) -> str:
    """Return how many tasks there are, and where, leaving out what is nowhere; "" = that is not told."""
    if not batch.counts:
        return ""
    return f"{batch.total}: {_counts(batch.counts)}" if batch.total else "none"


def progress(batch: Batch) -> str:
    """Return how far it is, for a bar."""
    failed = batch.counts["dead"]
    running = batch.counts["running"]
    return (
        f"{batch.total - batch.unfinished} of {batch.total}"
        + f", {running} running" * bool(running)
        + (f", {failed} dead" if failed else "")
    )


def how_far(batch: Batch, left: str = "") -> str:
    """Return where it is and how far, and about how long the rest takes, where that is known.

    Args:
        batch: as it was seen.
        left: what somebody who has seen it more often says of that; "" = nothing.
    """
    if not batch.counts:
        return state(batch)
    if batch.state is BatchState.OPEN:
        left = ""  # more may come
    elif not left and (known := _left(batch)):
        left = f", {known} left"
    return f"{state(batch)}, {progress(batch)}{left}"


def _left(batch: Batch) -> str:
    return "" if batch.seconds_left is None else f"about {format_journal.age(batch.seconds_left)}"


def _counts(counts: Any) -> str:
    order = ("succeeded", "dead", "canceled", "gone", *UNFINISHED)
    return ", ".join(f"{counts[name]} {name}" for name in order if counts[name])


def _when(moment: float) -> str:
    ago = durations.show(float(max(0, round(time.time() - moment))))
    return f"{format_task.local_time(moment)} ({ago} ago)"
