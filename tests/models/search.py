"""Every state of a small model, breadth first, until a rule is broken or nothing is left: no seeds, no luck.

A model says which state is first and which follow; what breaks a rule is shown with the shortest run that leads there.
"""

import time
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Generic, Protocol, TypeVar

StateT = TypeVar("StateT")
PartT = TypeVar("PartT", bound=Hashable)
MOST_STATES: Final = 20_000_000


class Table(Generic[PartT]):
    """Numbers the parts of states in the order in which they are met: states are many, their parts few."""

    def __init__(self) -> None:
        self.all: list[PartT] = []
        self._places: dict[PartT, int] = {}

    def place(self, part: PartT) -> int:
        """Return the number of a part, by which `all` has it."""
        found = self._places.setdefault(part, len(self.all))
        if found == len(self.all):
            self.all.append(part)
        return found


class Model(Protocol[StateT]):
    """What is searched. States are values: equal ones are one, so whatever makes no difference must be the same."""

    def first(self) -> StateT:
        """Return the state that all runs begin with."""
        ...

    def following(self, state: StateT) -> Iterable[tuple[str, StateT]]:
        """Return what can happen, in words, and the state after it; always in the same order."""
        ...

    def broken(self, state: StateT) -> str:
        """Return the rule that a state breaks, and how; "" for none."""
        ...

    def told(self, state: StateT) -> str:
        """Return a state in words."""
        ...


@dataclass(frozen=True)
class Found:
    """What a search came to.

    Attributes:
        states: how many different ones were seen.
        seconds: of wall time.
        broken: the rule that was broken, and how; "" = none was.
        run: the steps to it, each with the state after it.
        is_complete: whether all states were seen.
    """

    states: int
    seconds: float
    broken: str = ""
    run: tuple[str, ...] = ()
    is_complete: bool = True


def search(model: Model[StateT], most: int = MOST_STATES) -> Found:
    """Look at every state, up to about so many."""
    began = time.perf_counter()
    first = model.first()
    came: dict[StateT, StateT | None] = {first: None}
    wave = [first]
    following, broken = model.following, model.broken
    while wave and len(came) < most:
        found: list[StateT] = []
        for state in wave:
            for _, after in following(state):
                if after not in came:
                    came[after] = state
                    found.append(after)
                    if fault := broken(after):
                        run = _run(model, came, after)
                        return Found(len(came), time.perf_counter() - began, fault, run, is_complete=False)
        wave = found
    return Found(len(came), time.perf_counter() - began, is_complete=not wave)


def _run(model: Model[StateT], came: Mapping[StateT, StateT | None], last: StateT) -> tuple[str, ...]:
    steps: list[str] = []
    state = last
    while (before := came[state]) is not None:
        done = next(label for label, after in model.following(before) if after == state)
        steps.append(f"{done}  [{model.told(state)}]")
        state = before
    return tuple(reversed(steps))


@dataclass(frozen=True)
class Case(Generic[StateT]):
    """A model and what a search of it must come to.

    Attributes:
        name: what is searched, in a few words.
        model: that.
        breaks: the rule that must be found broken, as `Model.broken` begins; "" = all must hold.
        least: how many states there must be, so that a model that lost most of its steps does not pass.
        is_long: whether it is left to `make night` and `python -m tests.models`.
    """

    name: str
    model: Model[StateT]
    breaks: str = ""
    least: int = 1
    is_long: bool = False
    most: int = field(default=MOST_STATES)

    def verdict(self, found: Found) -> str:
        """Return what is not as it must be; "" if all is."""
        if self.breaks:
            return (
                ""
                if found.broken.startswith(self.breaks)
                else f"{self.breaks} should be broken: {found.broken or 'it holds'}"
            )
        if found.broken:
            return found.broken
        if not found.is_complete:
            return f"not all states were seen, only {found.states}"
        return "" if found.states >= self.least else f"{found.states} states, {self.least} were expected"
