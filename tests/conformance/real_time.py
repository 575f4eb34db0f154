"""Runs the suite on a service that keeps its own time: the cases really wait, so many of them run side by side.

What a case says holds where an answer comes within an eighth of a lease (rules.md 1.3 rule 4). One that fails where
the service did not answer in time, though nothing was injected, or where this machine stood still for as long, has
shown nothing: it is void, runs again on a fresh queue, and pytest's summary names it.
"""

import asyncio
import time
import traceback
import warnings
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import Final

import pytest

from jobq.errors import BackendUnavailable, SettlementUnknown
from jobq.testing import conformance

_RUNS: Final = 3  # of a case that is void each time: then it has failed
_STILL_SECONDS: Final = 0.5  # an eighth of the leases in `harnesses`
_LOOK_SECONDS: Final = 0.05

Ended = dict[str, "conformance.Skipped | str | None"]  # of each case: None = passed, a text = the traceback


def run_all(harness: conformance.Harness, at_once: int) -> Ended:
    """Run every case on one service; return how each ended."""
    return run_each(lambda: nullcontext(harness), at_once)


def run_each(serve: Callable[[], AbstractAsyncContextManager[conformance.Harness]], at_once: int) -> Ended:
    """Run every case on a service of its own; return how each ended."""
    found: Ended = {}

    async def run(case: conformance.Case, turn: asyncio.Semaphore) -> None:
        async with turn:
            found[case.name] = await run_one(case, serve)

    async def run_them() -> None:
        turn = asyncio.Semaphore(at_once)
        await asyncio.gather(*(run(case, turn) for case in conformance.cases()))

    asyncio.run(run_them())
    return found


async def run_one(
    case: conformance.Case, serve: Callable[[], AbstractAsyncContextManager[conformance.Harness]]
) -> conformance.Skipped | str | None:
    """Run a case, and again where it was void; return how it ended."""
    trace = ""
    for number in range(1, _RUNS + 1):
        async with _stillness() as still:
            try:
                async with serve() as harness:
                    return await conformance.run_case(case, harness)
            except Exception as error:  # noqa: BLE001 - told by the case's own test
                trace = traceback.format_exc()
                unanswered = isinstance(error, SettlementUnknown | BackendUnavailable) and not case.injects
                if not unanswered and still.longest < _STILL_SECONDS:
                    return trace
                told = f"run {number} of {case.name} is void, still for {still.longest:.2f} s: {error!r}"
                warnings.warn(told, stacklevel=1)
    return trace


class _Stillness:
    """For how long at a time this process did not come to run."""

    def __init__(self) -> None:
        self._longest, self._looked = 0.0, time.monotonic()

    @property
    def longest(self) -> float:
        """Seconds."""
        return max(self._longest, time.monotonic() - self._looked - _LOOK_SECONDS)

    async def look(self) -> None:
        """Look all the time."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            self._longest, self._looked = self.longest, time.monotonic()


@asynccontextmanager
async def _stillness() -> AsyncIterator[_Stillness]:
    still = _Stillness()
    looking = asyncio.create_task(still.look())
    try:
        yield still
    finally:
        looking.cancel()


def tell(case: conformance.Case, ended: Ended) -> None:
    """Let a test end as its case did."""
    outcome = ended[case.name]
    if isinstance(outcome, conformance.Skipped):
        pytest.skip(f"not {outcome.missing}")
    assert outcome is None, outcome
