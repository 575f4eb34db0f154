"""The shapes of a queue as SQL: their numbers at a push, and which a claim may take; see `jobq.resources.shapes`."""

import json
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from jobq.resources.room import ResourceRequest, Room
from jobq.resources.shapes import (
    MOST_SHAPES,
    NO_SHAPE,
    PRIORITIES,
    RANKS_BITS,
    Choice,
    chosen,
    request_of,
    too_many,
)
from jobq.selecting import WaitingShape

_OF_SHAPE: Final = (
    f"queue_id = :queue AND state = 'ready' AND priority BETWEEN -(fit.value << {RANKS_BITS}) - {PRIORITIES}"
    f" AND -(fit.value << {RANKS_BITS}) + {PRIORITIES}"
)
# The priority of a task, whatever its shape is.
PRIORITY: Final = f"(priority + ((({1 << (RANKS_BITS - 1)} - priority) >> {RANKS_BITS}) << {RANKS_BITS}))"
# The first tasks of each shape.
FIRST_OF_EACH: Final = f"SELECT seq FROM task WHERE {_OF_SHAPE} ORDER BY priority DESC, available_at, seq LIMIT :limit"  # noqa: S608 - constants of ours, every value is bound; so below
# Of each shape as many as are wanted, by the index; then these by their order, which is that of what asks for nothing.
CLAIM_FITTING: Final = f"""
    SELECT seq, task.id, body, deliveries, checkpoint, cancel_requested, fit.value FROM json_each(:shapes) AS fit
    CROSS JOIN task ON seq IN ({FIRST_OF_EACH}) ORDER BY {PRIORITY} DESC, available_at, seq LIMIT :limit
"""  # noqa: S608
HAS_FITTING: Final = (
    f"SELECT EXISTS (SELECT 1 FROM json_each(:shapes) AS fit WHERE EXISTS (SELECT 1 FROM task WHERE {_OF_SHAPE}))"  # noqa: S608
)
COUNT_WAITING: Final = f"SELECT fit.value, (SELECT count(*) FROM task WHERE {_OF_SHAPE}) FROM json_each(:shapes) AS fit"  # noqa: S608
_SHAPES: Final = "SELECT shape, request FROM shape WHERE queue_id = ?"
_IN_USE: Final = (
    f"SELECT DISTINCT ({1 << (RANKS_BITS - 1)} - priority) >> {RANKS_BITS} FROM task"  # noqa: S608
    " WHERE queue_id = ? AND state != 'done'"
)
_IS_OVERTAKEN: Final = "SELECT overtaken_seq = ? AND overtaken_since <= ? FROM shape WHERE shape = ?"
_OVERTAKE: Final = "UPDATE shape SET overtaken_seq = ?, overtaken_since = ? WHERE shape = ? AND overtaken_seq IS NOT ?"


def numbers_of(
    database: sqlite3.Connection, queue: int, texts: Iterable[str], *, refuses: bool = True
) -> dict[str, int]:
    """Return the numbers of what tasks ask for, made where they are new.

    Args:
        database: in a transaction.
        queue: the queue's number.
        texts: of `jobq.resources.shapes.text_of`.
        refuses: whether too many are an error; else what asks for one more is handed out as what asks for nothing, and
            put back by who cannot run it.

    Raises:
        ConfigurationError: there would be too many.
    """
    wanted = set(texts) - {""}
    numbers = {"": NO_SHAPE}
    if not wanted:
        return numbers
    known = {request: shape for shape, request in database.execute(_SHAPES, (queue,))}
    new = sorted(wanted - known.keys())
    if len(known) + len(new) > MOST_SHAPES:
        used = {shape for (shape,) in database.execute(_IN_USE, (queue,))}
        gone = {request: shape for request, shape in known.items() if shape not in used and request not in wanted}
        database.executemany("DELETE FROM shape WHERE shape = ?", [(shape,) for shape in gone.values()])
        known = {request: shape for request, shape in known.items() if request not in gone}
        if len(known) + len(new) > MOST_SHAPES:
            if refuses:
                raise too_many(known.keys() | wanted)
            new = []
    for request in new:
        inserted = database.execute("INSERT INTO shape (queue_id, request) VALUES (?, ?)", (queue, request))
        assert inserted.lastrowid is not None
        known[request] = inserted.lastrowid
    if new:
        database.execute("UPDATE queue SET newest_shape = ? WHERE queue_id = ?", (max(known.values()), queue))
    return numbers | {request: known.get(request, NO_SHAPE) for request in wanted}


