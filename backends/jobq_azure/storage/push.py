"""A push: a request for each message, all of them or none (S1), and a blob for each that is too large.

One that the service refuses since it is busy is sent again: among hundreds of requests a few are, and nothing would get
past them.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Final

from jobq.errors import BackendUnavailable, JobqError, MalformedTask, PushUnknown
from jobq.task import Task
from jobq.throttled import PUSH_SECONDS, until_served
from jobq_azure.common.errors import NoAnswer
from jobq_azure.storage.envelope import spilled
from jobq_azure.storage.large_payloads import CONTAINER, Payloads
from jobq_azure.storage.message_format import HEADROOM_BYTES, MAX_TEXT_BYTES, MessageContent, size_of
from jobq_azure.storage.queue_client import LONGEST, StorageQueueClient, whole_seconds

_PUTS_AT_ONCE: Final = 32
_GIVEN_UP_SECONDS: Final = 5.0  # for what is on its way when a push is given up
_TAKE_BACK_SECONDS: Final = 10.0


@dataclass(frozen=True)
class _Put:
    """A message that was added: what deletes it, and the blob that it owns."""

    message_id: str
    receipt: str
    blob: str


async def push(wire: StorageQueueClient, payloads: Payloads, tasks: Sequence[Task]) -> list[str]:
    """Add the tasks; on an error, or given up, what was added is taken back, or PushUnknown names it.

    Args:
        wire: requests to the queue.
        payloads: its blobs.
        tasks: in any number.

    Raises:
        MalformedTask: one is too large; nothing was added.
        PushUnknown, and what `answered` raises.
    """
    if not tasks:
        return []
    now = time.time()
    texts = [(task, text_or_none(task, payloads), _hidden_seconds(task, now)) for task in tasks]
    limit = asyncio.Semaphore(_PUTS_AT_ONCE)
    failed: list[Exception] = []

    async def put(task: Task, text: str | None, hidden: int) -> _Put | None:
        async with limit:
            if failed:  # nothing more is begun: what is not there need not be taken back
                return None
            try:
                return await until_served(
                    partial(_put, wire, payloads, task, text, hidden), PUSH_SECONDS, is_given_up=lambda: bool(failed)
                )
            except Exception as error:
                failed.append(error)
                raise

    puts = [asyncio.ensure_future(put(*each)) for each in texts]
    try:
        await asyncio.wait(puts)
    except asyncio.CancelledError as given_up:
        failed.append(BackendUnavailable(f"the push to {wire.place} was given up"))
        await asyncio.wait(puts, timeout=_GIVEN_UP_SECONDS)
        for each in puts:
            each.cancel()
        error = await _taken_back(wire, payloads, tasks, puts, failed[0])
        if isinstance(error, PushUnknown):
            raise error from None
        raise given_up from None
    if not failed:
        return [task.id for task in tasks]
    raise await _seen_through(asyncio.ensure_future(_taken_back(wire, payloads, tasks, puts, failed[0])))


async def _seen_through(taking_back: "asyncio.Task[Exception]") -> BaseException:
    """Return the error to raise; who gives up meanwhile waits for what is in doubt, some seconds at most."""
    try:
        return await asyncio.shield(taking_back)
    except asyncio.CancelledError as given_up:
        await asyncio.wait({taking_back})
        error = taking_back.result()
        return error if isinstance(error, PushUnknown) else given_up


async def _put(wire: StorageQueueClient, payloads: Payloads, task: Task, text: str | None, hidden: int) -> _Put:
    if text is not None:
        return _Put(*await wire.put(text, hidden), "")
    blob = await payloads.store(task.encode())
    try:
        put = _Put(*await wire.put(spilled(task, blob).text(), hidden), blob)
    except JobqError:  # it is certain that no message names it
        await payloads.remove(blob)
        raise
    await payloads.give(blob, put.message_id)
    return put


async def _taken_back(
    wire: StorageQueueClient,
    payloads: Payloads,
    tasks: Sequence[Task],
    puts: Sequence["asyncio.Task[_Put | None]"],
    error: Exception,
) -> Exception:
    """Delete what was added; return the error to raise: what happened, or PushUnknown for what may be there."""
    turn = asyncio.Semaphore(_PUTS_AT_ONCE)

    async def take_back(put: _Put) -> None:
        async with turn:
            await until_served(partial(wire.delete, put.message_id, put.receipt), _TAKE_BACK_SECONDS)
            if put.blob:
                await payloads.remove(put.blob)

    added = [put.result() if _is_known(put) else None for put in puts]
    backs = [None if put is None else asyncio.ensure_future(take_back(put)) for put in added]
    if waiting := [back for back in backs if back is not None]:
        # One limit for all: a service that fell silent must not hold up those who wait to hear of it.
        await asyncio.wait(waiting, timeout=_TAKE_BACK_SECONDS)
    ids: list[str] = []
    for task, put, back in zip(tasks, puts, backs, strict=True):
        # What could not be taken back: a worker has it by now, or nobody knows.
        if _is_doubtful(put) or (back is not None and (back.cancel() or back.exception() is not None)):
            ids.append(task.id)
    if not ids:
        return error
    return PushUnknown(f"{error}; {len(ids)} of {len(tasks)} tasks may or may not be queued", ids)


def _is_doubtful(put: "asyncio.Task[_Put | None]") -> bool:
    return not put.done() or put.cancelled() or isinstance(put.exception(), NoAnswer)


def _is_known(put: "asyncio.Task[_Put | None]") -> bool:
    return put.done() and not put.cancelled() and put.exception() is None


def text_or_none(task: Task, payloads: Payloads) -> str | None:
    """Return the message of a task that is pushed; None for one that needs a blob; raises MalformedTask."""
    body = task.encode()
    text = MessageContent(body).text()
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
