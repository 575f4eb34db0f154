"""The picture of a running worker: a table of slots and the lines below it, as lines for a terminal of any size.

Pure: what it is given decides what it returns. Plain ASCII but for what commands hold, so that any locale takes it.
"""

import sys
from collections.abc import Sequence
from typing import Final, NamedTuple

from jobq.cli.display.event_format import short_id
from jobq.cli.display.terminal import paint
from jobq.formats import durations
from jobq.formats.visible_text import visible
from jobq.run.process.usage import UsageReading

_LINES_ABOVE: Final = 5  # of a terminal: left to what scrolls
_LEAST_ROWS: Final = 8  # with fewer there is no room for a table
MOST_SHOWN: Final = 300  # characters of a command that are looked at; a command may have a million
_FAINT: Final = "2"
_UNITS: Final = ("", "K", "M", "G", "T")


class Slot(NamedTuple):
    """A slot that runs something.

    Attributes:
        number: from 1.
        task_id: what it runs.
        what: the command.
        age_seconds: since its start.
        reading: what it used at the last look; None = not looked at yet.
    """

    number: int
    task_id: str
    what: str
    age_seconds: float
    reading: UsageReading | None


class _Column(NamedTuple):
    title: str
    width: int
    least_columns: int  # of a terminal, for this to be shown


_COLUMNS: Final = (
    _Column("slot", 4, 0),
    _Column("task", 8, 72),
    _Column("age", 6, 0),
    _Column("cpu", 5, 50),
    _Column("memory", 6, 30),
    _Column("procs", 5, 60),
)


def lines(slots: int, busy: Sequence[Slot], below_it: Sequence[str], columns: int, rows: int) -> list[str]:
    """Return the picture.

    Args:
        slots: how many there are; 0 = only the lines below are wanted.
        busy: those that run something, by number.
        below_it: lines for below the table.
        columns: of the terminal.
        rows: of the terminal.
    """
    width = columns - 1  # the last column is left free: some terminals go to the next line there
    below = [_cut(line, width) for line in below_it]
    if not slots:
        return below
    if rows < _LEAST_ROWS:
        return below[-1:]
    fit = max(1, rows - _LINES_ABOVE - len(below) - 1)  # and a title
    if slots > fit:
        fit = max(1, fit - 1)  # and the line that counts the others
    shown = {slot.number: slot for slot in busy[:fit]}
    for number in range(1, slots + 1):  # idle slots fill up what is left
        if len(shown) >= min(fit, slots):
            break
        shown.setdefault(number, Slot(number=number, task_id="", what="", age_seconds=0, reading=None))
    wide = max([_COLUMNS[1].width, *(len(_name(slot)) for slot in shown.values())])
    picture = [paint(_row([column.title for column in _COLUMNS], "command", columns, wide), _FAINT, sys.stderr)]
    picture += [_slot_line(shown[number], columns, wide) for number in sorted(shown)]
    if slots > len(shown):
        hidden = len(busy) - min(fit, len(busy))
        running = f" ({hidden} running)" if hidden else ""
        picture.append(_cut(f"and {slots - len(shown)} more{running}", width))
    return picture + below


def _name(slot: Slot) -> str:
    return visible(short_id(slot.task_id))


def _slot_line(slot: Slot, columns: int, wide: int) -> str:
    if not slot.task_id:
        return paint(_row([str(slot.number), "", "", "", "", ""], "idle", columns, wide), _FAINT, sys.stderr)
    reading = slot.reading
    used = (f"{reading.cores:.0%}", memory(reading.rss_bytes), str(reading.processes)) if reading else ("", "", "")
    cells = [str(slot.number), _name(slot), durations.show(int(slot.age_seconds)), *used]
    return _row(cells, visible(slot.what[:MOST_SHOWN]), columns, wide)


def _row(cells: Sequence[str], last: str, columns: int, wide: int) -> str:
    widths = {"task": wide}
    shown = [
        f"{cell[: widths.get(column.title, column.width)]:>{widths.get(column.title, column.width)}}"
        for cell, column in zip(cells, _COLUMNS, strict=True)
        if columns >= column.least_columns
    ]
    head = "  ".join(shown) + "  "
    return _cut(head + last, columns - 1)


def _cut(text: str, width: int) -> str:
    """Return what fits into `width` cells, ending in dots where something is missing."""
    from rich.cells import cell_len, set_cell_size  # noqa: PLC0415 - 40 ms, in the writer's thread

    if cell_len(text) <= width:
        return text
    return set_cell_size(text, max(0, width - 3)) + "..."[: max(0, width)]


def memory(size: int) -> str:
    """Return bytes in at most five characters, as `top` does: `613M`, `1.5G`."""
    value, unit = float(size), 0
    while value >= 1000 and unit < len(_UNITS) - 1:  # noqa: PLR2004 - four digits are too wide
        value, unit = value / 1024, unit + 1
    return f"{value:.1f}{_UNITS[unit]}" if unit and value < 10 else f"{value:.0f}{_UNITS[unit]}"  # noqa: PLR2004 - as above
