"""Claims of one queue of a service by long polls; what one holds whose answer was lost, the next one asks for."""

import asyncio
import logging
import time
import uuid
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final

from jobq.backend import Capabilities, Delivery
from jobq.errors import ConfigurationError, JobqError
from jobq.journal.wire import body_of
from jobq.pausing import Pause
from jobq.resources.room import Room
from jobq.servable import DATABASE, MOST_CLAIMED, PAGE_BYTES
from jobq.settlement import Release
from jobq_http.connection import HttpConnection, NoAnswer, unavailable
from jobq_http.delivery import ClaimedTask, HttpDelivery
from jobq_http.settle_batcher import SettleBatcher

# Each store that can be served keeps batches.
CAPABILITIES: Final = replace(  # a receipt on the wire does not say where its task waited, which PostgreSQL has to know
    DATABASE, max_lease=timedelta(days=7), batches=True, views=True, whole_views=True, keeps_place=False, selects=False
)
_SELECTING: Final = replace(CAPABILITIES, selects=True)
_NO_ROOM: Final = Room(counts_slots=True)  # for nothing, not even for what asks for nothing
_CLAIM_SECONDS: Final = 15.0  # beside what the claim itself waits
_MOST_WAIT_SECONDS: Final = 20.0  # of one request: proxies give up after 30 or 60
_MOST_FORMER: Final = 16
_LEAVE_SECONDS: Final = 2.0
_log: Final = logging.getLogger(__name__)


class HttpClaims:
    """Claims for one handle.

    Args:
        connection: to the service.
        settles: of the queue.
        queue: its name.

    Attributes:
        paused: the mark that the last claim has met.
    """

    def __init__(self, connection: HttpConnection, settles: SettleBatcher, queue: str) -> None:
        self.paused: Pause | None = None
        self._connection = connection
        self._settles = settles
        self._queue = queue
        # By the keys of claims without an answer: until when their leases may last, and of how many tasks.
        self._former: dict[str, tuple[float, int]] = {}
        self._most = MOST_CLAIMED  # fewer once no answer has come: it may be too large to come in time

    @property
    def capabilities(self) -> Capabilities:
        """What an SQL backend can do; a service that was not asked yet is taken for one that selects."""
        known = self._connection.capabilities
        return _SELECTING if known is None or "selects" in known else CAPABILITIES

    async def receive(
        self, max_tasks: int, lease: timedelta | None, wait: timedelta, room: Room | None = None
    ) -> list[Delivery]:
        """Claim up to `max_tasks`; see `jobq.backend.Backend.receive`.

        Args:
            max_tasks: how many at most.
            lease: for how long; None = as is usual.
            wait: for how long, while there is none.
            room: what fits, where the service selects; None = all does.
        """
        if max_tasks < 1:
            raise ConfigurationError(f"cannot receive {max_tasks} tasks; ask for at least one")
        end = time.monotonic() + wait.total_seconds()
        while True:
            left = max(0.0, end - time.monotonic())
            asked = room if self.capabilities.selects else None
            try:
                found = await self._claim(min(max_tasks, self._most), lease, min(left, _MOST_WAIT_SECONDS), asked)
            except ConfigurationError:
                if asked is None or self.capabilities.selects:
                    raise
                continue  # its answer says that it does not select
            if found or time.monotonic() >= end:
                return found

    async def _claim(self, max_tasks: int, lease: timedelta | None, wait: float, room: Room | None) -> list[Delivery]:
        now = time.monotonic()
        length = lease or CAPABILITIES.default_lease
        self._former = {key: claim for key, claim in self._former.items() if claim[0] > now}
        # One claim alone asks for what a former one holds: two would take it over from each other (S4).
        key, former = str(uuid.uuid4()), {each: self._former.pop(each) for each in list(self._former)[-_MOST_FORMER:]}
        asked: dict[str, Any] = {
            "max_tasks": max_tasks,
            "lease_seconds": length.total_seconds(),
            "wait_seconds": wait,
            "key": key,
            "former": list(former),
            "raw": True,
        }
        if room is not None:
            asked["room"] = room.as_dict()
        held = {**former, key: (now + wait + _CLAIM_SECONDS + length.total_seconds(), max_tasks)}
        try:
            answer = await self._connection.request(
                "POST", "/api/tasks/next", asked, query={"queue": self._queue}, seconds=wait + _CLAIM_SECONDS
            )
        except NoAnswer as error:
            self._most = max(1, max_tasks // 2)
            raise unavailable(error) from None
        else:
            # What the former ones hold is given first, as far as it fits.
            size = sum(len(body_of(each)) for each in answer["tasks"])
            held = former if len(answer["tasks"]) == max_tasks or size >= PAGE_BYTES else {}
        finally:  # without an answer it may have claimed: also where the call was cancelled
            self._former |= held
        self.paused = mark_in(answer)
        found = [_claimed(each) for each in answer["tasks"]]
        if len(found) == self._most:
            self._most = min(MOST_CLAIMED, self._most + 1)
        return [
            HttpDelivery(
                self._connection, self._settles, self._queue, each, timedelta(seconds=float(task["lease_seconds"]))
            )
            for each, task in zip(found, answer["tasks"], strict=True)
        ]

    async def give_back(self) -> None:
        """Put back what a poll holds that was given up, or would claim yet: a proxy may not pass on that (S7)."""
        count = sum(count for until, count in self._former.values() if until > time.monotonic())
        if not count:
            return
        try:
            async with asyncio.timeout(_LEAVE_SECONDS):
                asked = _NO_ROOM if self.capabilities.selects else None
                found = await self._claim(min(count, MOST_CLAIMED), None, 0.0, asked)
                await asyncio.gather(*(held.settle(Release()) for held in found))
        except (JobqError, TimeoutError) as error:
            _log.debug("what a poll holds that was given up comes with its lease: %r", error)


def _claimed(fields: dict[str, Any]) -> ClaimedTask:
    return ClaimedTask(
        id=fields["id"],
        body=body_of(fields),
        deliveries=fields["deliveries"],
        checkpoint=fields["checkpoint"],
        receipt=fields["receipt"],
    )


def mark_in(answer: dict[str, Any]) -> Pause | None:
    """Return the mark of a pause that an answer has."""
    mark = answer.get("paused")
    return None if mark is None else Pause(**{name: mark[name] for name in ("at", "by", "reason")})
