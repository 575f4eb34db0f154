"""What the tasks wrote about themselves, read in one pass."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple, Self

from tests.chaos.store_truth import Attempt


class Line(NamedTuple):
    """One line of a history; `at` is boottime in seconds, `keeper` the number of the guardian."""

    task: str
    token: str
    pid: int
    at: float
    what: str
    keeper: int

    @property
    def attempt(self) -> Attempt:
        """The delivery: the last part of the fencing token is its number."""
        return Attempt(self.task, int(self.token.rpartition(".")[2]))


@dataclass
class Life:
    """One attempt as its own processes wrote it: surely alive from `first` to `last`; `has_ended` = by itself."""

    attempt: Attempt
    keeper: int
    first: float
    last: float
    has_ended: bool = False
    starts: list[Line] = field(default_factory=list)
    tokens: set[str] = field(default_factory=set)
    pids: dict[int, float] = field(default_factory=dict)

    @property
    def fencing(self) -> tuple[int, ...]:
        """Its fencing number, which compares part by part."""
        return tuple(int(part) for part in min(self.tokens).split("."))


@dataclass
class History:
    """All lives of a campaign.

    Attributes:
        lives: by attempt.
        spoilt: lines that cannot be right: torn, or of a process whose clock went back.
    """

    lives: dict[Attempt, Life] = field(default_factory=dict)
    spoilt: list[str] = field(default_factory=list)

    @classmethod
    def read(cls, lines: Iterable[str]) -> Self:
        """Read what was written, in the order in which it was."""
        history = cls()
        for text in lines:
            try:
                task, token, pid, at, what, keeper = text.split(" ")
                history.add(Line(task, token, int(pid), int(at) / 1e9, what, int(keeper)))
            except ValueError:
                history.spoilt.append(text.rstrip("\n"))
        return history

    def add(self, line: Line) -> None:
        """Add one line."""
        life = self.lives.get(line.attempt)
        if life is None:
            life = self.lives[line.attempt] = Life(line.attempt, line.keeper, line.at, line.at)
        if life.pids.get(line.pid, line.at) > line.at:
            self.spoilt.append(f"{line.attempt}: process {line.pid} wrote {line.at} after {life.pids[line.pid]}")
        life.first, life.last = min(life.first, line.at), max(life.last, line.at)
        life.tokens.add(line.token)
        life.pids[line.pid] = line.at
        life.has_ended |= line.what == "end"
        if line.what == "start":
            life.starts.append(line)
