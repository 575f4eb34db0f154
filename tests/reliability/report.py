"""Writes the report from the records, never by hand: figures, failing counts, and what is not proven."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from tests.reliability.parts import PARTS

Record = Mapping[str, Any]

# Each rule, and where the simulation looks at it.
_RULES: Final = (
    (
        "S1",
        "an acknowledged task is in exactly one state",
        "the whole store against the model, when faults end and at the end",
    ),
    ("S2", "nothing from nowhere", "each lease"),
    ("S3", "one valid lease; fencing numbers rise", "each lease, each requeue, each redrive"),
    ("S4", "every write is fenced; verbs of one lease never overlap", "each request, before and after"),
    ("S5", "one accepted settlement; none reported that was not", "each settlement and each report of a worker"),
    ("S7", "budgets are exact", "each lease, each requeue, each start"),
    ("S8", "a repeated push adds nothing", "the store's count against the model"),
    ("S9", "an acknowledged checkpoint is never undone", "each checkpoint, each lease"),
    ("S11", "nothing is ended for what befell a neighbour", "each signal and kill: it has a cause of that task's own"),
    ("P1", "no tree lives at its lease's end, none beside another", "each instant, each start, each settlement"),
    ("P5, P6", "nothing lives past its worker; no SIGTERM past the lease", "each end of a worker, each SIGTERM"),
    ("1.3", "a deadline counts from what surely extended the lease", "each deadline that a guardian is sent"),
    ("slots", "no more trees than slots", "each start"),
    (
        "L1, L4",
        "all ends once faults heal; no fault ends a worker",
        "the drain; each end of a worker, each logged traceback",
    ),
)
# What happens only where what goes back is a copy.
_OF_COPIES: Final = (
    "original beside its copy",
    "copy dropped by name",
    "push dropped by name",
    "lock gone between the steps",
    "abandoned poll handed over",
    "abandoned poll given back",
)
_HEAD: Final = (
    "Written by `python -m tests.reliability report` from the records that `make night` leaves in `build/reliability`;"
    " failed runs leave theirs, too."
)
_NOT_PROVEN: Final = """\
Simulated are the kernel, the watcher, the network and the clocks: what a real kernel does is left to the tests with
real processes. A machine that stands still as a whole is excused, and 2.5 s after it: only fencing protects there
([guarantees](guarantees.md)), as where somebody sets the wall clock back just then, and so hides it; so is a guardian
that is stopped, until it is continued. Control groups are not simulated. Clocks that
drift by more than 1 % are outside the timing rule. Of Storage Queue is simulated only that receipts rotate; Service Bus
is as its emulator has it, and counts a first delivery over REST as 1. Output, results and files of tasks are not
simulated. A search finds no more than its model holds. Seeds change their meaning when the menu changes: a seed is
replayed on the commit that is named beside it.
"""


def report(records: Sequence[Record]) -> str:
    """Return the page.

    Args:
        records: what the parts left; a part without one is reported as not run.
    """
    found = {record["part"]: record for record in records}
    lines = [
        "# Reliability, measured",
        "",
        _HEAD,
        "",
        "## The rules, and where the simulation checks them",
        "",
        *_table(("rule", "says", "checked at"), _RULES),
    ]
    for part in PARTS:
        lines += ["", f"## {part.title}", "", part.shows, ""]
        record = found.get(part.name)
        if record is None:
            lines.append("Not run yet.")
            continue
        failed = "" if record["exit_code"] == 0 else f" **It ended with {record['exit_code']}.**"
        lines.append(
            f"Commit {record['commit']}, {record['date']}, {record['machine']}, {_length(record['seconds'])}:"
            f" `{record['command']}`.{failed}"
        )
        lines.append("")
        lines += _simulated(record["figures"]) if part.name.startswith("simulation") else _plain(record["figures"])
    lines += ["", "## What is not proven", "", _NOT_PROVEN.rstrip()]
    return "\n".join(lines) + "\n"


def _simulated(figures: Mapping[str, Any]) -> list[str]:
    if not figures:
        return ["It left no figures."]
    failures = figures["failures"]
    rows = [
        ("runs", figures["seeds"]),
        ("runs that broke a rule", len(failures)),
        ("steps", figures["steps"]),
        ("looks at a rule", figures["checks"]),
        ("leases", figures["leases"]),
        ("hours of leases", round(figures["lease_hours"])),
        ("starts", figures["counts"].get("starts", 0)),
        ("starts that were interrupted", figures["interrupted"]),
        ("settlements refused as stale", sum(_refused(figures["counts"]))),
        ("settlements repeated after a lost answer", figures["counts"].get("settle repeated", 0)),
        ("runs cut short at the limit of steps", figures["cut_short"]),
    ]
    rows += [(name, figures["counts"][name]) for name in _OF_COPIES if name in figures["counts"]]
    lines = _table(("figure", "count"), ((name, f"{count:,}") for name, count in rows))
    if failures:
        shown = ((each["seed"], each["rule"], each["text"]) for each in failures[:20])
        lines += ["", "Runs that failed:", "", *_table(("seed", "rule", "what"), shown)]
    faults = ((kind, f"{count:,}") for kind, count in sorted(figures["faults"].items()))
    return [*lines, "", *_table(("fault", "struck"), faults)]


def _refused(counts: Mapping[str, int]) -> Iterable[int]:
    verbs = ("complete", "requeue", "release", "dead_letter")
    return (counts.get(name, 0) for name in (*(f"{verb} refused" for verb in verbs), "request on a lock that is gone"))


def _plain(figures: Mapping[str, Any]) -> list[str]:
    """Show whatever a part counted: plain values first, then each list of rows as a table."""
    if not figures:
        return ["It left no figures."]
    plain = {key: value for key, value in figures.items() if not isinstance(value, list | dict)}
    lines = _table(("figure", "value"), _named(plain)) if plain else []
    for key, value in figures.items():
        if isinstance(value, dict):
            lines += ["", *_table((_words(key), "value"), _named(value))]
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            columns = list(value[0])
            rows = [[_shown(each.get(column, "")) for column in columns] for each in value]
            lines += ["", *_table([_words(column) for column in columns], rows)]
        elif isinstance(value, list):
            lines += ["", f"{_words(key)}: {', '.join(map(_shown, value)) or 'none'}"]
    return lines


def _named(figures: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(_words(name), _shown(value)) for name, value in figures.items()]


def _words(name: str) -> str:
    return name.replace("_", " ")


def _table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> list[str]:
    return [_row(head), _row(["---"] * len(head)), *(_row(row) for row in rows)]


def _row(cells: Sequence[Any]) -> str:
    return "| " + " | ".join(str(cell).replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.2f}" if isinstance(value, float) else str(value)


def _length(seconds: int) -> str:
    if seconds < 120:
        return f"{seconds} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
