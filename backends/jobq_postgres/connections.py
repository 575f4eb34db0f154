"""The connections of one queue handle: one lane to push and look, one to claim, one to renew and settle.

Each is opened when it is first needed: a pusher has one connection, a worker two.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final, TypeVar
from uuid import UUID

from jobq.errors import AnswerLost, BackendUnavailable, JobqError, QueueNotFound, SettlementUnknown
from jobq_postgres import settle
from jobq_postgres.advance import Advanced
from jobq_postgres.advancing import Advancing
from jobq_postgres.claimer import Claimer
from jobq_postgres.errors import NoAnswer
from jobq_postgres.forgetting import ids_kept
from jobq_postgres.group_commit import Group
from jobq_postgres.lane import Lane, Server, Work
from jobq_postgres.push import GroupPush, PushCall
from jobq_postgres.settle import Change, LeasedRow, Ready
from jobq_postgres.shape_sql import WantedShapes

T = TypeVar("T")
_log: Final = logging.getLogger(__name__)
_NOTIFY_SECONDS: Final = 5.0
_MOST_RANKS: Final = 100  # a notification holds 8,000 bytes; an empty one says "look everywhere"
_CLAIM_SECONDS: Final = 15.0
_ADVANCE_SECONDS: Final = 30.0
_HELD_SECONDS: Final = 0.05  # from a renewal that found its row held by another session to the next
_STATEMENTS: Final = {
    "renew": settle.RENEW,
    "checkpoint": settle.CHECKPOINT,
    "complete": settle.COMPLETE,
    "requeue": settle.REQUEUE,
    "dead_letter": settle.BURY,
}
_ENDS: Final = frozenset({"complete", "requeue", "dead_letter"})


class Connections:
    """The lanes of one queue, and the groups that share them.

    Args:
        server: where.
        queue: the queue's number in the database.
        changed: called, on the event loop, when something may have become ready or a connection was lost.
        keep: for how long the journal keeps what has ended; None = there is none.
        most_bytes: how much it may hold.
    """

    def __init__(
        self,
        server: Server,
        queue: int,
        changed: Callable[[], None],
        keep: timedelta | None = None,
        most_bytes: int = 1024**3,
    ) -> None:
        self.queue = queue
        self._changed = changed
        self._advancing = Advancing(queue, self._made_ready)
        self.claimer = Claimer(server.place, self._swept, keep=keep, most_bytes=most_bytes)
        self._pushes = Lane(server, "push")
        self._claims = Lane(server, "claim", on_connected=self._listen, on_lost=changed)
        self._leases = Lane(server, "lease")
        self._to_notify: dict[int, int] = {}
        self._notifying = False  # a job that notifies waits for its turn
        self.pusher = GroupPush(ids_kept(keep))
        self._push = Group[PushCall](self._pushes, self.pusher.push)
        self._verbs = {verb: self._group(verb) for verb in _STATEMENTS}

    @property
    def channel(self) -> str:
        """The channel on which notifications say that tasks have become ready."""
        return f"jobq_{self.queue}"

    async def close(self) -> None:
        """Finish what was handed in, and close all connections."""
        self._advancing.close()
        await asyncio.gather(self._pushes.close(), self._claims.close(), self._leases.close())

    async def push(self, call: PushCall, seconds: float, unknown: Callable[[str], JobqError]) -> None:
        """Add the tasks of one call; raises what `unknown` makes where the answer was lost."""
        self.claimer.note(await self._push.submit(call, seconds=seconds, unknown=unknown))  # the others hear of it
        self._changed()

    async def look(self, work: Work[Any], seconds: float = 60.0) -> Any:
        """Run an administrator's verb; raises AnswerLost."""
        try:
            return await self._pushes.submit(work, seconds=seconds)
        except NoAnswer as error:
            raise AnswerLost(str(error)) from None

    @property
    def is_claiming(self) -> bool:
        """Whether there is a connection that claims."""
        return self._claims.is_connected

    async def beside_claims(self, work: Work[T], seconds: float) -> T:
        """Run a statement or two that find all by a key on the connection that claims; raises NoAnswer."""
        return await self._claims.submit(work, seconds=seconds, gives_up=True)

    async def advance(self, batch: int | None = None) -> None:
        """Do what follows from an end that was told just now, as far as this role may; others do the rest."""
        try:
            done = await self._pushes.submit(
                lambda connection: self._advancing.step(connection, batch), seconds=_ADVANCE_SECONDS
            )
        except (JobqError, NoAnswer) as error:
            _log.debug("what follows from the ends of tasks is left to others: %s", error)
        else:
            if done.goes_on:
                self._advancing.soon(self._pushes)

    def notify(self, lowest: Mapping[int, int]) -> None:
        """Notify everyone who waits of what became ready, by rank."""
        self._notify_later(self._pushes, lowest)

    def claim(
        self,
        limit: int,
        lease: timedelta,
        *,
        thorough: bool,
        receipts: Sequence[UUID] = (),
        wanted: WantedShapes | None = None,
    ) -> "asyncio.Future[list[LeasedRow]]":
        """Claim up to `limit` tasks, see `Claimer.claim`; the future may have NoAnswer."""
        wanted = wanted or WantedShapes()

        async def work(connection: Any) -> list[LeasedRow]:
            found, moved = await self.claimer.claim(
                connection, self.queue, limit, lease, thorough=thorough, receipts=receipts, wanted=wanted
            )
            if wanted.leaves(moved, len(found), limit):
                self._notify_later(self._claims, moved, own=True)
            return found

        return self._claims.submit(work, seconds=_CLAIM_SECONDS)

    def take_over(
        self, limit: int, lease: timedelta, receipts: Sequence[UUID], former: Sequence[str]
    ) -> "asyncio.Future[list[LeasedRow]]":
        """Claim what former claims still hold, see `Claimer.take_over`; the future may have NoAnswer."""
        return self._claims.submit(
            lambda connection: self.claimer.take_over(connection, self.queue, limit, lease, receipts, former),
            seconds=_CLAIM_SECONDS,
        )

    async def run(self, verb: str, change: Change, seconds: float) -> bool:
        """Run a delivery's verb; return whether its task is to be canceled, as far as the verb knows.

        Raises:
            LockLost, SettlementUnknown, BackendUnavailable: see `Delivery`.
        """
        give_up = time.monotonic() + seconds
        while True:
            ready = await self._verbs[verb].submit(change, seconds=seconds, unknown=SettlementUnknown)
            if ready is not settle.PASSED_OVER:
                break
            if time.monotonic() >= give_up:
                raise BackendUnavailable(f"another session holds the row of task {change.row.id}; nothing was changed")
            await asyncio.sleep(_HELD_SECONDS)
        if isinstance(ready, Ready):
            self._notify_later(self._leases, {ready.rank: ready.position})
        return ready is True

    def _group(self, verb: str) -> Group[Change]:
        statement = _STATEMENTS[verb]
        do = settle.renew if verb == "renew" else settle.change

        async def execute(connection: Any, changes: Sequence[Change]) -> list[object]:
            if verb not in _ENDS:
                return await do(connection, statement, changes)
            answers, tells = await settle.settle(connection, statement, changes)
            if tells:
                self._advancing.soon(self._claims)
            return answers

        # A renewal goes before settles, and one that its keeper has given up makes way for the next at once.
        return Group(self._leases, execute, key=lambda change: change.row.seq, early=verb == "renew", gives_up=True)

    async def _swept(self, connection: Any) -> Advanced:
        """Do the step that a sweep has found to do, on the connection that claims."""
        done = await self._advancing.step(connection)
        if done.goes_on:
            self._advancing.soon(self._claims)
        return done

    def look_anew(self) -> None:
        """Take in that a pause has begun or ended: whoever claims next looks first."""
        self.claimer.note({})
        self._changed()

    def _made_ready(self, lowest: Mapping[int, int]) -> None:
        """Take in what a step of `advance` has added, and notified the others of."""
        self.claimer.note(lowest)
        self._changed()

    def _notify_later(self, lane: Lane, lowest: Mapping[int, int], *, own: bool = False) -> None:
        """Note what became ready, wake this process's own waiters, and the others by NOTIFY.

        A statement of its own after the commit: one that notifies holds a lock that all of these wait for until it is
        on disk. A notification that is lost delays a task until others look anyway.
        """
        if not lowest:
            return
        self.claimer.note(lowest)
        if not own:
            self._changed()
        for rank, position in lowest.items():
            self._to_notify[rank] = min(position, self._to_notify.get(rank, position))
        if not self._notifying:
            self._notifying = True
            lane.submit(self._notify, seconds=_NOTIFY_SECONDS, early=True).add_done_callback(self._notified)

    def _notified(self, job: "asyncio.Future[None]") -> None:
        if not job.cancelled() and (error := job.exception()) is not None:
            self._notifying = False  # it may not have begun, for want of a connection: what is left goes with the next
            _log.debug("others were not notified of new tasks, and will look by themselves: %s", error)

    async def _notify(self, connection: Any) -> None:
        self._notifying = False
        lowest, self._to_notify = self._to_notify, {}
        if not lowest:
            return  # another job has notified
        words = [f"{rank}:{position}" for rank, position in lowest.items()]
        await connection.execute(
            "SELECT pg_notify($1, $2)",
            self.channel,
            " ".join(words) if len(words) < _MOST_RANKS else "",
        )

    async def _listen(self, connection: Any) -> None:
        self.claimer.restart()
        await connection.add_listener(self.channel, self._heard)

    def _heard(self, _connection: Any, _pid: int, _channel: str, payload: str) -> None:
        try:
            lowest = {
                int(rank): int(position) for rank, _, position in (word.partition(":") for word in payload.split())
            }
        except ValueError:  # anyone in this database may notify
            lowest = {}
        self.claimer.note(lowest)
        self._changed()


async def queue_number(connection: Any, name: str, place: str) -> int:
    """Return the queue's number; raises QueueNotFound."""
    found = await connection.fetchval("SELECT queue_id FROM jobq.queue WHERE name = $1", name)
    if found is None:
        raise QueueNotFound(
            f"queue {name!r} does not exist in {place}; the first push makes it, or `jobq QUEUE create`"
        )
    return int(found)
