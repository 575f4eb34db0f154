"""Counting dead letters by what they have in common, one after the other, from the newest back."""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from jobq.journal.error_grouping import error_of, exit_of, group_of
from jobq.journal.views import DeadGroup, DeadGroups, SearchedTo

# As `Attempt.encode` writes it: what a task returned comes behind it, and quotes in texts are escaped.
_HOST: Final = re.compile(r'"host": "([^"\\]*)"')
MOST_GROUPED: Final = 20_000  # letters: their last words have to be read and folded one by one

_FACTS: Final[dict[str, Callable[[str, str, str], str]]] = {
    "reason": lambda reason, _, __: reason,
    "exit": lambda _, description, __: exit_of(description),
    "error": lambda _, description, __: error_of(description),
    "host": lambda _, __, host: host,
}


@dataclass
class _Group:
    facts: dict[str, str]
    last: float
    example: str
    first: float = 0.0
    count: int = 0
    hosts: set[str] = field(default_factory=set)


def host_in(record: str | None) -> str:
    """Return the host of an attempt that a store holds; "" = it has no record, or that no host.

    Nothing else of it is wanted, and to decode each takes most of the time of a look.
    """
    if record is None:
        return ""
    found = _HOST.search(record)
    if found is not None and '"value": ' not in record[: found.start()]:
        return found[1]
    return str(json.loads(record).get("host", ""))


class DeadGrouping:
    """The groups so far.

    Args:
        grouping: some of `jobq.journal.error_grouping.GROUPINGS`.

    Attributes:
        looked_at: how many letters were counted.
    """

    def __init__(self, grouping: Sequence[str]) -> None:
        self._grouping = tuple(grouping)
        self._facts = [_FACTS[name] for name in self._grouping]
        self._groups: dict[tuple[str, ...], _Group] = {}
        self._oldest: float | None = None
        self.looked_at = 0

    def add(self, letter_id: str, reason: str, description: str, host: str, died: float) -> None:
        """Count a letter, which died no later than those before.

        Args:
            letter_id: its id.
            reason: why it is dead.
            description: what happened.
            host: of its last attempt; "" = nobody knows.
            died: wall time in seconds since the epoch.
        """
        key = tuple([fact(reason, description, host) for fact in self._facts])
        if (group := self._groups.get(key)) is None:
            group = self._groups[key] = _Group(dict(zip(self._grouping, key, strict=True)), died, letter_id)
        group.count += 1
        group.first = self._oldest = died
        if host:
            group.hosts.add(host)
        self.looked_at += 1

    def groups(self, limit: int, *, is_all: bool) -> DeadGroups:
        """Return the largest ones.

        Args:
            limit: how many.
            is_all: whether all letters were counted.
        """
        found = sorted(self._groups.values(), key=lambda group: -group.count)  # of equal ones the newest first
        return DeadGroups(
            groups=[
                DeadGroup(
                    name=group_of(group.facts, self._grouping),
                    facts=group.facts,
                    count=group.count,
                    hosts=len(group.hosts),
                    first=group.first,
                    last=group.last,
                    example=group.example,
                )
                for group in found[:limit]
            ],
            others=max(0, len(found) - limit),
            searched_to=None if is_all else SearchedTo(looked_at=self.looked_at, at=self._oldest),
        )
