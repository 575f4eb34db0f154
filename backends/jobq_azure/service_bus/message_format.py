"""Between tasks and messages of Service Bus: names of messages, and what stands beside a body.

A message cannot be changed where it is. What a requeue changes is a new message, a clone, which takes along how often
the task was delivered before (S3).
"""

import hashlib
from collections.abc import Mapping
from typing import Final, Protocol

from jobq.errors import MalformedTask
from jobq.formats.task_fields import MAX_EPOCH
from jobq.task import Task
from jobq_azure.service_bus.rest_client import Outgoing

# Properties: lower case, since over REST they are headers.
BEFORE: Final = "jobq-before"  # deliveries of this task in messages before this one
ID: Final = "jobq-id"  # of a message that is no task, and was put back under a name of its own
ORIGIN: Final = "jobq-origin"  # sequence number of the message as which the task was pushed
EPOCH: Final = "jobq-epoch"  # of the task; a message without it begins one
DELIVERIES: Final = "jobq-deliveries"  # of a dead letter, the last one included
DIED: Final = "jobq-died"  # seconds since the epoch by the service's clock

REDRIVEN: Final = "dead:"  # letters may be numbered by themselves: the names of what replaces them say so

TEXT_CHARACTERS: Final = 4096  # of a dead letter's description, by the service
_HEAD_CHARACTERS: Final = 1000
_NAME_BYTES: Final = 12
_CUT: Final = "\n[...]\n"


class MessageFormat(Protocol):
    """A message, locked or seen."""

    @property
    def message_id(self) -> str: ...  # noqa: D102 - as in the wire's, like the next

    @property
    def number(self) -> int: ...  # noqa: D102

    @property
    def enqueued(self) -> float: ...  # noqa: D102

    @property
    def body(self) -> bytes: ...  # noqa: D102

    def text(self, name: str) -> str: ...  # noqa: D102

    def number_in(self, name: str, usual: int = 0) -> int: ...  # noqa: D102


def copy_name(original: "MessageFormat", *parts: int, kind: str = "") -> str:
    """Return the message id of what replaces a message: injective over originals and parts, and no id of a task.

    A broker drops a message whose id it remembers, without a word. The sequence number names one life of one task among
    all that its queue ever holds, whatever ids users choose, and choose again; no id of a task begins with "~". Nobody
    who may send but not read can use the name first: it holds a digest of the body, and so of a signature.

    Args:
        original: what is replaced.
        parts: which step of it.
        kind: of numbers; `REDRIVEN` for a letter's.
    """
    secret = hashlib.blake2b(original.body, digest_size=_NAME_BYTES).hexdigest()
    return f"~{kind}" + ":".join(map(str, (original.number, *parts, secret)))


def origin_of(held: "MessageFormat", kind: str = "") -> str:
    """Return the sequence number of the message as which the task was pushed: it distinguishes two lives of one id.

    A letter of the service's own making has lost it, so it has that of the letter.

    Args:
        held: any message of the task.
        kind: of its number; `REDRIVEN` for a letter's.
    """
    origin = held.text(ORIGIN)
    number = origin.removeprefix(REDRIVEN)
    return origin if number.isascii() and number.isdecimal() else f"{kind}{held.number}"


def task_in(held: MessageFormat) -> Task:
    """Return the task in a message; raises MalformedTask.

    Its epoch is the second of the service's clock in which it was pushed or redriven, or more: of two tasks of one id
    the later one has higher fencing numbers, though the broker has forgotten the first, or its queue was made anew.
    """
    task = Task.decode(held.body)
    return task.in_epoch(min(max(task.epoch, held.number_in(EPOCH, int(held.enqueued))), MAX_EPOCH))


def pushed(task: Task) -> Outgoing:
    """Return the message of a new task: named like it, so that the broker drops a second push (S8)."""
    return Outgoing(body=task.encode(), message_id=task.id, at=task.not_before)


def clone(original: "MessageFormat", task: Task, before: int, at: float | None) -> Outgoing:
    """Return the message of a task that goes back; one generation has one name, so one clone.

    Args:
        original: what it replaces.
        task: as it goes on.
        before: deliveries so far.
        at: as of `Outgoing`.
    """
    name = copy_name(original, task.epoch, task.generation)
    return _copy(original, task, before, at, name, {EPOCH: task.epoch})


def redriven(original: "MessageFormat", task: Task, before: int) -> Outgoing:
    """Return the message of a dead letter that is put back, in an epoch of its own; one epoch has one name."""
    name = copy_name(original, task.epoch, task.generation, kind=REDRIVEN)
    return _copy(original, task, before, None, name, {ORIGIN: origin_of(original, REDRIVEN)})


def _copy(
    original: "MessageFormat", task: Task, before: int, at: float | None, name: str, beside: Mapping[str, str | int]
) -> Outgoing:
    properties: dict[str, str | int] = {BEFORE: before, ORIGIN: origin_of(original), **beside}
    return Outgoing(body=task.encode(), message_id=name, at=at, properties=properties)


def id_in(held: MessageFormat) -> str:
    """Return the task's id; the message's for one that is no task."""
    try:
        return Task.decode(held.body).id
    except MalformedTask:
        return held.text(ID) or held.message_id


def cut(description: str) -> str:
    """Return as much of a description as the service takes: its beginning, and its end, where the output's last is."""
    text = description.encode("utf-8", "replace").decode().replace("\0", "\ufffd")
    if len(text) <= TEXT_CHARACTERS:
        return text
    return text[:_HEAD_CHARACTERS] + _CUT + text[_HEAD_CHARACTERS + len(_CUT) - TEXT_CHARACTERS :]
