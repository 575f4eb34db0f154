"""Waiting for whichever comes first, with nothing left behind."""

import asyncio
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def racing(*waits: Awaitable[Any]) -> Iterator[list["asyncio.Future[Any]"]]:
    """Start all; whatever is not done when the context is left is cancelled."""
    futures: list[asyncio.Future[Any]] = [asyncio.ensure_future(wait) for wait in waits]
    try:
        yield futures
    finally:
        for future in futures:
            future.cancel()


async def first_of(*waits: Awaitable[Any]) -> None:
    """Return as soon as one is done; the others are cancelled."""
    with racing(*waits) as futures:
        await first_done(*futures)


async def first_done(*futures: "asyncio.Future[Any]") -> None:
    """Return as soon as one is done, in the next turn of the loop at the soonest; none is cancelled.

    It is `asyncio.wait` for what is a future already, in half of the time: each attempt waits so several times.
    """
    if any(each.done() for each in futures):
        await asyncio.sleep(0)  # who waits in a loop must not keep it from others
        return
    waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def wake(_: "asyncio.Future[Any]") -> None:
        if not waiting.done():
            waiting.set_result(None)

    for each in futures:
        each.add_done_callback(wake)
    try:
        await waiting
    finally:
        for each in futures:
            each.remove_done_callback(wake)


def never() -> "asyncio.Future[Any]":
    """Return what is never done."""
    return asyncio.get_running_loop().create_future()


def first_error(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the first error in a group that is none itself."""
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
