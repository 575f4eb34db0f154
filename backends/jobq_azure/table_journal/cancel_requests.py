"""Requests that tasks end: recorded in a partition of their own, and looked at by workers, all in one request.

A worker looks before it starts what it has received, and once in each renewal period while it runs something. A table
that is away holds up nothing: tasks run on, and their requests are read when it is back.
"""

import asyncio
import logging
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Final, NamedTuple, Protocol

from jobq.errors import JobqError
from jobq_azure.common.errors import NoAnswer
from jobq_azure.table_journal import entities as rows
from jobq_azure.table_journal.client import Row, TableWire, Verb, Write
from jobq_azure.table_journal.errors import WriteRefused

_BEFORE_START_SECONDS: Final = 1.0  # a look before a start, at most; and a share of the lease
_BEFORE_START_SHARE: Final = 1 / 4  # then the keeper renews once before the start (rules.md 1.3, rule 5)
_AGAIN_SECONDS: Final = 15.0  # a table that did not answer holds up no start for so long
_PERIOD_SHARE: Final = 1 / 4  # of a lease: as often as it is renewed
_ASKED_AT_ONCE: Final = 32
_log: Final = logging.getLogger(__name__)


class Stoppable(Protocol):
    """A delivery that may be canceled."""

    @property
    def id(self) -> str:
        """The task's id."""
        ...

    @property
    def born(self) -> str:
        """What distinguishes the task from another of this id; "" = unknown."""
        ...

    @property
    def lease_seconds(self) -> float:
        """How long its lease is."""
        ...

    def is_open(self) -> bool:
        """Whether it may still run."""
        ...

    def cancel(self) -> None:
        """Take in that somebody wants the task to end: its next renewal says so."""
        ...


class CancelRequest(NamedTuple):
    """That a task ends.

    Attributes:
        at: when it was recorded, seconds since 1970.
        born: what distinguishes the task from another that had its id before, or gets it later; "" = unknown.
    """

    at: float
    born: str


def is_meant(request: CancelRequest | None, born: str) -> bool:
    """Return whether a request (None = there is none) is about a task, not about one that got its id later (S11).

    A push that is repeated may name another birth than that of the task which the queue has: so all are meant that
    there were.
    """
    if request is None or not request.born or not born or request.born == born:
        return request is not None
    try:
        return float(born) <= request.at
    except ValueError:  # who may write there may write anything
        return True


class CancelRequests:
    """The cancel requests of one queue.

    Args:
        wire: to the table.
    """

    def __init__(self, wire: TableWire) -> None:
        self._wire = wire
        self._partition = rows.cancel_requests_of(wire.place.queue)
        self._open: set[Stoppable] = set()
        self._some = asyncio.Event()
        self._away_until = 0.0  # by the monotonic clock
        self._loop: asyncio.Task[None] | None = None

    async def record(self, born: Mapping[str, str]) -> None:
        """Record that tasks are to end, at most 100; repeating it is safe.

        Args:
            born: by id what distinguishes each task from one that had its id before, or gets it later; "" = unknown.
        """
        now = time.time()
        writes = [
            Write(Verb.REPLACE, rows.cancel_request_key(id_), {"At": now, "Born": each}) for id_, each in born.items()
        ]
        await self._wire.write(self._partition, writes)

    async def forget(self, ids: Iterable[str]) -> None:
        """Delete the cancel requests of some tasks, of an attempt that is over; repeating it is safe."""
        for id_ in await self.among(ids):
            with suppress(WriteRefused):  # it has gone meanwhile
                await self._wire.write(self._partition, [Write(Verb.DELETE, rows.cancel_request_key(id_), {})])

    async def among(self, ids: Iterable[str]) -> dict[str, CancelRequest]:
        """Return the cancel requests by id; one request for up to a thousand."""
        keys = {rows.cancel_request_key(id_): id_ for id_ in ids}
        first, end = rows.below("w")
        found, more = await self._wire.look(self._partition, first, end, select="At,Born")
        known = {row["RowKey"]: _request_of(row) for row in found}
        if more is not None:
            last = found[-1]["RowKey"] if found else ""
            turn = asyncio.Semaphore(_ASKED_AT_ONCE)

            async def ask(key: str) -> None:
                async with turn:
                    if (row := await self._wire.get(self._partition, key)) is not None:
                        known[key] = _request_of(row)

            await asyncio.gather(*(ask(key) for key in keys if key > last))
        return {id_: known[key] for key, id_ in keys.items() if key in known}

    async def hear(self, deliveries: Sequence[Stoppable]) -> None:
        """Cancel those of the deliveries received just now that somebody wants to end; watch the others."""
        self._watch(deliveries)
        if not deliveries or time.monotonic() < self._away_until:
            return
        seconds = min(_BEFORE_START_SECONDS, _BEFORE_START_SHARE * min(each.lease_seconds for each in deliveries))
        try:
            async with asyncio.timeout(seconds):
                await self._cancel_requested(deliveries)
            self._away_until = 0.0
        except (JobqError, NoAnswer, TimeoutError) as error:
            self._is_away(error)

    def _watch(self, deliveries: Sequence[Stoppable]) -> None:
        self._open.update(deliveries)
        if self._loop is None:
            self._loop = asyncio.create_task(self._look_for_ever(), name="cancel requests")
        self._some.set()

    async def _look_for_ever(self) -> None:
        while True:
            self._open = {each for each in self._open if each.is_open()}
            if not self._open:
                self._some.clear()
                await self._some.wait()
            await asyncio.sleep(_PERIOD_SHARE * min(each.lease_seconds for each in self._open))
            self._open = {each for each in self._open if each.is_open()}
            if not self._open:
                continue
            try:
                await self._cancel_requested(self._open)
                self._away_until = 0.0
            except (JobqError, NoAnswer) as error:
                self._is_away(error)

    async def _cancel_requested(self, deliveries: Iterable[Stoppable]) -> None:
        open_ = list(deliveries)
        requests = await self.among({each.id for each in open_})
        for each in open_:  # of one id there may be several
            if is_meant(requests.get(each.id), each.born):
                each.cancel()

    def _is_away(self, error: Exception) -> None:
        if not self._away_until:
            _log.warning("cancel requests cannot be read, and the tasks run on: %s", str(error) or "no answer in time")
        self._away_until = time.monotonic() + _AGAIN_SECONDS

    async def aclose(self) -> None:
        """Look no more."""
        if self._loop is not None:
            self._loop.cancel()
            await asyncio.wait({self._loop})


def _request_of(row: Row) -> CancelRequest:
    try:
        at = float(row["At"])
    except (LookupError, ValueError, TypeError):  # who may write there may write anything
        at = math.inf
    return CancelRequest(at, str(row.get("Born") or ""))
