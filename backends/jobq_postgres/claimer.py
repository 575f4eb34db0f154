"""Claiming tasks: one statement for a batch, which never walks over what other claims have left behind.

A claim makes a dead tuple, and while anyone holds an old snapshot (a dump, a forgotten BEGIN, a replica that reports
back) no vacuum removes it: read from the beginning, the index of what is ready gets slower with each task done. So
each process remembers its floor, the position up to which it has seen all of a rank claimed, and reads from there.

A task can appear below the floor: a push took its position and committed late. Who makes tasks ready notifies
with their lowest position, after the commit, which lowers the floors of all that listen; as a notification can be
lost, a full look from the beginning comes with each new connection, and from time to time.
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

from jobq.errors import StoreUnusable
from jobq.journal.records import this_holder
from jobq_postgres import migrations
from jobq_postgres.advance import Advanced
from jobq_postgres.forgetting import Forgetting
from jobq_postgres.settle import CANCEL_IDLE, LOST, LeasedRow

_log: Final = logging.getLogger(__name__)
SWEEP_SECONDS: Final = 1.0  # how late a due or expired task is seen at the latest, while something is asked for
_FULL_LOOK_SECONDS: Final = 5.0
_FULL_SWEEP_SECONDS: Final = 30.0
_CHEAP_SECONDS: Final = 0.005  # a full look that is faster than this needs no restraint
_RESTRAINT: Final = 100.0  # a slower one is taken at most 1 % of the time
_SKEW: Final = timedelta(seconds=5)  # how late a commit may show what was to be due or expire before
_ASK_AGAIN_SECONDS: Final = 1.0  # the statement may have been held up, and be done yet
_SWEPT_AT_ONCE: Final = 500
_BEGINNING: Final = datetime(1970, 1, 1, tzinfo=UTC)

_TAKE: Final = """
    , numbered AS (SELECT seq, position, row_number() OVER () AS number FROM found)
    UPDATE jobq.task SET position = NULL, receipt = ($4::uuid[])[numbered.number],
        expires_at = clock_timestamp() + $3, deliveries = deliveries + 1,
        started_at = clock_timestamp(), heartbeat_at = NULL, holder = {holder}
    FROM numbered WHERE task.seq = numbered.seq
    RETURNING task.seq, task.id, task.body, task.deliveries, task.checkpoint, task.receipt, task.rank,
        numbered.position, task.cancel_requested, task.batch_id
"""
CLAIM: Final = f"""
    WITH found AS MATERIALIZED (
        SELECT ready.seq, ready.position FROM unnest($5::bigint[], $6::bigint[]) AS floor (rank, position),
        LATERAL (SELECT seq, position FROM jobq.task WHERE queue_id = $1 AND rank = floor.rank
            AND position >= floor.position ORDER BY position LIMIT $2 FOR UPDATE SKIP LOCKED) AS ready
        LIMIT $2)
    {_TAKE.format(holder="$7::text")}
"""  # noqa: S608 - constants of ours, every value is bound; so below
CLAIM_FROM_THE_BEGINNING: Final = f"""
    WITH found AS MATERIALIZED (
        SELECT seq, position FROM jobq.task WHERE queue_id = $1 AND position IS NOT NULL
        ORDER BY rank, position LIMIT $2 FOR UPDATE SKIP LOCKED)
    {_TAKE.format(holder="$5::text")}
"""  # noqa: S608
# What a claim whose answer was lost has taken, for who sent it: the lease is renewed, and counts from now.
TAKE_AGAIN: Final = """
    UPDATE jobq.task SET expires_at = clock_timestamp() + $3 WHERE seq IN (
        SELECT seq FROM jobq.task WHERE queue_id = $1 AND expires_at > statement_timestamp() AND receipt = ANY ($4)
        ORDER BY expires_at LIMIT $2 FOR UPDATE) AND expires_at > clock_timestamp()
    RETURNING seq, id, body, deliveries, checkpoint, receipt, cancel_requested, batch_id
"""
# What a former claim of the service holds, for who lost its answer: with new receipts, so that who still gives back
# what was claimed with the old ones changes nothing (S4).
TAKE_OVER: Final = """
    WITH held AS MATERIALIZED (
        SELECT seq FROM jobq.task WHERE queue_id = $1 AND expires_at > statement_timestamp()
        AND left(replace(receipt::text, '-', ''), 16) = ANY ($5::text[]) ORDER BY seq LIMIT $2 FOR UPDATE),
    numbered AS (SELECT seq, row_number() OVER () AS number FROM held)
    UPDATE jobq.task SET expires_at = clock_timestamp() + $3, receipt = ($4::uuid[])[numbered.number]
    FROM numbered WHERE task.seq = numbered.seq AND task.expires_at > clock_timestamp()
    RETURNING task.seq, task.id, task.body, task.deliveries, task.checkpoint, task.receipt, task.cancel_requested
