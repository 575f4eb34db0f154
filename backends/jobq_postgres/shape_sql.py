"""The shapes of a queue as SQL: their numbers at a push, and what a claim may take; see `jobq.resources.shapes`."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from jobq.resources.room import ResourceRequest, Room
from jobq.resources.shapes import (
    MOST_SHAPES,
    NO_SHAPE,
    PRIORITIES,
    RANKS_BITS,
    Choice,
    chosen,
    rank,
    request_of,
    shape_of,
)
from jobq.selecting import WaitingShape

NUMBER: Final = "SELECT request, shape FROM jobq.number_shapes($1, $2, $3)"
SHAPES: Final = "SELECT shape, request FROM jobq.shape WHERE queue_id = $1"
REQUESTS: Final = "SELECT request FROM jobq.shape WHERE queue_id = $1"
_READY: Final = f"""
    jobq.task WHERE queue_id = $1 AND position IS NOT NULL AND rank BETWEEN
    (fit.shape::bigint << {RANKS_BITS}) - {PRIORITIES} AND (fit.shape::bigint << {RANKS_BITS}) + {PRIORITIES}
"""
# The priority of a task, whatever its shape is.
PRIORITY: Final = f"((((rank + {1 << (RANKS_BITS - 1)}) >> {RANKS_BITS}) << {RANKS_BITS}) - rank)"
COUNT_WAITING: Final = f"SELECT fit.shape, (SELECT count(*) FROM {_READY}) FROM unnest($2::bigint[]) AS fit (shape)"  # noqa: S608 - constants of ours, every value is bound; so below
_MOST_RANKS: Final = 1000  # that one look finds; those behind are found when these are empty
# Which ranks are there of some shapes, each with the first position; by as many steps through the index.
READY_RANKS: Final = f"""
    WITH RECURSIVE walked AS (
        SELECT found.*, fit.last FROM unnest($2::bigint[], $3::bigint[]) AS fit (first, last),
        LATERAL (SELECT rank, position FROM jobq.task WHERE queue_id = $1 AND position IS NOT NULL
            AND rank BETWEEN fit.first AND fit.last ORDER BY rank, position LIMIT 1) AS found
        UNION ALL
        SELECT found.*, walked.last FROM walked,
        LATERAL (SELECT rank, position FROM jobq.task WHERE queue_id = $1 AND position IS NOT NULL
            AND rank > walked.rank AND rank <= walked.last ORDER BY rank, position LIMIT 1) AS found)
    SELECT rank, position FROM walked LIMIT {_MOST_RANKS}
"""  # noqa: S608
OVERTAKE: Final = """
    UPDATE jobq.shape SET overtaken_seq = $2, overtaken_since = clock_timestamp()
    WHERE shape = $1 AND overtaken_seq IS DISTINCT FROM $2
"""


def first_of_each(most: str) -> str:
    """Return what is to be read from: the first ready tasks of each shape of the queue $1."""
    return f"""
        (SELECT {NO_SHAPE} AS shape UNION ALL SELECT shape FROM jobq.shape WHERE queue_id = $1) AS fit,
        LATERAL (SELECT seq, rank, position FROM {_READY} ORDER BY rank, position LIMIT {most}) AS ready
    """  # noqa: S608


async def numbers_of(connection: Any, queue: int, texts: Iterable[str]) -> dict[str, int]:
    """Return the numbers of what tasks ask for, made where they are new; without those that would be too many.

    Args:
        connection: in a transaction, until whose end these shapes stay.
        queue: the queue's number.
        texts: of `jobq.resources.shapes.text_of`.
    """
    wanted = [text for text in dict.fromkeys(texts) if text]
    rows = await connection.fetch(NUMBER, queue, wanted, MOST_SHAPES) if wanted else []
    return {"": NO_SHAPE} | {row["request"]: row["shape"] for row in rows}


async def read(connection: Any, queue: int) -> dict[int, ResourceRequest]:
    """Return the shapes of a queue, by number."""
    rows = await connection.fetch(SHAPES, queue)
    return {NO_SHAPE: ResourceRequest()} | {row["shape"]: request_of(row["request"]) for row in rows}


async def waiting(connection: Any, queue: int) -> list[WaitingShape]:
    """Count what waits of each shape."""
    shapes = await read(connection, queue)
    counts = await connection.fetch(COUNT_WAITING, queue, list(shapes))
    return [WaitingShape(request=shapes[shape], count=count) for shape, count in counts if count]


async def ready_ranks(connection: Any, queue: int, shapes: Iterable[int]) -> dict[int, int]:
    """Return the ranks of these shapes that have ready tasks, each with the first position."""
    firsts = [rank(shape, PRIORITIES) for shape in shapes]
    rows = await connection.fetch(READY_RANKS, queue, firsts, [first + 2 * PRIORITIES for first in firsts])
    return {row["rank"]: row["position"] for row in rows}


class WantedShapes:
    """What one receive may take, as the shapes of its queue become known.

    Args:
        room: what there is room for; None = whoever asks looks to it himself.
    """

    def __init__(self, room: Room | None = None) -> None:
        self._room = room
        self._shapes: Mapping[int, ResourceRequest] = {}
        self._choice = Choice({})

    def of(self, shapes: Mapping[int, ResourceRequest]) -> Choice:
        """Return which of these shapes may be taken.

        Args:
            shapes: of the queue; others each time that there are more.
        """
        if shapes is not self._shapes:
            self._shapes, self._choice = shapes, chosen(shapes, self._room)
        return self._choice

    def leaves(self, ready: Iterable[int], taken: int, limit: int) -> bool:
        """Return whether a claim of the latest choice may have left some of what became ready.

        Args:
            ready: the ranks of it.
            taken: how many the claim took.
            limit: how many it was to take at most.
        """
        return any(taken >= min(limit, self._choice.fitting.get(shape_of(each), 0)) for each in ready)
