"""Pushes of thousands that cannot go by COPY: their time grows with their number, and they lock nobody out."""

import time
from collections.abc import Awaitable, Callable
from typing import Final

import pytest

from jobq.task import Task
from jobq_postgres import PostgresBackend
from tests.postgres.support import tasks

pytestmark = pytest.mark.check

_FEW: Final = 1000
_MANY: Final = 8000
_MOST_TIMES: Final = 14.0  # measured: about 8, which is the numbers' own; a nested loop of the two has over 40


async def _push_delayed(queue: PostgresBackend, prefix: str, count: int) -> float:
    """Scheduled tasks: COPY knows no due."""
    return await _seconds(queue, tasks(count, prefix, not_before=time.time() + 3600))


async def _push_with_one_known(queue: PostgresBackend, prefix: str, count: int) -> float:
    """COPY fails over an id that is known; the others are added around it."""
    new = tasks(count, prefix)
    await queue.push(new[count // 2 :][:1])
    return await _seconds(queue, new)


async def _seconds(queue: PostgresBackend, given: list[Task]) -> float:
    began = time.perf_counter()
    await queue.push(given)
    return time.perf_counter() - began


@pytest.mark.parametrize("push", [_push_delayed, _push_with_one_known])
async def test_time_of_a_push_grows_with_the_number_of_its_tasks(
    queue: PostgresBackend, push: Callable[[PostgresBackend, str, int], Awaitable[float]]
) -> None:
    await push(queue, "warm", _FEW)
    # The best of three each: whatever else this machine does may slow one.
    few = min([await push(queue, f"few{number}", _FEW) for number in range(3)])
    many = min([await push(queue, f"many{number}", _MANY) for number in range(3)])
    assert many < _MOST_TIMES * few, f"{_FEW}: {few:.2f} s, {_MANY}: {many:.2f} s"
    stats = await queue.stats()
    assert (stats.visible or 0) + (stats.scheduled or 0) == 4 * _FEW + 3 * _MANY