"""
# Bounded at both ends by times that an index can use; the fence of a settle asks the clock itself.
SWEEP: Final = f"""
    WITH due AS MATERIALIZED (
        SELECT seq FROM jobq.task WHERE queue_id = $1 AND due BETWEEN $2 AND statement_timestamp()
        ORDER BY due LIMIT {_SWEPT_AT_ONCE} FOR UPDATE SKIP LOCKED),
    expired AS MATERIALIZED (
        SELECT seq, queue_id, id, deliveries, started_at, expires_at, holder
        FROM jobq.task WHERE queue_id = $1 AND expires_at BETWEEN $2 AND statement_timestamp()
        ORDER BY expires_at LIMIT {_SWEPT_AT_ONCE} FOR UPDATE SKIP LOCKED),
    lost AS ({LOST} FROM expired WHERE holder IS NOT NULL ON CONFLICT DO NOTHING),
    ready AS (
        UPDATE jobq.task SET position = nextval('jobq.position'), due = NULL, expires_at = NULL, receipt = NULL,
            holder = NULL, beat = NULL
        FROM (SELECT seq FROM due UNION ALL SELECT seq FROM expired) AS found WHERE task.seq = found.seq
        RETURNING task.seq, task.rank, task.position, task.cancel_requested)
    SELECT version.version, statement_timestamp() AS at, (SELECT last_value FROM jobq.position) AS last,
        (SELECT extract(epoch FROM min(due) - statement_timestamp())::float8 FROM jobq.task
            WHERE queue_id = $1 AND due > statement_timestamp()) AS next_due,
        (SELECT paused IS NOT NULL FROM jobq.queue WHERE queue_id = $1) AS is_paused,
        CASE WHEN $3 THEN EXISTS (SELECT FROM jobq.outbox WHERE queue_id = $1) END AS is_told,
        ready.rank, ready.position, ready.tasks, ready.canceled
    FROM jobq.version
    LEFT JOIN (SELECT rank, min(position) AS position, count(*) AS tasks,
        array_agg(seq) FILTER (WHERE cancel_requested) AS canceled FROM ready GROUP BY rank) AS ready ON true
