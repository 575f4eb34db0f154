"""What all benchmarks measure with: the clock and the CPU of each side, medians of rounds, one row a comparison.

The peers' own Python runs this too (`python -m benchmarks.postgres_peer`), so nothing but the standard library is
imported with it.
"""

import resource
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

Row = dict[str, object]
_PER_SECOND = "/s"
_A_UNIT = {"ms": 1e3, "us": 1e6}  # what a unit takes, one after the other


@dataclass(frozen=True)
class Figure:
    """One side, of one round or of their median; a unit is a task, a line, a call.

    Attributes:
        rate: units per second.
        cpu_ms: milliseconds of CPU, user and system, that a unit took in all processes that worked on it.
    """

    rate: float
    cpu_ms: float

    def __str__(self) -> str:
        return f"{self.rate} {self.cpu_ms}"

    @classmethod
    def printed(cls, output: str) -> Self:
        """Return the one that another process has printed last."""
        return cls(*map(float, output.split()[-2:]))


class Meter:
    """Adds up the seconds and the CPU of the blocks that it is entered for.

    CPU is that of this process with all its threads, of the children that ended meanwhile with all that they reaped,
    and of `running`, which go on. A server that both sides of a comparison share is not named there, and not counted.

    Args:
        running: ids of processes that work for this side and live on; all below them counts too.
    """

    def __init__(self, *running: int) -> None:
        self.seconds = 0.0
        self.cpu_seconds = 0.0
        self._running = running

    def __enter__(self) -> Self:
        # What finding the running ones takes this process is outside of both readings.
        self.cpu_seconds -= running_cpu(*self._running) + own_cpu()
        self.seconds -= time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds += time.perf_counter()
        self.cpu_seconds += own_cpu() + running_cpu(*self._running)

    def figure(self, count: int) -> Figure:
        """Return what it comes to where so many units were done."""
        return Figure(count / self.seconds, 1e3 * self.cpu_seconds / count)


def own_cpu() -> float:
    """Return the CPU seconds of this process, and of its children that have ended, with what those had reaped."""
    return sum(
        usage.ru_utime + usage.ru_stime
        for usage in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )


def running_cpu(*pids: int) -> float:
    """Return the CPU seconds of processes and of all below them."""
    if not pids:
        return 0.0
    import psutil  # noqa: PLC0415 - the peers have none

    used = 0.0
    for pid in pids:
        root = psutil.Process(pid)
        for process in (root, *root.children(recursive=True)):
            try:
                used += sum(process.cpu_times()[:4])  # user and system, and those of what it has reaped
            except psutil.NoSuchProcess:
                continue  # ended since it was listed: its parent has it
    return used


def live_children() -> list[int]:
    """Return the processes that this one has started and that live."""
    import psutil  # noqa: PLC0415 - as above

    return [child.pid for child in psutil.Process().children()]


def in_turns(rounds: int, sides: Mapping[str, Callable[[int], Figure]]) -> dict[str, list[Figure]]:
    """Measure each side once a round, with the round's number, every second round in the other order."""
    figures: dict[str, list[Figure]] = {name: [] for name in sides}
    for number in range(rounds):
        for name in reversed(figures) if number % 2 else figures:
            figures[name].append(sides[name](number))
    return figures


def median(figures: Sequence[Figure]) -> Figure:
    return Figure(statistics.median(each.rate for each in figures), statistics.median(each.cpu_ms for each in figures))


def compared(what: str, sides: Mapping[str, Sequence[Figure]], unit: str = _PER_SECOND) -> Row:
    """Return the medians of all sides, and the first side as a multiple of each other one, by the clock and by CPU.

    Of rates ("/s") more is better, by CPU too: as many times the units from the same CPU. Of times ("ms") less is.
    """
    medians = {name: median(figures) for name, figures in sides.items()}
    row: Row = {"what": what}
    for name, figure in medians.items():
        value = figure.rate if unit == _PER_SECOND else _A_UNIT[unit] / figure.rate
        row[name] = {unit: value, "ms CPU": figure.cpu_ms}
    (_, ours), *others = medians.items()
    for name, other in others:
        clock, cpu = ours.rate / other.rate, other.cpu_ms / ours.cpu_ms
        row[f"to {name}"] = (
            {"x": clock, "x by CPU": cpu} if unit == _PER_SECOND else {"x": 1 / clock, "x by CPU": 1 / cpu}
        )
    return row


def show(row: Row) -> str:
    """Return a row as a line: what it is of, then each name with its values."""
    (_, what), *rest = row.items()
    return "   ".join([str(what).ljust(46), *(f"{name} {_values(value)}" for name, value in rest)])


def _values(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{_values(each)} {unit}" for unit, each in value.items())
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return str(value)
