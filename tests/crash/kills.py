"""SIGKILL at each system call that changes the queue's files: before it is done, or with half of its bytes written."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.crash.subjects import FILE, Subject, emptied
from tests.crash.tracer import WRITES, Act, Call, trace


class Point(NamedTuple):
    """One crash.

    Attributes:
        place: where it was, in words.
        fault: what was wrong with what it left; "" = nothing.
    """

    place: str
    fault: str


def recorded(subject: Subject, folder: Path) -> list[Call]:
    """Return all calls of a run that nothing interrupts, and what it tells."""
    calls: list[Call] = []

    def note(call: Call) -> Act:
        calls.append(call)
        return Act.GO

    subject.prepare(emptied(folder))
    told = trace(subject.work(folder / FILE), folder, note)
    if fault := subject.fault(folder / FILE, len(told), False):
        raise AssertionError(f"{subject.name} goes wrong by itself: {fault}")
    return calls


def points(subject: Subject, folder: Path, every: int = 1) -> Iterator[Point]:
    """Yield what comes of each crash, or of one in so many."""
    calls = [call for call in recorded(subject, folder) if call.name != "told"]
    whole = [(number, Act.KILL) for number in range(len(calls))]
    halves = [(number, Act.HALVE) for number, call in enumerate(calls) if call.name in WRITES and len(call.data) > 1]
    for number, act in (whole + halves)[::every]:
        yield _crashed(subject, emptied(folder), number, act)
    shutil.rmtree(folder)


def _crashed(subject: Subject, folder: Path, number: int, act: Act) -> Point:
    subject.prepare(folder)
    place, seen = "after all", 0

    def strike(call: Call) -> Act:
        nonlocal place, seen
        if call.name == "told":
            return Act.GO
        seen += 1
        if seen <= number:
            return Act.GO
        is_halved = act is Act.HALVE and call.name in WRITES and len(call.data) > 1
        how = "half of" if is_halved else "before"
        place = f"{how} call {number}, {call.name} of {Path(call.path).name} at {call.offset}"
        return Act.HALVE if is_halved else Act.KILL

    told = trace(subject.work(folder / FILE), folder, strike)
    return Point(f"{subject.name}, {place}, {told[-1:]} told", subject.fault(folder / FILE, len(told), False))
