"""Claiming tasks: one statement for a batch, which never walks over what other claims have left behind.

A claim makes a dead tuple, and while anyone holds an old snapshot (a dump, a forgotten BEGIN, a replica that reports
back) no vacuum removes it: read from the beginning, the index of what is ready gets slower with each task done. So
each process remembers its floor, the position up to which it has seen all of a rank claimed, and reads from there.

A task can appear below the floor: a push took its position and committed late. Who makes tasks ready notifies
with their lowest position, after the commit, which lowers the floors of all that listen; as a notification can be
lost, a full look from the beginning comes with each new connection, and from time to time.

A rank holds what tasks ask for, too (`jobq.resources.shapes`), so floors are by shape and priority, and a claim goes by
those whose shape fits. Where the queue has shapes, a full look finds its ranks, and the floors are set to that.
"""

import logging
import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID, uuid4

import asyncpg

from jobq.journal.records import this_holder
from jobq.resources.room import ResourceRequest
from jobq.resources.shapes import NO_SHAPE, Choice, priority_of, shape_of
from jobq_postgres import schema
from jobq_postgres.advance import Advanced
from jobq_postgres.claim_sql import (
    CLAIM,
    CLAIM_FITTING,
    CLAIM_FROM_THE_BEGINNING,
    SWEEP,
    SWEPT_AT_ONCE,
    TAKE_AGAIN,
    TAKE_OVER,
)
from jobq_postgres.forgetting import Forgetting
from jobq_postgres.settle import CANCEL_IDLE, LeasedRow
from jobq_postgres.shape_sql import OVERTAKE, WantedShapes, read, ready_ranks

