"""What the messages of a dead-letter queue tell: one letter a task, however many messages hold it."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

from jobq.backend import DeadLetter
from jobq.errors import MalformedTask
from jobq_azure.content import Beside, Content
from jobq_azure.envelope import Envelope
from jobq_azure.wire import Message

_T = TypeVar("_T")
_UNTOLD: Final = "written by another program, or too large for its story"


@dataclass(frozen=True)
class Record:
    """A dead letter, what its message holds, and all messages that hold it.

    Attributes:
        letter: without its body where that is in a blob.
        content: of the newest message.
        messages: the newest one and those that it makes superfluous.
    """

    letter: DeadLetter
    content: Content
    messages: tuple[Message, ...]

    def redriven(self, envelope: Envelope) -> list[tuple[bytes, Beside]]:
        """Return what may be put back, best first; the next where one is too large.

        Args:
            envelope: of this record, with its payload.
        """
        letter = self.letter
        beside = Beside(checkpoint=self.content.beside.checkpoint, before=letter.deliveries)
        try:
            task = envelope.task()
        except MalformedTask:
            return [(envelope.body, replace(beside, id=letter.id)), (envelope.body, Beside())]
        fresh = task.redriven(deliveries=letter.deliveries).encode()
        return [(fresh, beside), (task.redriven(deliveries=0).encode(), Beside()), (envelope.body, Beside())]


def folded(messages: Sequence[Message]) -> list[Record]:
    """Return the dead letters in messages, oldest first.

    One task has one dead letter, its newest: a crash between write and delete leaves two of one generation, and an
    interrupted redrive one of each epoch. Two tasks that share an id are two.
    """
    newest: dict[tuple[str, str], tuple[int, int]] = {}
    found: dict[tuple[str, str], Record] = {}
    for message in messages:
        record, work, number = _read(message)
        key = (record.letter.id, work)
        known = found.get(key)
        if known is None:
            found[key] = record
            newest[key] = number
        elif number > newest[key]:
            found[key] = replace(record, messages=(*known.messages, message))
            newest[key] = number
        else:
            found[key] = replace(known, messages=(*known.messages, message))
    return sorted(found.values(), key=lambda record: record.letter.died)


def work_in(envelope: Envelope) -> str:
    """Return what two messages of the same work have in common."""
    try:
        return envelope.task().fingerprint().hex()
    except MalformedTask:
        return hashlib.sha256(envelope.body).hexdigest()


def id_in(envelope: Envelope) -> str:
    """Return the id of the task in a message; empty when there is none."""
    try:
        return envelope.task().id
    except MalformedTask:
        return ""


def _read(message: Message) -> tuple[Record, str, tuple[int, int]]:
    """Return a record of one message, its work, and its epoch and generation."""
    content = Content.read(message.text)
    envelope = Envelope(content)
    story: dict[str, Any] = content.beside.dead or {}

    def field(name: str, usual: _T) -> _T:
        value = story.get(name, usual)
        return value if type(value) is type(usual) else usual

    letter = DeadLetter(
        id=field("id", "") or id_in(envelope) or message.id,
        reason=field("reason", "unknown"),
        description=field("description", _UNTOLD),
        body=content.body,
        deliveries=field("deliveries", 0),
        died=field("died", 0.0),
    )
    record = Record(letter, content, (message,))
    return record, field("work", "") or work_in(envelope), (field("epoch", 0), field("generation", 0))
