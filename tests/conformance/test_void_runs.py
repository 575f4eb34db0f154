"""A case that had no chance to show anything runs again, one that has shown a fault does not."""

import time
from contextlib import AbstractAsyncContextManager, nullcontext

import pytest

from jobq.errors import SettlementUnknown
from jobq.testing import conformance
from jobq.testing.harness import Bench
from tests.conformance import harnesses
from tests.conformance.real_time import run_one


def _serve() -> AbstractAsyncContextManager[conformance.Harness]:
    return nullcontext(harnesses.memory())


def _case(*ends: Exception | float | None) -> tuple[conformance.Case, list[int]]:
    """Return a case whose runs end so, one after the other (a number: it stands still for so long, and fails)."""
    runs: list[int] = []

    async def check(bench: Bench) -> None:
        await bench.pushed()
        end = ends[len(runs)]
        runs.append(1)
        if isinstance(end, Exception):
            raise end
        if end is not None:
            time.sleep(end)  # as where others have the processors
            raise AssertionError("a lease was over")

    return conformance.Case(name="a.case", needs=(), injects=False, check=check), runs


@pytest.mark.parametrize("void", [SettlementUnknown("no answer"), 0.6], ids=["no answer", "stood still"])
async def test_a_void_run_is_told_and_made_again(void: Exception | float) -> None:
    case, runs = _case(void, None)
    with pytest.warns(UserWarning, match=r"run 1 of a\.case is void"):
        assert await run_one(case, _serve) is None
    assert len(runs) == 2


async def test_a_fault_is_no_void_run() -> None:
    case, runs = _case(AssertionError("lost"), None)
    assert "lost" in str(await run_one(case, _serve))
    assert len(runs) == 1


async def test_void_runs_end() -> None:
    case, runs = _case(*[SettlementUnknown("no answer")] * 3)
    with pytest.warns(UserWarning, match=r"run . of a\.case is void"):
        assert "no answer" in str(await run_one(case, _serve))
    assert len(runs) == 3
