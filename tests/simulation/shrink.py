"""Makes a failing run smaller: leaves out blows for as long as the same rule is broken."""

from collections.abc import Callable
from dataclasses import dataclass

from tests.simulation.rules.trace import Violation


@dataclass(frozen=True)
class Shrunk:
    """What is left of a run.

    Attributes:
        skip: numbers of the blows that it does without.
        kept: those that it needs.
        violation: what it still breaks.
    """

    skip: frozenset[int]
    kept: tuple[int, ...]
    violation: Violation


def shrink(blows: int, found: Violation, run: Callable[[frozenset[int]], Violation | None]) -> Shrunk:
    """Return the smallest run that halving finds: halves of the blows, then quarters, and so on down to single ones.

    Args:
        blows: how many fell in the run.
        found: what it broke.
        run: runs it without some blows, and returns what it broke first.
    """
    skip: frozenset[int] = frozenset()
    width = max(1, blows // 2)
    while True:
        for first in range(1, blows + 1, width):
            some = frozenset(range(first, min(first + width, blows + 1))) - skip
            broken = run(skip | some) if some else None
            if broken is not None and broken.rule == found.rule:
                skip, found = skip | some, broken
        if width == 1:
            return Shrunk(skip, tuple(sorted(set(range(1, blows + 1)) - skip)), found)
        width //= 2
