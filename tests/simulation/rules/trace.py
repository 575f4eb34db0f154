"""What happened in one run, a line a change, with its digest; and what was broken."""

import hashlib
from collections import Counter
from dataclasses import dataclass

from tests.simulation.loop import Loop


@dataclass(frozen=True)
class Violation:
    """A rule that was broken.

    Attributes:
        rule: its id in rules.md.
        text: what happened, to which task, and when.
    """

    rule: str
    text: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.text}"


class Trace:
    """Takes notes of one run.

    Args:
        loop: gives the time.
        keeps_lines: whether the lines are kept, beside their digest.

    Attributes:
        lines: what was kept.
        violations: in their order.
        counts: how often each thing happened, by name.
        checks: how often a rule was looked at.
    """

    def __init__(self, loop: Loop, *, keeps_lines: bool = False) -> None:
        self.lines: list[str] = []
        self.violations: list[Violation] = []
        self.counts: Counter[str] = Counter()
        self.checks = 0
        self._loop = loop
        self._keeps_lines = keeps_lines
        self._digest = hashlib.blake2b(digest_size=16)

    @property
    def digest(self) -> str:
        """Of all lines so far: equal for two runs that went alike."""
        return self._digest.hexdigest()

    def note(self, *words: object) -> None:
        """Write a line."""
        line = f"{self._loop.now:.6f} " + " ".join(map(str, words))
        self._digest.update(line.encode() + b"\n")
        if self._keeps_lines:
            self.lines.append(line)

    def broken(self, rule: str, text: str) -> None:
        """Note a violation."""
        violation = Violation(rule, f"{text} (at {self._loop.now:.3f} s)")
        self.note("VIOLATION", violation)
        self.violations.append(violation)
