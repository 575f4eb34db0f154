"""Is a queue as it should be, and does its service do what jobq assumes? What `jobq check` runs.

A queue is only looked at. A service is tried out on queues of the check's own, by cases of the conformance suite; they
are deleted afterwards. Where queues cannot be deleted it is always the same one, which is left empty.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Final

from jobq.backend import Backend
from jobq.errors import AccessDenied, ConfigurationError, JobqError
from jobq.examination import Deletable, Examinable, Finding, Verdict
from jobq.spec import sibling
from jobq.task import new_id
from jobq.testing import conformance
from jobq.testing.clock import RealTime

SCRATCH: Final = "jobq-check"
LOCK: Final = timedelta(seconds=5)  # the shortest that a service grants which does not let its callers choose
_LEASE: Final = timedelta(seconds=4)
_PATIENCE: Final = timedelta(seconds=2)  # shorter than a lease: what a receive waits for must not be what has run out
_CASE_SECONDS: Final = timedelta(minutes=2)
_AT_ONCE: Final = 6
_MOST_LETTERS: Final = 1000
_CASES: Final = (
    "push.known_id_adds_no_task",
    "push.not_before_is_kept",
    "receive.two_receivers_never_share_a_task",
    "lease.expired_task_comes_back",
    "lease.expiry_counts_as_a_crash",
    "lease.renewal_extends",
    "lease.checkpoint_reaches_the_next_attempt",
    "stale.after_expiry_and_redelivery",
    "settle.complete_ends_the_task",
    "settle.requeue_waits_for_its_delay",
    "settle.release_consumes_no_budget",
    "signed.work_is_kept_as_it_was_written",
    "dead.keeps_bytes_and_reason",
    "dead.redrive_is_a_new_epoch",
    "dead.purge_deletes_for_good",
)
_log: Final = logging.getLogger(__name__)


async def look(backend: Backend) -> AsyncIterator[Finding]:
    """Look at a queue, and at what this identity may do with it; changes nothing.

    Args:
        backend: entered.

    Raises:
        ConfigurationError: the queue cannot be asked.
    """
    looks: Sequence[tuple[str, Callable[[], Awaitable[object]]]] = (
        ("tasks can be counted", backend.stats),
        ("tasks can be looked at", lambda: backend.peek(1)),
        ("dead letters can be looked at", lambda: backend.dead_letters(1)),
    )
    for what, call in looks:
        yield await _tried(what, call)
    if isinstance(backend, Examinable):
        try:
            async for finding in backend.findings():
                yield finding
        except JobqError as error:
            yield Finding(what="the rest can be looked at", found="no", verdict=Verdict.DIFFERS, advice=str(error))


async def _tried(what: str, call: Callable[[], Awaitable[object]]) -> Finding:
    try:
        await call()
    except AccessDenied as error:
        return Finding(what=what, found="not by this identity", verdict=Verdict.NOTED, advice=str(error))
    except ConfigurationError:  # the queue was never asked
        raise
    except JobqError as error:
        return Finding(what=what, found="no", verdict=Verdict.DIFFERS, advice=str(error))
    return Finding(what=what, found="yes")


class Trial:
    """A service, tried out on queues of its own beside one queue.

    Args:
        backend: of the queue, opened by a spec.

    Attributes:
        queue: what the queues are called, or begin with.
        is_deleted: whether they are deleted in the end; else one stays, empty.

    Raises:
        ConfigurationError: no other queue is known beside this one.
    """

    def __init__(self, backend: Backend) -> None:
        self._beside = backend
        self.is_deleted = isinstance(self._open(SCRATCH), Deletable)
        self.queue = f"{SCRATCH}-{new_id()[-8:]}" if self.is_deleted else SCRATCH
        self._made = 0

    def _open(self, queue: str) -> Backend:
        # Leases as short as they may be, and no journal beside it, whose rows nobody would delete.
        short = {"visibility_timeout": LOCK, "journal": "auto", "poll_max": timedelta(seconds=1)}
        return sibling(self._beside, queue, **short)

    def _name(self) -> str:
        self._made += 1
        return f"{self.queue}-{self._made}" if self.is_deleted else self.queue

    async def findings(self) -> AsyncIterator[Finding]:
        """Try it out, for a minute or so; each finding comes when it is known.

        Raises:
            ConfigurationError: the queue that is used for it holds tasks, which are not the check's.
            JobqError: no queue can be made.
        """
        async with self._open(self.queue) as scratch:
            try:
                await scratch.create()
            except AccessDenied as error:
                what, found = "the service can be tried out", "no queue can be made by this identity"
                yield Finding(what=what, found=found, verdict=Verdict.UNKNOWN, advice=str(error))
                return
            # Before anything is emptied: it may be another check's, or somebody's own.
            if not self.is_deleted and ((await scratch.stats()).unfinished or await scratch.dead_letters(1)):
                raise ConfigurationError(
                    f"the queue {self.queue} holds tasks: another check runs, or was cut off. Empty it with the"
                    " commands `clear` and `dead purge --all`, and try again"
                )
            try:
                async for finding in self._cases(scratch):
                    yield finding
            finally:
                await self._emptied(scratch)

    async def _cases(self, scratch: Backend) -> AsyncIterator[Finding]:
        known = scratch.capabilities
        lease = _LEASE if known.chooses_lease else max(known.default_lease, LOCK)
        harness = conformance.Harness(
            connect=self._open,
            clock=RealTime(),
            lease=lease,
            patience=_PATIENCE,
            case_timeout=_CASE_SECONDS,
            queue_name=self._name,
            counts_at_once=known.finds_at_once,  # a service that does not, counts from time to time
        )
        turn = asyncio.Semaphore(_AT_ONCE if self.is_deleted else 1)

        async def run(case: conformance.Case) -> Finding | None:
            async with turn:
                return await self._run(case, harness)

        cases = [case for case in conformance.cases(known) if case.name in _CASES]
        running = [asyncio.ensure_future(run(case)) for case in cases]
        try:
            for ended in asyncio.as_completed(running):
                if (finding := await ended) is not None:
                    yield finding
        finally:
            for each in running:
                each.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async def _run(self, case: conformance.Case, harness: conformance.Harness) -> Finding | None:
        what = (case.check.__doc__ or case.name).partition("\n")[0].rstrip(".")
        rule, colon, text = what.partition(": ")
        queue = harness.queue_name()
        own = replace(harness, queue_name=lambda: queue)
        try:
            if await conformance.run_case(case, own) is not None:
                return None
        except (AssertionError, JobqError, TimeoutError) as error:
            found = str(error) or "it did not end in time"
            return Finding(what=text if colon else rule, found=found, verdict=Verdict.DIFFERS, assumed=case.name)
        finally:
            async with self._open(queue) as scratch:
                await self._emptied(scratch)
        return Finding(what=text if colon else rule, found="yes")

    async def _emptied(self, scratch: Backend) -> None:
        """Delete a queue, or all in it; says so where that failed."""
        try:
            if isinstance(scratch, Deletable):
                await scratch.delete()
                return
            await scratch.clear()
            await scratch.purge_dead([letter.id for letter in await scratch.dead_letters(_MOST_LETTERS)])
        except JobqError as error:
            _log.warning("the queue %s, which this check has made, is left over: %s", scratch.name, error)
