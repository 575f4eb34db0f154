"""Dead letters in groups: what they have in common, and choosing some of them by that."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from jobq.batch_ids import IdInBatch
from jobq.cli.display import format_task, terminal
from jobq.journal.error_grouping import checked_grouping, error_of, exit_of, group_of, grouping_of
from jobq.journal.filters import holds, parsed
from jobq.journal.store import MOST_IDS, KeepsJournal

if TYPE_CHECKING:
    from jobq.backend import Backend, DeadLetter

MOST: Final = 100_000  # dead letters that are looked at
FIELDS: Final = ("id", "reason", "exit", "error", "host", "command", "batch")


@dataclass
class _Group:
    """What is shown of one group."""

    facts: dict[str, str]
    ids: list[str] = field(default_factory=list)
    first: float = 0.0
    last: float = 0.0


async def facts_of(backend: "Backend") -> list[tuple["DeadLetter", dict[str, str]]]:
    """Return the dead letters, oldest first, each with what conditions and groups ask for."""
    letters = await backend.dead_letters(MOST)
    if len(letters) == MOST:
        terminal.warn(f"only the oldest {MOST} dead letters are looked at")
    hosts = await _hosts(backend, [letter.id for letter in letters])
    return [
        (
            letter,
            {
                "id": letter.id,
                "reason": letter.reason,
                "exit": exit_of(letter.description),
                "error": error_of(letter.description),
                "host": hosts.get(letter.id, ""),
                "command": format_task.what_runs(letter.body),
                "batch": letter.batch or "",
            },
        )
        for letter in letters
    ]


async def _hosts(backend: "Backend", ids: Sequence[str]) -> dict[str, str]:
    """Return where the last attempts ran, as far as there is a journal that knows."""
    journal = backend.journal if isinstance(backend, KeepsJournal) else None
    found: dict[str, str] = {}
    for start in range(0, len(ids) if journal is not None else 0, MOST_IDS):
        assert journal is not None
        for record in await journal.find(ids[start : start + MOST_IDS]):
            found[record.id] = record.last.host if record.last is not None else ""
    return found


async def put_groups(backend: "Backend", text: str, batch: str | None, *, as_json: bool) -> None:
    """Print the groups of dead letters, of a batch or of all, the largest first."""
    grouping = checked_grouping(text)
    groups: dict[str, _Group] = {}
    for letter, facts in await facts_of(backend):
        if batch not in (None, letter.batch):
            continue
        name = group_of(facts, grouping)
        group = groups.setdefault(name, _Group({key: facts[key] for key in grouping}, first=letter.died))
        group.ids.append(letter.id)
        group.last = letter.died
    for name, group in sorted(groups.items(), key=lambda pair: -len(pair[1].ids)):
        if as_json:
            terminal.put_json(_as_json(name, group))
        else:
            shown = "  ".join(f"{key}={terminal.visible(value) or '-'}" for key, value in group.facts.items())
            terminal.put(f"{len(group.ids):6}  {name}  {shown}")


def _as_json(name: str, group: _Group) -> dict[str, Any]:
    return {
        "group": name,
        "count": len(group.ids),
        **group.facts,
        "first_died": format_task.moment(group.first),
        "last_died": format_task.moment(group.last),
        "example": group.ids[0],
    }


async def chosen(backend: "Backend", where: Sequence[str], group: str | None) -> list[str]:
    """Return the ids of the dead letters for which all conditions hold and that are of a group.

    Raises:
        ConfigurationError: what was asked for is no condition, or no group.
    """
    conditions = parsed(where, FIELDS)
    grouping = None if group is None else grouping_of(group)
    return [
        IdInBatch.of(letter.id, letter.batch, letter.work)
        for letter, facts in await facts_of(backend)
        if holds(conditions, facts) and (grouping is None or group_of(facts, grouping) == group)
    ]
