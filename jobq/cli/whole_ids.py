"""Ids as people give them: whole, or in part, such as the end that logs and the live view show.

What changes something takes the end alone, as it is shown, of ids that a push has made: a name that somebody chose, and
whose task is gone, must not be taken for a part of another's; four digits of a name are in some of 3,000 ids.
"""

import re
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import TYPE_CHECKING, Final

import click

from jobq.cli.display import terminal
from jobq.formats.task_ids import OF_PUSH

if TYPE_CHECKING:
    from jobq.backend import Backend

_END_OF_PUSH: Final = re.compile(r"[0-9a-f-]{8,}")  # as long as what is shown of one
_LEAST_CHARACTERS: Final = 4  # fewer are in some id by chance
_MOST_LETTERS: Final = 10_000  # dead letters that are looked at
_LISTED: Final = 10


async def of_tasks(backend: "Backend", ids: Sequence[str], *, changes: bool = False) -> list[str]:
    """Return the whole ids of tasks that the journal knows; one that is no part of any stays as it was given.

    Args:
        backend: of the queue.
        ids: whole, or in part.
        changes: whether something is to be changed.

    Raises:
        UsageError: one is a part of several ids, which it lists.
        ConfigurationError: the queue keeps no journal.
    """
    from jobq.journal.store import MOST_IDS, journal_of  # noqa: PLC0415 - --help must not pay for it

    journal = journal_of(backend)
    parts = [id_ for id_ in ids if _may_be_part(id_, changes=changes)]
    known = set[str]()
    for start in range(0, len(parts), MOST_IDS):
        known |= {record.id for record in await journal.find(parts[start : start + MOST_IDS])}
    return await _whole(ids, known, journal.ids_with, changes=changes)


async def of_dead_letters(backend: "Backend", ids: Sequence[str], *, changes: bool = False) -> list[str]:
    """Return the whole ids of dead letters, of which the oldest 10,000 are looked at; see `of_tasks`."""
    if not any(_may_be_part(id_, changes=changes) for id_ in ids):
        return list(ids)
    known = dict.fromkeys(letter.id for letter in await backend.dead_letters(_MOST_LETTERS))

    async def ids_with(part: str, limit: int) -> list[str]:
        return [id_ for id_ in known if part in id_][:limit]

    return await _whole(ids, known, ids_with, changes=changes)


async def _whole(
    ids: Sequence[str],
    known: Collection[str],
    ids_with: Callable[[str, int], Awaitable[list[str]]],
    *,
    changes: bool,
) -> list[str]:
    found: list[str] = []
    for id_ in ids:
        is_whole = id_ in known or not _may_be_part(id_, changes=changes)
        meant = [id_] if is_whole else await ids_with(id_, _LISTED + 1)
        meant = sorted(
            each for each in meant if not changes or each == id_ or (is_of_push(each) and each.endswith(id_))
        )
        if len(meant) > 1:
            more = ", ..." if len(meant) > _LISTED else ""
            raise click.UsageError(f"{id_} is a part of several ids: {', '.join(meant[:_LISTED])}{more}")
        if meant not in ([], [id_]):
            terminal.say(f"{id_} is {meant[0]}")
        found += meant or [id_]
    return found


def is_of_push(id_: str) -> bool:
    """Return whether an id is one as a push makes them: whole, and not somebody's own name for a task."""
    return OF_PUSH.fullmatch(id_) is not None


def _may_be_part(id_: str, *, changes: bool) -> bool:
    is_part = len(id_) >= _LEAST_CHARACTERS and not is_of_push(id_)
    return is_part and (not changes or _END_OF_PUSH.fullmatch(id_) is not None)
