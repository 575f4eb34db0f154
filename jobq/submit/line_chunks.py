"""Lines of an input as chunks of tasks, for those who push them."""

import time
from collections.abc import AsyncIterator, Callable
from typing import NoReturn

from jobq.errors import JobqError, MalformedTask
from jobq.submit.input_lines import Input, LineCutter
from jobq.submit.pusher import Chunk
from jobq.task import Task

NumberedTask = tuple[int, Task]


async def line_chunks(
    source: Input,
    task_of: Callable[[int, bytes], Task | None],
    refuse: Callable[[int, JobqError], NoReturn],
    *,
    linger_seconds: float,
) -> AsyncIterator[list[NumberedTask]]:
    """Yield the tasks of an input with the numbers of their lines; memory is bounded by one chunk.

    Args:
        source: where the lines come from.
        task_of: makes a task of a line and its number; None = there is none in it.
        refuse: called for a line that is no task, once all before it are dealt with; raises.
        linger_seconds: how long the first task of a chunk waits for company beyond what came with it.
    """
    cutter = LineCutter()
    chunk, numbers, due = Chunk(), list[int](), 0.0
    data: bytes | None = None
    while data != b"":
        data = await source.read(max(0.0, due - time.monotonic()) if numbers else None)
        for number, line in cutter.feed(data) if data is not None else ():
            try:
                task = task_of(number, line)
            except MalformedTask as error:
                if numbers:
                    yield list(zip(numbers, chunk.tasks, strict=True))
                refuse(number, error)
            if task is None:
                continue
            if not numbers:
                due = time.monotonic() + linger_seconds
            numbers.append(number)
            if chunk.add(task):
                yield list(zip(numbers, chunk.tasks, strict=True))
                chunk, numbers = Chunk(), []
        if numbers and (data == b"" or time.monotonic() >= due):
            yield list(zip(numbers, chunk.tasks, strict=True))
            chunk, numbers = Chunk(), []
