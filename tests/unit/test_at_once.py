"""Coroutines without an event loop: what they return and raise; one that waits is a fault of ours."""

import asyncio

import pytest

from jobq.at_once import is_at_once, run_at_once


async def look(result: int) -> int:
    assert is_at_once()
    return result


def test_it_returns_what_the_coroutine_returns() -> None:
    assert run_at_once(look(7)) == 7
    assert not is_at_once()


def test_it_raises_what_the_coroutine_raises() -> None:
    async def fail() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        run_at_once(fail())
    assert not is_at_once()


def test_one_that_waits_is_closed_and_refused() -> None:
    closed: list[bool] = []

    async def wait() -> None:
        try:
            await asyncio.sleep(0)
        finally:
            closed.append(True)

    with pytest.raises(RuntimeError, match="waits for something"):
        run_at_once(wait())
    assert closed == [True]
    assert not is_at_once()
