"""What the messages of a dead-letter queue say: one letter a task, however many messages hold it."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

from jobq.backend import DeadLetter
from jobq.errors import JobqError, MalformedTask
from jobq.formats.task_fields import MAX_EPOCH
from jobq.formats.wire_v3 import batch_of_book
from jobq.task import Task
from jobq_azure.common.letter_work import ledger_in, work_in
from jobq_azure.storage.envelope import Envelope
from jobq_azure.storage.message_format import MAX_COUNT, MAX_TEXT_BYTES, MessageContent, MessageNotes, size_of
from jobq_azure.storage.queue_messages import Message

_T = TypeVar("_T")
_UNTOLD: Final = "written by another program, or too large for its story"


@dataclass(frozen=True)
class DeadLetterRecord:
    """A dead letter, what its message holds, and all messages that hold it.

    Attributes:
        letter: without its body where that is in a blob.
        content: of the newest message.
        epoch, generation: of the task that died.
        origin: the service's id of the message as which it was pushed; empty where nobody wrote that down.
        messages: the newest one first, and those that it makes superfluous.
        ledger: the book in which its task is kept; empty = in none.
    """

    letter: DeadLetter
    content: MessageContent
    epoch: int
    generation: int
    origin: str
    messages: tuple[Message, ...]
    ledger: str = ""

    def redriven(self, envelope: Envelope, epoch: int) -> list[tuple[bytes, MessageNotes]]:
        """Return what may be put back, best first; the next where one is too large.

        Args:
            envelope: of this record, with its payload.
            epoch: of the task that is put back.
        """
        beside = self.beside()
        try:
            task = envelope.task()
        except MalformedTask:
            former = MessageContent.read(envelope.body.decode(errors="replace")).beside
            if former.blob:  # it was given up because its payload was gone, which may be back
                former = replace(former, before=beside.before, origin=beside.origin)
                return [(b"", self._of_epoch(former, epoch) if self.ledger else former)]
            return [(envelope.body, replace(beside, id=self.letter.id)), (envelope.body, MessageNotes())]
        fresh = _of_epoch(task.redriven(deliveries=self.letter.deliveries), epoch)
        bare = _of_epoch(task.redriven(deliveries=0), epoch)
        whole = [(fresh.encode(), beside), (bare.encode(), MessageNotes())]
        # A ledger knows what is put back by its epoch: as it was it would be taken for a message left over.
        return whole if self.ledger else [*whole, (envelope.body, MessageNotes())]

    def _of_epoch(self, former: MessageNotes, epoch: int) -> MessageNotes:
        """Return what stands beside the name of a payload in the next epoch, as `Task.redriven` has it."""
        fresh = {"failures": 0, "preemptions": 0, "ends": self.letter.deliveries}
        changed = {**(former.changed or {}), "epoch": epoch, "counters": fresh, "not_before": None}
        return replace(former, changed=changed)

    def redriven_task(self, envelope: Envelope, epoch: int) -> Task:
        """Return the task that is put back in a blob; raises MalformedTask."""
        return _of_epoch(envelope.task().redriven(deliveries=self.letter.deliveries), epoch)

    def age(self) -> tuple[int, int, int, float]:
        """Return what is greater for the newer of two letters of one task."""
        return self.epoch, self.generation, self.letter.deliveries, self.letter.died

    def beside(self) -> MessageNotes:
        """Return what stands beside a task that is put back."""
        return MessageNotes(
            checkpoint=self.content.beside.checkpoint, before=self.letter.deliveries, origin=self.origin
        )

    def raised(self, epoch: int) -> str | None:
        """Return the letter's message with a higher epoch; None for one that has no story, or no room."""
        dead = self.content.beside.dead
        if dead is None:
            return None
        text = replace(self.content, beside=replace(self.content.beside, dead=dead | {"epoch": epoch})).text()
        return text if size_of(text) <= MAX_TEXT_BYTES else None