_log: Final = logging.getLogger(__name__)
SWEEP_SECONDS: Final = 1.0  # how late a due or expired task is seen at the latest, while something is asked for
_FULL_LOOK_SECONDS: Final = 5.0
_FULL_SWEEP_SECONDS: Final = 30.0
_CHEAP_SECONDS: Final = 0.005  # a full look that is faster than this needs no restraint
_RESTRAINT: Final = 100.0  # a slower one is taken at most 1 % of the time
_SKEW: Final = timedelta(seconds=5)  # how late a commit may show what was to be due or expire before
_SPARE: Final = 16  # of several shapes, so many more are looked at than are wanted, since others take some
_ASK_AGAIN_SECONDS: Final = 1.0  # the statement may have been held up, and be done yet
_BEGINNING: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Claimer:
    """What one process knows of where the ready tasks of a queue begin; used on one lane.

    Args:
        place: HOST/DATABASE, for messages.
        advance: does a step of what follows from the ends of tasks of batches.
        keep: for how long the journal keeps what has ended; None = there is none.
        most_bytes: how much it may hold.

    Attributes:
        next_due: seconds until the next scheduled task is due, as of the last sweep; infinite for none.
        notes: how often it was notified of tasks.
        is_told: whether there was something left then that follows from the ends of tasks of batches.
    """

    def __init__(
        self,
        place: str,
        advance: Callable[[Any], Awaitable[Advanced]],
        *,
        keep: timedelta | None = None,
        most_bytes: int = 1024**3,
    ) -> None:
        self.next_due = math.inf
        self.is_told = False
        self._advance = advance
        self._outbox_look_after = 0.0  # restraint: who holds an old snapshot keeps there what is dead
        self._forgetting = Forgetting(keep, most_bytes)
        self._holder = None if keep is None else this_holder()
        self._place = place
        self.notes = 0
        self._notes_at_sweep = 0
        self._told: dict[int | None, int] = {}  # by shape, None = all: `notes` when it was notified of it
        self._last = 0  # the last position that was taken, at the last sweep
        self._sent_lease = 0.0
        self._sent: list[UUID] = []  # receipts of a claim that is not answered yet
        self._doubtful: dict[UUID, float] = {}  # receipts of claims without an answer, until when they may be leases
        self._ask_again_at = 0.0
        self.restart()

    def restart(self) -> None:
        """Know nothing: with a new connection, since notifications may have been missed."""
        # Of the queue, as they were last read; a database that was restored meanwhile numbers others so.
        self._shapes: Mapping[int, ResourceRequest] = {NO_SHAPE: ResourceRequest()}
        self._has_more_shapes = False  # it has, or may have
        self._newest_shape = NO_SHAPE  # at the last sweep
        self._floors: dict[int, int] = {}
        self._noted: dict[int, int] = {}  # the lowest positions that were notified since the last statement was sent
        self.note({})
        self._full_look_after = 0.0  # restraint
        self._is_paused = False  # as of the last sweep, the first of which comes before any claim
        self._swept_from = _BEGINNING
        self._full_sweep_due = 0.0
        self._ask_again_at = 0.0

    def note(self, lowest: Mapping[int, int]) -> None:
        """Take in that tasks have become ready: the lowest position by rank; empty = anywhere."""
        self.notes += 1
        if not lowest:
            self._told[None] = self.notes
            self._full_look_due = 0.0
            self._sweep_due = 0.0  # a pause has begun or ended, perhaps
        for rank, position in lowest.items():
            self._floors[rank] = min(position, self._floors.get(rank, position))
            self._noted[rank] = min(position, self._noted.get(rank, position))
            shape = shape_of(rank)
            self._told[shape] = self.notes
            self._has_more_shapes |= shape not in self._shapes

    def has_news(self, wanted: WantedShapes, since: int) -> bool:
        """Return whether some of what is wanted may have become ready.

        Args:
            wanted: what a receive may take.
            since: what `notes` was before the last claim; if it is that still, something else has happened.
        """
        fitting = wanted.of(self._shapes).fitting
        told = [shape for shape, notes in self._told.items() if notes > since]
        return not told or any(shape in fitting or shape not in self._shapes for shape in told)

    async def claim(
        self,
        connection: Any,
        queue: int,
        limit: int,
        lease: timedelta,
        *,
        thorough: bool,
        receipts: Sequence[UUID] = (),
        wanted: WantedShapes | None = None,
    ) -> tuple[list[LeasedRow], dict[int, int]]:
        """Lease up to `limit` tasks.

        Args:
            connection: of asyncpg.
            queue: the queue's number.
            limit: how many at most.
            lease: for how long.
            thorough: finding nothing means that nothing is there, whatever it costs to be sure; otherwise the caller
                looks again soon.
            receipts: to give to them, as many as the limit, by a caller who asks again by itself for what was not
                answered; none = random ones, asked for here.
            wanted: which of them; None = all.

        Returns:
            The tasks, and what became ready on the way, by rank, to notify others of.
        """
        wanted = wanted or WantedShapes()
        if receipts:
            doubted, self._sent = self._sent, list(receipts)
            try:
                return await self._claim(connection, queue, limit, lease, wanted, thorough=thorough)
            finally:
                self._sent = doubted
        # A claim that was not answered may have been done: that it is asked of is exact, since its receipts are ours.
        self._doubtful |= dict.fromkeys(self._sent, time.monotonic() + self._sent_lease)
        if self._doubtful and time.monotonic() >= self._ask_again_at:
            again = await self._take_again(connection, queue, limit, lease)
            if again:
                return again, {}
        self._sent, self._sent_lease = [uuid4() for _ in range(limit)], lease.total_seconds()
        answer = await self._claim(connection, queue, limit, lease, wanted, thorough=thorough)
        self._sent = []
        return answer

    async def take_over(
        self, connection: Any, queue: int, limit: int, lease: timedelta, receipts: Sequence[UUID], former: Sequence[str]
    ) -> list[LeasedRow]:
        """Lease what claims whose receipts begin so still hold; see `jobq.servable.Servable.claim`."""
        rows = await connection.fetch(TAKE_OVER, queue, limit, lease, list(receipts), list(former))
        return [
            LeasedRow(row[0], queue, row[1], row[2], row[3], row[4], row[5], row["cancel_requested"]) for row in rows
        ]

    async def _take_again(self, connection: Any, queue: int, limit: int, lease: timedelta) -> list[LeasedRow]:
        now = time.monotonic()
        self._ask_again_at = now + _ASK_AGAIN_SECONDS
        self._sent = []
        self._doubtful = {receipt: until for receipt, until in self._doubtful.items() if until > now}
        rows = await connection.fetch(TAKE_AGAIN, queue, limit, lease, list(self._doubtful))
        for row in rows:
            del self._doubtful[row["receipt"]]
        return [_leased(queue, row) for row in rows]

    async def _claim(
        self, connection: Any, queue: int, limit: int, lease: timedelta, wanted: WantedShapes, *, thorough: bool
    ) -> tuple[list[LeasedRow], dict[int, int]]:
        sweeps = time.monotonic() >= self._sweep_due
        moved = await self._sweep(connection, queue) if sweeps else {}
        if self._is_paused:
            return [], {}  # whoever ends the pause tells everyone
        looks = time.monotonic() >= max(self._full_look_due, self._full_look_after)
        found = await (self._look_at_all if looks else self._take)(connection, queue, limit, lease, wanted)
        if found:
            return found, moved
        # Before "nothing" is believed: what has become due since the last sweep, and what is below the floors. To be
        # sure of it the sweep begins at the beginning: a commit may show what was due later than any margin foresees.
        was_told = self.is_told
        if (thorough or not sweeps) and (late := await self._sweep(connection, queue, everything=thorough)):
            moved = late | moved  # the lower positions are those of the first
            found = await self._take(connection, queue, limit, lease, wanted)
        # What was left to be done at the end of a batch somebody has done behind this look, and added to the queue.
        looks = looks and not (was_told and not self.is_told) and not self._has_more_shapes
        if not found and not looks and (thorough or time.monotonic() >= self._full_look_after):
            found = await self._look_at_all(connection, queue, limit, lease, wanted)
        return found, moved

    async def _chosen(self, connection: Any, queue: int, wanted: WantedShapes) -> Choice:
        if self._has_more_shapes:
            notes = self.notes
            self._shapes = await read(connection, queue)
            self._has_more_shapes = self.notes != notes
        return wanted.of(self._shapes)

    async def _take(
        self, connection: Any, queue: int, limit: int, lease: timedelta, wanted: WantedShapes
    ) -> list[LeasedRow]:
        choice = await self._chosen(connection, queue, wanted)
        ranks = sorted(rank for rank in self._floors if shape_of(rank) in choice.fitting)
        blocked = [rank for rank in self._floors if shape_of(rank) in choice.blocked]
        shapes = {shape_of(rank) for rank in ranks}
        if blocked or len(shapes) > 1:
            return await self._take_first(connection, queue, limit, lease, choice, [*ranks, *blocked])
        if not ranks:
            return []
        floors = [self._floors[rank] for rank in ranks]
        self._noted = {}
        most = min(limit, choice.fitting[shapes.pop()])
        return self._taken(
            queue, await connection.fetch(CLAIM, queue, most, lease, self._sent, ranks, floors, self._holder)
        )

    async def _take_first(
        self, connection: Any, queue: int, limit: int, lease: timedelta, choice: Choice, ranks: Sequence[int]
    ) -> list[LeasedRow]:
        """Take what comes first of several shapes."""
        shapes = [shape_of(rank) for rank in ranks]
        fits = [choice.fitting.get(shape, 0) for shape in shapes]
        after = timedelta(seconds=choice.overtaken_after)
        limit = min(limit, max(1, *fits))
        looked_at = limit + min(limit, _SPARE)
        while True:
            given = [ranks, [self._floors[rank] for rank in ranks], shapes, fits]
            self._noted = {}
            rows = await connection.fetch(
                CLAIM_FITTING, queue, limit, lease, self._sent, *given, looked_at, after, self._holder
            )
            first = rows[0]
            taken = [row for row in rows if row["seq"] is not None]
            if taken or first["heads"] < looked_at:
                break
            looked_at *= 4  # others hold all of these
        if taken and first["overtaken_seq"] not in (None, taken[0]["seq"]):
            await connection.execute(OVERTAKE, first["overtaken_shape"], first["overtaken_seq"])
        return self._taken(queue, taken)

    async def _look_at_all(
        self, connection: Any, queue: int, limit: int, lease: timedelta, wanted: WantedShapes
    ) -> list[LeasedRow]:
        choice = await self._chosen(connection, queue, wanted)
        has_shapes = len(self._shapes) > 1
        if not choice.fitting and not (has_shapes and choice.blocked):
            return []
        began = time.monotonic()
        self._noted = {}
        self._full_look_due = began + _FULL_LOOK_SECONDS  # unless a note says "anywhere" meanwhile
        if has_shapes:
            found = await ready_ranks(connection, queue, self._shapes)
        else:
            most = min(limit, choice.fitting[NO_SHAPE])
            rows = await connection.fetch(CLAIM_FROM_THE_BEGINNING, queue, most, lease, self._sent, self._holder)
        ended = time.monotonic()
        self._full_look_after = ended + (ended - began) * _RESTRAINT if ended - began > _CHEAP_SECONDS else 0.0
        if has_shapes:
            self._floors = {rank: floor for rank, floor in self._floors.items() if shape_of(rank) not in self._shapes}
            for rank, position in (*found.items(), *self._noted.items()):
                self._floors[rank] = min(position, self._floors.get(rank, position))
            return await self._take(connection, queue, limit, lease, wanted)
        if not rows and self.notes == self._notes_at_sweep:
            # All that had a position at the sweep is claimed, and no one has notified it of a late one since.
            self._floors = {rank: max(floor, self._last + 1) for rank, floor in self._floors.items()}
        return self._taken(queue, rows)

    def _taken(self, queue: int, rows: list[Any]) -> list[LeasedRow]:
        rows.sort(key=lambda row: (-priority_of(row["rank"]), row["position"]))  # RETURNING keeps no order
        for row in rows:
            # What it was notified of since the statement was sent it may not have seen: the floor stays below that.
            rank, above = row["rank"], row["position"] + 1
            self._floors[rank] = min(above, self._noted.get(rank, above))
        return [replace(_leased(queue, row), position=row["position"]) for row in rows]

    async def _sweep(self, connection: Any, queue: int, *, everything: bool = False) -> dict[int, int]:
        """Make ready what is due, and what was leased by someone who let it expire."""
        now = time.monotonic()
        if everything or now >= self._full_sweep_due:
            self._full_sweep_due = now + _FULL_SWEEP_SECONDS
            self._swept_from = _BEGINNING
        self._notes_at_sweep = self.notes
        self._sweep_due = now + SWEEP_SECONDS  # unless a note says "anywhere" meanwhile
        looks = everything or now >= self._outbox_look_after
        rows = await connection.fetch(SWEEP, queue, self._swept_from, looks)
        ended = time.monotonic()
        if self._sweep_due:
            self._sweep_due = ended + SWEEP_SECONDS
        if looks:
            self._outbox_look_after = ended + (ended - now) * _RESTRAINT if ended - now > _CHEAP_SECONDS else 0.0
        first = rows[0]
        schema.check(first["version"], self._place)  # the tables may be made anew under our feet
        self._last = first["last"]
        self._is_paused = bool(first["is_paused"])
        self._has_more_shapes |= first["newest_shape"] not in (None, self._newest_shape)
        self._newest_shape = first["newest_shape"] or NO_SHAPE
        self.next_due = math.inf if first["next_due"] is None else first["next_due"]
        if sum(row["tasks"] or 0 for row in rows) < SWEPT_AT_ONCE:
            self._swept_from = first["at"] - _SKEW
        # A statement of its own: should it not come to it, who claims such a task ends it unstarted.
        is_told = bool(first["is_told"])
        if canceled := [seq for row in rows for seq in row["canceled"] or ()]:
            is_told |= any(row["batch_id"] is not None for row in await connection.fetch(CANCEL_IDLE, canceled))
        moved = {row["rank"]: row["position"] for row in rows if row["rank"] is not None}
        for rank, position in moved.items():
            self._floors[rank] = min(position, self._floors.get(rank, position))
        if looks:
            self.is_told = is_told and await self._act(connection, moved)
        await self._forgetting.step(connection, queue)
        return moved

    async def _act(self, connection: Any, moved: dict[int, int]) -> bool:
        """See to what follows from the ends of tasks of batches; return whether to look for more of it."""
        try:
            done = await self._advance(connection)
        except asyncpg.InsufficientPrivilegeError as error:
            _log.debug("what follows from the ends of tasks is left to others: %s", error)
            return False
        except asyncpg.PostgresError as error:  # a lost connection shows with the next statement
            _log.debug("what follows from the ends of tasks is left to the next sweep: %s", error)
            return True
        for rank, position in done.lowest.items():
            moved[rank] = min(position, moved.get(rank, position))
        return True


def _leased(queue: int, row: Any) -> LeasedRow:
    return LeasedRow(row[0], queue, row[1], row[2], row[3], row[4], row[5], row["cancel_requested"], row["batch_id"])
