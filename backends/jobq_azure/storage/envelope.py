"""A message with its body at hand, wherever that lies: in the message itself or in a blob.

A body in a blob stays as it was pushed. What a requeue changes of it (counters, generation, epoch, a date) stands in
the message, so that a requeue is one atomic request whatever the size of the task (S6).
"""

from dataclasses import dataclass, replace
from typing import Any

from jobq.errors import MalformedTask
from jobq.formats.wire_v3 import STATE
from jobq.task import Task
from jobq_azure.storage.message_format import NOTHING, MessageContent, MessageNotes


@dataclass(frozen=True)
class Envelope:
    """A message's content, and the body that its blob holds.

    Attributes:
        content: as it stands in the message.
        payload: from the blob; None for a message without one.
        fault: why the payload will never be had.
        text: the message as it came.
    """

    content: MessageContent
    payload: bytes | None = None
    fault: MalformedTask | None = None
    text: str = ""

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

    def holding(self, task: Task) -> MessageContent:
        """Return the message of the same work with other counters; the blob stays as it is."""
        if self.payload is None:
            return replace(self.content, body=task.encode())
        assert task.fingerprint() == self.task().fingerprint(), "a requeue changes counters, and nothing of the work"
        return replace(self.content, beside=replace(self.content.beside, changed=changes_of(task)))

    def with_one_more_end(self) -> MessageContent | None:
        """Return the message of a delivery that was never started; None for one that cannot be distinguished."""
        if self.content.beside.blob and self.payload is None:  # nobody could read it, and its counters are here
            return _ended(self.content)
        try:
            return self.holding(self.task().released())
        except MalformedTask:
            return None


def spilled(task: Task, blob: str, beside: MessageNotes = NOTHING) -> MessageContent:
    """Return the message of a task whose encoded form is in a blob."""
    return MessageContent(b"", replace(beside, id=task.id, blob=blob, changed=changes_of(task)))


def changes_of(task: Task) -> dict[str, Any]:
    """Return the fields that requeues change, as they stand beside the name of a blob."""
    return task.as_dict(STATE)


def _ended(content: MessageContent) -> MessageContent | None:
    counters = (content.beside.changed or {}).get("counters")
    if not isinstance(counters, dict) or type(ends := counters.get("ends")) is not int:
        return None
    changed = {**(content.beside.changed or {}), "counters": {**counters, "ends": ends + 1}}
    return replace(content, beside=replace(content.beside, changed=changed))
