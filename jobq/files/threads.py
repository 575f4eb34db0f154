"""Blocking work beside the event loop, on threads that hold up no end: a share that hangs must not keep a worker."""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")


async def in_thread(work: Callable[[], T], name: str) -> T:
    """Return what `work` returns; a caller that is cancelled leaves it to its end, which nobody waits for."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[T] = loop.create_future()

    def settle(value: "T | None", error: BaseException | None) -> None:
        if ended.done():
            return
        if error is None:
            ended.set_result(value)  # type: ignore[arg-type] # what `work` returned
        else:
            ended.set_exception(error)

    def run() -> None:
        value: T | None = None
        fault: BaseException | None = None
        try:
            value = work()
        except Exception as error:  # noqa: BLE001 - raised where it is awaited
            fault = error
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(settle, value, fault)

    threading.Thread(target=run, name=name, daemon=True).start()
    return await ended