def _of_epoch(task: Task, epoch: int) -> Task:
    return task.copied({"epoch": epoch})


async def folded(
    messages: Sequence[Message], opened: Callable[[Message], Awaitable[Envelope]]
) -> list[DeadLetterRecord]:
    """Return the dead letters in messages, oldest first.

    One message that was pushed has one dead letter, its newest: a crash between write and delete leaves two of one
    generation, of which the later one knows more, and an interrupted redrive one of each epoch. What says nothing of
    its origin stands for itself alone: better shown twice than lost (S1). So does what says another's origin, or id,
    and holds other work: anybody who may send messages can write both.

    Args:
        messages: of the dead-letter queue.
        opened: returns a message with its payload; asked for those alone that may be one letter.
    """
    alike: dict[tuple[str, str, str], list[DeadLetterRecord]] = {}
    for message in messages:
        record = _read(message)
        # A ledger knows one task of an id, whatever messages it was pushed as.
        origin = "" if record.ledger else record.origin or message.id
        alike.setdefault((record.letter.id, record.ledger, origin), []).append(record)
    found: list[DeadLetterRecord] = []
    for records in alike.values():
        same: dict[str, list[DeadLetterRecord]] = {}
        for record in records:
            message = record.messages[0]
            work = message.id if len(records) == 1 else await _work(message, opened)
            same.setdefault(work, []).append(record)
        for each in same.values():
            newest = max(each, key=DeadLetterRecord.age)
            others = [one.messages[0] for one in each if one is not newest]
            found.append(replace(newest, messages=(*newest.messages, *others)))
    return sorted(found, key=lambda record: record.letter.died)


async def _work(message: Message, opened: Callable[[Message], Awaitable[Envelope]]) -> str:
    """Return what tells the work of a message from other work; of one that cannot be read now, what no other has."""
    try:
        return work_in((await opened(message)).body)
    except JobqError:
        return message.id


def id_in(envelope: Envelope) -> str:
    """Return the id of the task in a message; empty when there is none."""
    try:
        return envelope.task().id
    except MalformedTask:
        return ""


def _read(message: Message) -> DeadLetterRecord:
    """Return a record of one message."""
    content = MessageContent.read(message.text)
    envelope = Envelope(content)
    story: dict[str, Any] = content.beside.dead or {}

    def field(name: str, usual: _T) -> _T:
        value = story.get(name, usual)
        return value if type(value) is type(usual) else usual

    def count(name: str, usual: int = 0, most: int = MAX_COUNT) -> int:
        return min(max(0, field(name, usual)), most)

    epoch, generation = _numbers_in(envelope)
    ledger, id_ = _kept(content)
    ledger = field("ledger", "") or ledger
    letter = DeadLetter(
        # Who knew no ledger took the task for malformed, and the message's id for its own.
        id=id_ or id_in(envelope) or field("id", "") or message.id,
        reason=field("reason", "unknown"),
        description=field("description", _UNTOLD),
        body=content.body,
        deliveries=count("deliveries"),
        died=field("died", float(message.inserted)),  # of another program's: when it was written
        batch=batch_of_book(ledger) if ledger else None,
    )
    origin = field("origin", "")
    numbers = count("epoch", epoch, MAX_EPOCH), count("generation", generation)
    return DeadLetterRecord(letter, content, *numbers, origin, (message,), ledger)


def _kept(content: MessageContent) -> tuple[str, str]:
    """Return the book in which a task is kept, and its id; both empty = in none."""
    if book := ledger_in(content.body):
        return book, id_in(Envelope(content))
    for beside in (content.beside, MessageContent.read(content.body.decode(errors="replace")).beside):
        if beside.ledger:
            return beside.ledger, beside.id
    return "", ""


def _numbers_in(envelope: Envelope) -> tuple[int, int]:
    """Return the epoch and generation of a task; a letter without a story has no others."""
    try:
        task = envelope.task()
    except MalformedTask:
        return 0, 0
    return task.epoch, task.generation