"""  # noqa: S608


class Claimer:
    """What one process knows of where the ready tasks of a queue begin; used on one lane.

    Args:
        place: HOST/DATABASE, for messages.
        advance: does a step of what follows from the ends of tasks of batches.
        keep: for how long the journal keeps what has ended; None = there is none.
        most_bytes: how much it may hold.

    Attributes:
        next_due: seconds until the next scheduled task is due, as of the last sweep; infinite for none.
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
        self._notes = 0  # how often it was notified of tasks; and at the last sweep
        self._notes_at_sweep = 0
        self._last = 0  # the last position that was taken, at the last sweep
        self._full_look_after = 0.0  # restraint
        self._sent_lease = 0.0
        self._sent: list[UUID] = []  # receipts of a claim that is not answered yet
        self._doubtful: dict[UUID, float] = {}  # receipts of claims without an answer, until when they may be leases
        self._ask_again_at = 0.0
        self.restart()

    def restart(self) -> None:
        """Know nothing: with a new connection, since notifications may have been missed."""
        self._floors: dict[int, int] = {}
        self._noted: dict[int, int] = {}  # the lowest positions that were notified since the last statement was sent
        self._notes += 1
        self._full_look_due = 0.0
        self._sweep_due = 0.0
        self._is_paused = False  # as of the last sweep, the first of which comes before any claim
        self._swept_from = _BEGINNING
        self._full_sweep_due = 0.0
        self._ask_again_at = 0.0

    def note(self, lowest: Mapping[int, int]) -> None:
        """Take in that tasks have become ready: the lowest position by rank; empty = anywhere."""
        self._notes += 1
        if not lowest:
            self._full_look_due = 0.0
            self._sweep_due = 0.0  # a pause has begun or ended, perhaps
        for rank, position in lowest.items():
            self._floors[rank] = min(position, self._floors.get(rank, position))
            self._noted[rank] = min(position, self._noted.get(rank, position))

    async def claim(
        self,
        connection: Any,
        queue: int,
        limit: int,
        lease: timedelta,
        *,
        thorough: bool,
        receipts: Sequence[UUID] = (),
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

        Returns:
            The tasks, and what became ready on the way, by rank, to notify others of.
        """
        if receipts:
            doubted, self._sent = self._sent, list(receipts)
            try:
                return await self._claim(connection, queue, limit, lease, thorough=thorough)
            finally:
                self._sent = doubted
        # A claim that was not answered may have been done: that it is asked of is exact, since its receipts are ours.
        self._doubtful |= dict.fromkeys(self._sent, time.monotonic() + self._sent_lease)
        if self._doubtful and time.monotonic() >= self._ask_again_at:
            again = await self._take_again(connection, queue, limit, lease)
            if again:
                return again, {}
        self._sent, self._sent_lease = [uuid4() for _ in range(limit)], lease.total_seconds()
        answer = await self._claim(connection, queue, limit, lease, thorough=thorough)
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
        self, connection: Any, queue: int, limit: int, lease: timedelta, *, thorough: bool
    ) -> tuple[list[LeasedRow], dict[int, int]]:
        sweeps = time.monotonic() >= self._sweep_due
        moved = await self._sweep(connection, queue) if sweeps else {}
        if self._is_paused:
            return [], moved
        looks = not self._floors or time.monotonic() >= max(self._full_look_due, self._full_look_after)
        found = await (self._look_at_all if looks else self._take)(connection, queue, limit, lease)
        if found:
            return found, moved
        # Before "nothing" is believed: what has become due since the last sweep, and what is below the floors. To be
        # sure of it the sweep begins at the beginning: a commit may show what was due later than any margin foresees.
        was_told = self.is_told
        if (thorough or not sweeps) and (late := await self._sweep(connection, queue, everything=thorough)):
            moved = late | moved  # the lower positions are those of the first
            found = await self._take(connection, queue, limit, lease)
        # What was left to be done at the end of a batch somebody has done behind this look, and added to the queue.
        looks = looks and not (was_told and not self.is_told)
        if not found and not looks and (thorough or time.monotonic() >= self._full_look_after):
            found = await self._look_at_all(connection, queue, limit, lease)
        return found, moved

    async def _take(self, connection: Any, queue: int, limit: int, lease: timedelta) -> list[LeasedRow]:
        ranks = sorted(self._floors)
        floors = [self._floors[rank] for rank in ranks]
        self._noted = {}
        return self._taken(
            queue, await connection.fetch(CLAIM, queue, limit, lease, self._sent, ranks, floors, self._holder)
        )

    async def _look_at_all(self, connection: Any, queue: int, limit: int, lease: timedelta) -> list[LeasedRow]:
        began = time.monotonic()
        self._noted = {}
        self._full_look_due = began + _FULL_LOOK_SECONDS  # unless a note says "anywhere" meanwhile
        rows = await connection.fetch(CLAIM_FROM_THE_BEGINNING, queue, limit, lease, self._sent, self._holder)
        ended = time.monotonic()
        self._full_look_after = ended + (ended - began) * _RESTRAINT if ended - began > _CHEAP_SECONDS else 0.0
        if not rows and self._notes == self._notes_at_sweep:
            # All that had a position at the sweep is claimed, and no one has notified it of a late one since.
            self._floors = {rank: max(floor, self._last + 1) for rank, floor in self._floors.items()}
        return self._taken(queue, rows)

    def _taken(self, queue: int, rows: list[Any]) -> list[LeasedRow]:
        rows.sort(key=lambda row: (row["rank"], row["position"]))  # RETURNING keeps no order
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
        self._notes_at_sweep = self._notes
        self._sweep_due = now + SWEEP_SECONDS  # unless a note says "anywhere" meanwhile
        looks = everything or now >= self._outbox_look_after
        rows = await connection.fetch(SWEEP, queue, self._swept_from, looks)
        ended = time.monotonic()
        if self._sweep_due:
            self._sweep_due = ended + SWEEP_SECONDS
        if looks:
            self._outbox_look_after = ended + (ended - now) * _RESTRAINT if ended - now > _CHEAP_SECONDS else 0.0
        first = rows[0]
        if first["version"] != migrations.wanted_version():
            migrations.check(first["version"], self._place)  # migrated under our feet
            raise StoreUnusable(f"{self._place} was migrated")
        self._last = first["last"]
        self._is_paused = bool(first["is_paused"])
        self.next_due = math.inf if first["next_due"] is None else first["next_due"]
        if sum(row["tasks"] or 0 for row in rows) < _SWEPT_AT_ONCE:
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
