"""A message with its body at hand, wherever that lies: in the message itself or in a blob.

A body in a blob stays as it was pushed. What a requeue changes of it (counters, generation, epoch, a date) stands in
the message, so that a requeue is one atomic request whatever the size of the task (S6).
"""

from dataclasses import dataclass, replace
from typing import Any

from jobq.errors import MalformedTask
from jobq.formats.task_fields import MAX_EPOCH
from jobq.formats.wire_v3 import STATE
from jobq.task import Task
from jobq_azure.common.letter_work import ledger_of, work_in
from jobq_azure.storage.message_format import NOTHING, MessageContent, MessageNotes


@dataclass(frozen=True)
class Envelope:
    """A message's content, and the body that its blob holds.

    Attributes:
        content: as it stands in the message.
        payload: from the blob; None for a message without one.
        fault: why the payload will never be had.
        text: the message as it came.
        owner: the service's id of the message that owns the blob; empty = that is not known.
    """

    content: MessageContent
    payload: bytes | None = None
    fault: MalformedTask | None = None
    text: str = ""
    owner: str = ""

    @property
    def body(self) -> bytes:
        """What was queued, without what stands beside it; of a payload that is gone, the message that named it."""
        if self.fault is not None:
            return self.text.encode(errors="surrogatepass")
        return self.content.body if self.payload is None else self.payload

    def task(self) -> Task:
        """Return the task; raises MalformedTask."""
        if self.fault is not None:
            raise self.fault
        changed = self.content.beside.changed
        if self.payload is None or changed is None:
            return Task.decode(self.body)
        return Task.decode(self.payload).with_state(changed)

    @property
    def ledger(self) -> str:
        """The book in which its task is kept, also where that is lost; empty = in none."""
        try:
            return ledger_of(self.task())
        except MalformedTask:
            return self.content.beside.ledger

    @property
    def work(self) -> str:
        """What tells its work from other work of its id; empty = its payload is lost."""
        return "" if self.fault is not None else work_in(self.body)

    @property
    def lost_payload(self) -> str:
        """The name of a payload that was lost when its task was given up: the body is the message that named it."""
        return MessageContent.read(self.body.decode(errors="replace")).beside.blob

    @property
    def created(self) -> float | None:
        """When its task was made, as far as it says; likewise."""
        try:
            return self.task().created
        except MalformedTask:
            return self.content.beside.born or None

    def numbers(self) -> tuple[int, int]:
        """Return epoch and generation; of a task that is lost those beside it. Raises MalformedTask."""
        try:
            task = self.task()
        except MalformedTask:
            changed = self.content.beside.changed or {}
            epoch, generation = changed.get("epoch", 0), changed.get("generation", 0)
            if self.content.beside.ledger and _is_count(epoch) and _is_count(generation):
                return epoch, generation
            raise
        return task.epoch, task.generation

    def holding(self, task: Task) -> MessageContent:
        """Return the message of the same work with other counters; the blob stays as it is."""
        if self.payload is None:
            return replace(self.content, body=task.encode())
        assert task.fingerprint() == self.task().fingerprint(), "a requeue changes counters, and nothing of the work"
        return replace(self.content, beside=replace(self.content.beside, changed=changes_of(task)))

    def released(self, misfits: int = 0) -> MessageContent | None:
        """Return the message of a delivery that was never started; None for one that cannot be distinguished."""
        if self.content.beside.blob and self.payload is None:  # nobody could read it, and its counters are here
            return _ended(self.content)
        try:
            return self.holding(self.task().released(misfits=misfits))
        except MalformedTask:
            return None


def spilled(task: Task, blob: str, beside: MessageNotes = NOTHING) -> MessageContent:
    """Return the message of a task whose encoded form is in a blob."""
    book = ledger_of(task)
    born = task.created or 0.0 if book else 0.0
    return MessageContent(
        b"", replace(beside, id=task.id, blob=blob, changed=changes_of(task), ledger=book, born=float(born))
    )


def changes_of(task: Task) -> dict[str, Any]:
    """Return the fields that requeues change, as they stand beside the name of a blob."""
    return task.as_dict(STATE)


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value <= MAX_EPOCH


def _ended(content: MessageContent) -> MessageContent | None:
    counters = (content.beside.changed or {}).get("counters")
    if not isinstance(counters, dict) or type(ends := counters.get("ends")) is not int:
        return None
    changed = {**(content.beside.changed or {}), "counters": {**counters, "ends": ends + 1}}
    return replace(content, beside=replace(content.beside, changed=changed))
