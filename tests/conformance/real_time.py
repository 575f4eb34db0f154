"""Runs the suite on a service that keeps its own time: the cases really wait, so many of them run side by side."""

import asyncio
import traceback
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext

import pytest

from jobq.testing import conformance

Ended = dict[str, "conformance.Skipped | str | None"]  # of each case: None = passed, a text = the traceback


def run_all(harness: conformance.Harness, at_once: int) -> Ended:
    """Run every case on one service; return how each ended."""
    return run_each(lambda: nullcontext(harness), at_once)


def run_each(serve: Callable[[], AbstractAsyncContextManager[conformance.Harness]], at_once: int) -> Ended:
    """Run every case on a service of its own; return how each ended."""
    found: Ended = {}

    async def run(case: conformance.Case, turn: asyncio.Semaphore) -> None:
        async with turn:
            try:
                async with serve() as harness:
                    found[case.name] = await conformance.run_case(case, harness)
            except Exception:  # noqa: BLE001 - told by the case's own test
                found[case.name] = traceback.format_exc()

    async def run_them() -> None:
        turn = asyncio.Semaphore(at_once)
        await asyncio.gather(*(run(case, turn) for case in conformance.cases()))

    asyncio.run(run_them())
    return found


def tell(case: conformance.Case, ended: Ended) -> None:
    """Let a test end as its case did."""
    outcome = ended[case.name]
    if isinstance(outcome, conformance.Skipped):
        pytest.skip(f"not {outcome.missing}")
    assert outcome is None, outcome
