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
from typing import Final, NamedTuple, Protocol, Self

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
    def birth(self) -> int:
        """Which life of its id it is; 0 = the task does not say."""
        ...

    @property
    def lease_seconds(self) -> float:
        """How long its lease is."""
        ...

    def is_open(self) -> bool:
        """Whether it may still run."""
        ...

    def cancel(self, request: "CancelRequest") -> None:
        """Take in that somebody wants the task to end: its next renewal says so."""
        ...


class CancelRequest(NamedTuple):
    """That a task ends.

    Attributes:
        row: its key.
        at: when it was recorded, seconds since 1970.
        birth: of the life that is meant; None = any that the id had then.
        etag: of the row.
    """

    row: str
    at: float
    birth: int | None
    etag: str = ""

    @classmethod
    def of(cls, task_id: str, birth: int | None, *, at: float) -> Self:
        """Return one that is made at this time."""
        return cls(rows.cancel_request_key(task_id, birth), at, birth)


def meant(requests: Iterable[CancelRequest], birth: int) -> CancelRequest | None:
    """Return the request that is about a life, not about another that has the id, or gets it later (S11)."""
    return next((each for each in requests if _is_meant(each, birth)), None)


def _is_meant(request: CancelRequest, birth: int) -> bool:
    if request.birth is None:
        return birth <= request.at * rows.MICROSECONDS
    return request.birth == birth


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

    async def record(self, requests: Iterable[CancelRequest]) -> None:
        """Record that tasks are to end, at most 100; repeating it is safe."""
        writes = [
            Write(Verb.REPLACE, each.row, {"At": each.at}) for each in {each.row: each for each in requests}.values()
        ]
        await self._wire.write(self._partition, writes)

    async def forget(self, requests: Iterable[CancelRequest]) -> None:
        """Delete cancel requests, of an attempt that is over; repeating it is safe."""
        for each in requests:
            with suppress(WriteRefused):  # it has gone meanwhile
                await self._wire.write(self._partition, [Write(Verb.DELETE, each.row, {}, each.etag)])

    async def among(self, ids: Iterable[str]) -> dict[str, list[CancelRequest]]:
        """Return the cancel requests by id; one request for up to a thousand."""
        wanted = set(ids)
        first, end = rows.below("w")
        found, more = await self._look(first, end)
        known = {row["RowKey"]: row for row in found}
        if more is not None:
            last = found[-1]["RowKey"] if found else ""
            turn = asyncio.Semaphore(_ASKED_AT_ONCE)

            async def ask(id_: str) -> None:
                async with turn:
                    known.update(
                        {row["RowKey"]: row for row in (await self._look(*rows.lives(rows.safe(id_), "w")))[0]}
                    )

            await asyncio.gather(*(ask(id_) for id_ in wanted if rows.lives(rows.safe(id_), "w")[1] > last))
        requests: dict[str, list[CancelRequest]] = {}
        for key, row in known.items():
            requests.setdefault(key.split("!")[1], []).append(request_of(row))
        return {id_: requests.get(rows.safe(id_), []) for id_ in wanted}

    async def _look(self, first: str, end: str) -> tuple[list[Row], Mapping[str, str] | None]:
        return await self._wire.look(self._partition, first, end, select="At", etags=True)

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
            if (request := meant(requests[each.id], each.birth)) is not None:
                each.cancel(request)

    def _is_away(self, error: Exception) -> None:
        if not self._away_until:
            _log.warning("cancel requests cannot be read, and the tasks run on: %s", str(error) or "no answer in time")
        self._away_until = time.monotonic() + _AGAIN_SECONDS

    async def aclose(self) -> None:
        """Look no more."""
        if self._loop is not None:
            self._loop.cancel()
            await asyncio.wait({self._loop})


def request_of(row: Row) -> CancelRequest:
    """Return the cancel request in a row."""
    etag, at = str(row.get("odata.etag", "")), math.inf
    try:
        birth = rows.birth_in(row) if row["RowKey"].count("!") > 1 else None
        at = float(row["At"])
    except (LookupError, ValueError, TypeError, OverflowError):  # who may write there may write anything
        birth = -1
    return CancelRequest(row["RowKey"], at, birth, etag)
