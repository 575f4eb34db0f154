"""Between tasks and messages of Service Bus: names of messages, and what stands beside a body.

A message cannot be changed where it is. What a requeue changes is a new message, a clone, which takes along how often
the task was delivered before (S3); or, where that is switched on, properties of the old one, given back.
"""

import hashlib
from typing import TYPE_CHECKING, Final, Protocol

from jobq.errors import MalformedTask
from jobq.task import Counters, Task
from jobq_azure.service_bus_wire import Outgoing

if TYPE_CHECKING:
    from collections.abc import Mapping

# Properties: lower case, since over REST they are headers.
BEFORE: Final = "jobq-before"  # deliveries of this task in messages before this one
STATE: Final = "jobq-state"  # generation, failures, preemptions and ends, where they are not those of the body
ID: Final = "jobq-id"  # of a message that is no task, and was put back under a name of its own
DELIVERIES: Final = "jobq-deliveries"  # of a dead letter, the last one included
DIED: Final = "jobq-died"  # seconds since the epoch by the service's clock

TEXT_CHARACTERS: Final = 4096  # of a dead letter's description, by the service
_LONGEST_NAME: Final = 128  # of a message, by the service
_HEAD_CHARACTERS: Final = 1000
_CUT: Final = "\n[...]\n"
_NUMBERS: Final = 4


class Held(Protocol):
    """A message, locked or seen."""

    @property
    def message_id(self) -> str: ...  # noqa: D102 - as in the wire's, like the next

    @property
    def body(self) -> bytes: ...  # noqa: D102

    def text(self, name: str) -> str: ...  # noqa: D102

    def number_in(self, name: str, usual: int = 0) -> int: ...  # noqa: D102


def name_of(*parts: object) -> str:
    """Return the name of a message that stands for these parts, and for no others."""
    name = ":".join(map(str, parts))
    return name if len(name) <= _LONGEST_NAME else hashlib.blake2b(name.encode(), digest_size=32).hexdigest()


def pushed(task: Task) -> Outgoing:
    """Return the message of a new task: named like it, so that the broker drops a second push (S8)."""
    return Outgoing(body=task.encode(), message_id=task.id, at=task.not_before)


def clone(task: Task, before: int, at: float | None) -> Outgoing:
    """Return the message of a task that was requeued or redriven; one generation has one name, so one clone."""
    name = name_of(task.id, task.epoch, task.generation)
    return Outgoing(body=task.encode(), message_id=name, at=at, properties={BEFORE: before})


def released(task: Task, before: int) -> Outgoing:
    """Return the message of a task that was let go unstarted: of the same generation, with one more end."""
    name = name_of(task.id, task.epoch, task.generation, task.counters.ends)
    return Outgoing(body=task.encode(), message_id=name, properties={BEFORE: before})


def state_of(task: Task) -> "Mapping[str, str | int]":
    """Return the properties that change a task where its message stays."""
    counters = task.counters
    return {STATE: f"{task.generation} {counters.failures} {counters.preemptions} {counters.ends}"}


def task_in(held: Held) -> Task:
    """Return the task in a message; raises MalformedTask."""
    task = Task.decode(held.body)
    if not (state := held.text(STATE)):
        return task
    words = state.split()
    if len(words) != _NUMBERS or not all(word.isascii() and word.isdecimal() and len(word) < 10 for word in words):  # noqa: PLR2004 - as counts are
        raise MalformedTask("is no state that jobq wrote", STATE)
    generation, failures, preemptions, ends = map(int, words)
    counters = Counters(failures=failures, preemptions=preemptions, ends=ends)
    return task.model_copy(update={"generation": generation, "counters": counters, "not_before": None})


def body_in(held: Held) -> bytes:
    """Return what is queued: as it came, unless properties have changed the task since."""
    if not held.text(STATE):
        return held.body
    try:
        return task_in(held).encode()
    except MalformedTask:
        return held.body


def id_in(held: Held) -> str:
    """Return the task's id; the message's for one that is no task."""
    try:
        return task_in(held).id
    except MalformedTask:
        return held.text(ID) or held.message_id


def cut(description: str) -> str:
    """Return as much of a description as the service takes: its beginning, and its end, where the output's last is."""
    text = description.encode("utf-8", "replace").decode().replace("\0", "\ufffd")
    if len(text) <= TEXT_CHARACTERS:
        return text
    return text[:_HEAD_CHARACTERS] + _CUT + text[_HEAD_CHARACTERS + len(_CUT) - TEXT_CHARACTERS :]
