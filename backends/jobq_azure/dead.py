"""The dead-letter place of a Storage Queue: the queue QUEUE-failed, with a line before each body that tells its story.

The service has none of its own, so a dead letter is written there first and deleted after. A crash between the two
leaves it in both, and the next delivery writes it again: readers fold records by id, epoch and generation.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol, TypeVar

from jobq.backend import DeadLetter, FencingNumber
from jobq.errors import LockLost, MalformedTask
from jobq.task import Task
from jobq_azure.content import MAX_TEXT_BYTES, Beside, Content, size_of
from jobq_azure.wire import MOST_AT_ONCE, Message, Wire

_T = TypeVar("_T")
SUFFIX: Final = "-failed"
_HOLD_SECONDS: Final = 60  # how long a reader hides what it looks through
_log: Final = logging.getLogger(__name__)


class Buried(Protocol):
    """What is known of a delivery that is given up."""

    @property
    def id(self) -> str: ...  # noqa: D102 - as in jobq.backend.Delivery, like the next

    @property
    def body(self) -> bytes: ...  # noqa: D102

    @property
    def deliveries(self) -> int: ...  # noqa: D102

    @property
    def fencing(self) -> FencingNumber: ...  # noqa: D102

    @property
    def checkpoint_value(self) -> str | None: ...  # noqa: D102


@dataclass(frozen=True)
class _Record:
    """A dead letter, its checkpoint, and the messages that hold it."""

    letter: DeadLetter
    checkpoint: str | None
    messages: tuple[Message, ...]


class Graveyard:
    """Reads and writes the dead letters of one queue.

    Args:
        wire: requests to QUEUE-failed.
        main: requests to the queue itself, for redrives.
    """

    def __init__(self, wire: Wire, main: Wire) -> None:
        self._wire = wire
        self._main = main

    async def create(self) -> None:
        """Make the queue."""
        await self._wire.create()

    async def bury(self, given_up: Buried, reason: str, description: str) -> None:
        """Write a dead letter; the description is cut where it does not fit beside the body (item 3 of the issue).

        Args:
            given_up: the delivery.
            reason: one word.
            description: what happened, for people.
        """
        epoch, generation, _ = given_up.fencing
        story: dict[str, Any] = {
            "id": given_up.id,
            "epoch": epoch,
            "generation": generation,
            "reason": reason,
            "description": (description := description.encode("utf-8", "replace").decode()),
            "deliveries": given_up.deliveries,
            "died": time.time(),
        }
        beside = Beside(checkpoint=given_up.checkpoint_value, dead=story)
        for length in (None, 3000, 1000, 300, 0):
            if length is not None:
                story["description"] = description[-length:] if length else ""
            if size_of(text := Content(given_up.body, beside).text()) <= MAX_TEXT_BYTES:
                break
        else:
            _log.error(
                "dead letter %s leaves no room for its story in %s: %s: %s",
                given_up.id,
                self._wire.place,
                reason,
                description,
            )
            text = Content(given_up.body).text()
        await self._wire.put(text)

    async def count(self) -> int:
        """Return about how many records there are; one that was written twice counts twice."""
        return await self._wire.count()

    async def letters(self, limit: int) -> list[DeadLetter]:
        """Return up to `limit` dead letters, oldest first, of the first 32 or, for a higher limit, of all."""
        messages = await self._wire.peek(MOST_AT_ONCE)
        if len(messages) == MOST_AT_ONCE and limit > MOST_AT_ONCE:
            messages = await self._hold()
            await self._let_go(messages)
        return [record.letter for record in _folded(messages)][:limit]

    async def redrive(self, ids: Sequence[str]) -> list[str]:
        """Put dead letters back: send first, delete after."""

        async def send(record: _Record) -> None:
            texts = [Content(body, beside).text() for body, beside in _redriven(record)]
            fitting = (text for text in texts if size_of(text) <= MAX_TEXT_BYTES)
            await self._main.put(next(fitting, texts[-1]))

        return await self._each(ids, send)

    async def purge(self, ids: Sequence[str]) -> list[str]:
        """Delete dead letters."""

        async def nothing(_record: _Record) -> None:
            pass

        return await self._each(ids, nothing)

    async def _each(self, ids: Sequence[str], do: Callable[[_Record], Awaitable[None]]) -> list[str]:
        """Do something with each of these dead letters, delete it, and put back the others."""
        wanted, done = set(ids), set[str]()
        messages = await self._hold()
        kept = {message.id: message for message in messages}
        try:
            for record in _folded(messages):
                if record.letter.id in wanted:
                    await do(record)
                    done.add(record.letter.id)
                    for message in record.messages:
                        del kept[message.id]
                        with contextlib.suppress(LockLost):  # another reader has it
                            await self._wire.delete(message.id, message.receipt)
        finally:
            await self._let_go(list(kept.values()))
        return [each for each in ids if each in done]

    async def _hold(self) -> list[Message]:
        """Lease all there is, for a look that sees each once; ends where the first come round again."""
        found: dict[str, Message] = {}
        while more := await self._wire.get(MOST_AT_ONCE, _HOLD_SECONDS):
            known = len(found)
            found |= {message.id: message for message in more}
            if len(found) == known:
                break
        return list(found.values())

    async def _let_go(self, messages: list[Message]) -> None:
        async def show(message: Message) -> None:
            with contextlib.suppress(LockLost):  # another reader has it
                await self._wire.update(message.id, message.receipt, 0)

        for at in range(0, len(messages), MOST_AT_ONCE):
            await asyncio.gather(*(show(message) for message in messages[at : at + MOST_AT_ONCE]))


def _folded(messages: Sequence[Message]) -> list[_Record]:
    """Return the dead letters in messages, oldest first.

    One task has one dead letter, its newest: a crash between write and delete leaves two of one generation, and an
    interrupted redrive one of each epoch. Two tasks that share an id are two.
    """
    newest: dict[tuple[str, bytes], tuple[int, int]] = {}
    found: dict[tuple[str, bytes], _Record] = {}
    for message in messages:
        letter, checkpoint, number = _read(message)
        key = (letter.id, _work_in(letter.body))
        known = found.get(key)
        if known is None:
            found[key] = _Record(letter, checkpoint, (message,))
            newest[key] = number
        elif number > newest[key]:
            found[key] = _Record(letter, checkpoint, (*known.messages, message))
            newest[key] = number
        else:
            found[key] = replace(known, messages=(*known.messages, message))
    return sorted(found.values(), key=lambda record: record.letter.died)


def _read(message: Message) -> tuple[DeadLetter, str | None, tuple[int, int]]:
    """Return a dead letter, its checkpoint, and its epoch and generation."""
    content = Content.read(message.text)
    story = content.beside.dead or {}

    def field(name: str, usual: _T) -> _T:
        value = story.get(name, usual)
        return value if type(value) is type(usual) else usual

    letter = DeadLetter(
        id=field("id", "") or id_in(content.body) or message.id,
        reason=field("reason", "unknown"),
        description=field("description", "written by another program, or too large for its story"),
        body=content.body,
        deliveries=field("deliveries", 0),
        died=field("died", 0.0),
    )
    return letter, content.beside.checkpoint, (field("epoch", 0), field("generation", 0))


def _redriven(record: _Record) -> list[tuple[bytes, Beside]]:
    """Return what may be put back for a dead letter, best first; the next where one is too large."""
    letter = record.letter
    beside = Beside(checkpoint=record.checkpoint, before=letter.deliveries)
    try:
        task = Task.decode(letter.body)
    except MalformedTask:
        return [(letter.body, replace(beside, id=letter.id)), (letter.body, Beside())]
    fresh = task.redriven(deliveries=letter.deliveries).encode()
    return [(fresh, beside), (task.redriven(deliveries=0).encode(), Beside()), (letter.body, Beside())]


def _work_in(body: bytes) -> bytes:
    try:
        return Task.decode(body).fingerprint()
    except MalformedTask:
        return body


def id_in(body: bytes) -> str:
    """Return the id of the task in a body; empty when there is none."""
    try:
        return Task.decode(body).id
    except MalformedTask:
        return ""
