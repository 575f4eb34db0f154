"""A push: a request for each message, all of them or none (S1), and a blob for each that is too large."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from jobq.errors import JobqError, MalformedTask, PushUnknown
from jobq.task import Task
from jobq_azure.answers import NoAnswer
from jobq_azure.content import HEADROOM_BYTES, MAX_TEXT_BYTES, Content, size_of
from jobq_azure.envelope import spilled
from jobq_azure.payloads import CONTAINER, Payloads
from jobq_azure.wire import LONGEST, Wire, whole_seconds

_PUTS_AT_ONCE: Final = 32


@dataclass(frozen=True)
class _Put:
    """A message that was added: what deletes it, and the blob that it owns."""

    message_id: str
    receipt: str
    blob: str


async def push(wire: Wire, payloads: Payloads, tasks: Sequence[Task]) -> list[str]:
    """Add the tasks; on an error what was added is taken back, or PushUnknown names it.

    Args:
        wire: requests to the queue.
        payloads: its blobs.
        tasks: in any number.

    Raises:
        MalformedTask: one is too large; nothing was added.
        PushUnknown, and what `answered` raises.
    """
    now = time.time()
    texts = [(task, text_or_none(task, payloads), _hidden_seconds(task, now)) for task in tasks]
    limit = asyncio.Semaphore(_PUTS_AT_ONCE)
    failed: list[Exception] = []

    async def put(task: Task, text: str | None, hidden: int) -> _Put | None:
        async with limit:
            if failed:  # nothing more is begun: what is not there need not be taken back
                return None
            try:
                return await _put(wire, payloads, task, text, hidden)
            except Exception as error:
                failed.append(error)
                raise

    puts = [asyncio.ensure_future(put(*each)) for each in texts]
    try:
        results = await asyncio.gather(*puts, return_exceptions=True)
    except asyncio.CancelledError:
        for each in puts:
            each.cancel()
        raise
    if failed:
        raise await _taken_back(wire, payloads, tasks, results, failed[0])
    return [task.id for task in tasks]


async def _put(wire: Wire, payloads: Payloads, task: Task, text: str | None, hidden: int) -> _Put:
    if text is not None:
        return _Put(*await wire.put(text, hidden), "")
    blob = await payloads.store(task.encode())
    try:
        return _Put(*await wire.put(spilled(task, blob).text(), hidden), blob)
    except JobqError:  # it is certain that no message names it
        await payloads.remove(blob)
        raise


async def _taken_back(
    wire: Wire,
    payloads: Payloads,
    tasks: Sequence[Task],
    results: Sequence[_Put | BaseException | None],
    error: Exception,
) -> Exception:
    """Delete what was added; return the error to raise: what happened, or PushUnknown for what may be there."""
    doubtful: list[str] = []
    for task, result in zip(tasks, results, strict=True):
        if isinstance(result, NoAnswer):
            doubtful.append(task.id)
        elif isinstance(result, _Put):
            try:
                await wire.delete(result.message_id, result.receipt)
            except (JobqError, NoAnswer):  # a worker has it by now, or nobody knows
                doubtful.append(task.id)
            else:
                if result.blob:
                    await payloads.remove(result.blob)
    if not doubtful:
        return error
    return PushUnknown(f"{error}; {len(doubtful)} of {len(tasks)} tasks may or may not be queued", doubtful)


def text_or_none(task: Task, payloads: Payloads) -> str | None:
    """Return the message of a task that is pushed; None for one that needs a blob; raises MalformedTask."""
    body = task.encode()
    text = Content(body).text()
    limit = MAX_TEXT_BYTES - HEADROOM_BYTES
    if (size := size_of(text)) <= limit:
        return text
    if not payloads.are_possible:
        raise MalformedTask(
            f"takes {size} bytes as a message, and a Storage Queue has room for {limit} ({MAX_TEXT_BYTES} less"
            f" {HEADROOM_BYTES} for what jobq notes of its attempts). Add a BlobEndpoint to the connection string, so"
            f" that it goes to a blob of the container {CONTAINER}, or put the data into a file or blob yourself, and"
            " its address into the task"
        )
    return None


def _hidden_seconds(task: Task, now: float) -> int:
    if task.not_before is None or task.not_before <= now:
        return 0
    return whole_seconds(timedelta(seconds=min(task.not_before - now, LONGEST.total_seconds())))
