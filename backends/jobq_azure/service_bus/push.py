"""A push: batches over REST, each all or none, every status checked (S1)."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from jobq.errors import DuplicateTask, JobqError, MalformedTask, PushUnknown
from jobq.task import Task
from jobq.throttled import PUSH_SECONDS, until_served
from jobq_azure.common.errors import NoAnswer
from jobq_azure.service_bus.message_format import pushed
from jobq_azure.service_bus.rest_client import Outgoing, RestClient

STANDARD_BYTES: Final = 256 * 1024  # of a message and of a batch, by the service; a Premium queue may take more
HEADROOM_BYTES: Final = 4096  # of a message: its headers, and what jobq notes of its attempts
_MOST_IN_BATCH: Final = 100
_GIVEN_UP_SECONDS: Final = 5.0  # for what is on its way when a push is given up


@dataclass
class _Batch:
    """Tasks that go in one request; a single one goes as it is, without JSON around it."""

    tasks: list[Task] = field(default_factory=list)
    elements: list[str] = field(default_factory=list)
    bytes: int = 0
    single: Outgoing | None = None


async def push(wire: RestClient, tasks: Sequence[Task], most_bytes: int) -> list[str]:
    """Add the tasks, batch after batch.

    Args:
        wire: requests to the queue.
        tasks: in any number.
        most_bytes: of a message's body.

    Raises:
        DuplicateTask: two of them have one id and different payloads. Nothing was added.
        MalformedTask: nothing was added.
        PushUnknown: names those that may be queued, and those of earlier batches, which are; nothing takes them back.
        BackendUnavailable and others: nothing was added.
    """
    batches = _batches(_once_each(tasks), most_bytes)
    added: list[Task] = []
    for batch in batches:
        try:
            await until_served(partial(_sent, wire, batch), PUSH_SECONDS)
        except (_GivenUp, asyncio.CancelledError) as given_up:
            doubtful = added + batch.tasks if isinstance(given_up, _GivenUp) and given_up.in_doubt else added
            if not doubtful:
                raise asyncio.CancelledError from None
            raise _unknown(f"the push to {wire.place} was given up", doubtful, tasks) from None
        except NoAnswer as error:
            raise _unknown(str(error), added + batch.tasks, tasks) from None
        except JobqError as error:
            if not added:
                raise
            raise _unknown(str(error), added, tasks) from None
        added += batch.tasks
    return [task.id for task in tasks]


def _once_each(tasks: Sequence[Task]) -> list[Task]:
    """Return one task of each id; raises DuplicateTask for one id with two payloads, of which the broker drops one."""
    found: dict[str, Task] = {}
    for task in tasks:
        first = found.setdefault(task.id, task)
        if first is not task and first.fingerprint() != task.fingerprint():
            raise DuplicateTask(f"the id {task.id} is pushed with two payloads; nothing of this push was added")
    return list(found.values())


def _unknown(why: str, doubtful: Sequence[Task], tasks: Sequence[Task]) -> PushUnknown:
    ids = [task.id for task in doubtful]
    return PushUnknown(f"{why}; {len(ids)} of {len(tasks)} tasks are, or may be, queued", ids)


class _GivenUp(Exception):
    """The caller has been cancelled."""

    def __init__(self, *, in_doubt: bool) -> None:
        super().__init__()
        self.in_doubt = in_doubt


async def _sent(wire: RestClient, batch: _Batch) -> None:
    """Send one batch; what is on its way when the caller is cancelled is let end, for its answer decides."""
    sending = asyncio.ensure_future(_send(wire, batch))
    try:
        await asyncio.shield(sending)
    except asyncio.CancelledError:
        await asyncio.wait({sending}, timeout=_GIVEN_UP_SECONDS)
        if not sending.done():
            sending.cancel()
            raise _GivenUp(in_doubt=True) from None
        error = None if sending.cancelled() else sending.exception()
        raise _GivenUp(in_doubt=not isinstance(error, JobqError)) from None


async def _send(wire: RestClient, batch: _Batch) -> None:
    if batch.single is not None:
        await wire.send(batch.single)
    else:
        await wire.send_batch(batch.elements)


def fitting(task: Task, most_bytes: int) -> Outgoing:
    """Return the message of a new task; raises MalformedTask where its body is larger than this."""
    message = pushed(task)
    if len(message.body) > most_bytes:
        raise MalformedTask(
            f"takes {len(message.body)} bytes, and this queue has room for {most_bytes}. Put the data into a file"
            " or blob, and its address into the task"
        )
    return message


def _batches(tasks: Sequence[Task], most_bytes: int) -> list[_Batch]:
    """Divide tasks by what fits; raises MalformedTask for one that is too large."""
    batches: list[_Batch] = []
    most = min(most_bytes, STANDARD_BYTES - HEADROOM_BYTES)
    current: _Batch | None = None
    for task in tasks:
        message = fitting(task, most_bytes)
        element = message.in_batch()
        size = len(element.encode()) + 1
        if size > most:  # JSON in JSON is longer
            batches.append(_Batch([task], single=message))
            continue
        if current is None or len(current.tasks) >= _MOST_IN_BATCH or current.bytes + size > most:
            current = _Batch()
            batches.append(current)
        current.tasks.append(task)
        current.elements.append(element)
        current.bytes += size
    return batches
