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
        await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)


def never() -> "asyncio.Future[Any]":
    """Return what is never done."""
    return asyncio.get_running_loop().create_future()


def first_error(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the first error in a group that is none itself."""
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