def shapes_of(database: sqlite3.Connection, queue: int) -> dict[int, ResourceRequest]:
    """Return the shapes of a queue, by number."""
    rows = database.execute(_SHAPES, (queue,))
    return {NO_SHAPE: ResourceRequest()} | {shape: request_of(request) for shape, request in rows}


class KnownShapes:
    """The shapes of one queue, read anew when there are more."""

    def __init__(self) -> None:
        self._of: tuple[int, int] = 0, NO_SHAPE
        self._shapes: Mapping[int, ResourceRequest] = {NO_SHAPE: ResourceRequest()}

    def read(self, database: sqlite3.Connection, queue: int, newest: int) -> Mapping[int, ResourceRequest]:
        """Return them.

        Args:
            database: in a transaction.
            queue: the queue's number.
            newest: its newest shape.
        """
        if newest != NO_SHAPE and self._of != (queue, newest):
            self._shapes = shapes_of(database, queue)
            self._of = queue, newest
        return self._shapes

    def forget(self) -> None:
        """Read them anew: the transaction that they were read in may never have been, and others get their numbers."""
        self._of = 0, NO_SHAPE


class ShapeChooser:
    """Decides which shapes of a queue one receive may take.

    Args:
        room: what there is room for; None = whoever asks looks to it himself.
        known: what is known of the queue's shapes.
    """

    def __init__(self, room: Room | None, known: KnownShapes) -> None:
        self._room = room
        self._known = known
        self._newest = NO_SHAPE
        self._choice: Choice | None = None

    def choice(self, database: sqlite3.Connection, queue: int, newest: int) -> Choice | None:
        """Return what may be taken; None = what comes first, whatever it is.

        Args:
            database: in a transaction.
            queue: the queue's number.
            newest: its newest shape.
        """
        if newest == NO_SHAPE and (self._room is None or self._room.takes_plain):
            return None
        if self._choice is None or self._newest != newest:
            self._newest, self._choice = newest, chosen(self._known.read(database, queue, newest), self._room)
        return self._choice


def has_fitting(database: sqlite3.Connection, queue: int, choice: Choice) -> bool:
    """Return whether something waits that may be taken."""
    shapes = json.dumps([*choice.fitting])
    return bool(database.execute(HAS_FITTING, {"queue": queue, "shapes": shapes}).fetchone()[0])


def claim_fitting(
    database: sqlite3.Connection, queue: int, choice: Choice, limit: int, wall: float
) -> Sequence[tuple[Any, ...]]:
    """Return the rows to lease: what fits, or one that has been overtaken for too long.

    Args:
        database: in a transaction.
        queue: the queue's number.
        choice: what may be taken.
        limit: how many at most.
        wall: the time.
    """
    if choice.blocked:
        first = _first(database, queue, (*choice.fitting, *choice.blocked), 1)
        if first and first[0][-1] in choice.blocked and _is_overtaken(database, first[0], choice, wall):
            return [first[0][:-1]]
    found = _first(database, queue, choice.fitting, limit)
    return [row[:-1] for row in found[: choice.together(row[-1] for row in found)]]


def waiting(database: sqlite3.Connection, queue: int) -> list[WaitingShape]:
    """Count what waits of each shape."""
    shapes = shapes_of(database, queue)
    counts = database.execute(COUNT_WAITING, {"queue": queue, "shapes": json.dumps([*shapes])})
    return [WaitingShape(request=shapes[shape], count=count) for shape, count in counts if count]


def _first(database: sqlite3.Connection, queue: int, shapes: Iterable[int], limit: int) -> list[tuple[Any, ...]]:
    values = {"queue": queue, "shapes": json.dumps([*shapes]), "limit": limit}
    return database.execute(CLAIM_FITTING, values).fetchall()


def _is_overtaken(database: sqlite3.Connection, first: tuple[Any, ...], choice: Choice, wall: float) -> bool:
    """Return whether the first one has been overtaken for as long as it has to be, and note that it is now."""
    seq, shape = first[0], first[-1]
    database.execute(_OVERTAKE, (seq, wall, shape, seq))
    found = database.execute(_IS_OVERTAKEN, (seq, wall - choice.overtaken_after, shape)).fetchone()
    return found is not None and bool(found[0])  # what asks for nothing has no row
