"""The dead-letter place of a Storage Queue: the queue QUEUE-failed, with a line before each body that tells its story.

The service has none of its own, so a dead letter is written there first and deleted after. A crash between the two
leaves it in both, and the next delivery writes it again: readers fold records by id, epoch and generation.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from jobq.backend import DeadLetter, FencingNumber
from jobq.errors import LockLost, MalformedTask
from jobq.task import Task
from jobq_azure.content import MAX_TEXT_BYTES, Content, size_of
from jobq_azure.wire import MOST_AT_ONCE, Message, Wire

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


@dataclass(frozen=True)
class _Record:
    """A dead letter, and the messages that hold it."""

    letter: DeadLetter
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
            "description": description,
            "deliveries": given_up.deliveries,
            "died": time.time(),
        }
        text = Content(given_up.body, "dead", story).text()
        for length in (3000, 1000, 300, 0):
            if size_of(text) <= MAX_TEXT_BYTES:
                break
            story["description"] = description[-length:] if length else ""
            text = Content(given_up.body, "dead", story).text()
        if size_of(text) > MAX_TEXT_BYTES:
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

        async def send(letter: DeadLetter) -> None:
            try:
                body = Task.decode(letter.body).redriven(deliveries=0).encode()
            except MalformedTask:
                body = letter.body
            await self._main.put(Content(body).text())

        return await self._each(ids, send)

    async def purge(self, ids: Sequence[str]) -> list[str]:
        """Delete dead letters."""

        async def nothing(_letter: DeadLetter) -> None:
            pass

        return await self._each(ids, nothing)

    async def _each(self, ids: Sequence[str], do: Any) -> list[str]:
        """Do something with each of these dead letters, delete it, and put back the others."""
        wanted, done = set(ids), set()
        messages = await self._hold()
        kept = {message.id: message for message in messages}
        try:
            for record in _folded(messages):
                if record.letter.id in wanted:
                    if record.letter.id not in done:
                        await do(record.letter)
                    done.add(record.letter.id)
                    for message in record.messages:
                        del kept[message.id]
                        await self._wire.delete(message.id, message.receipt)
        finally:
            await self._let_go(list(kept.values()))
        return [each for each in ids if each in done]

    async def _hold(self) -> list[Message]:
        """Lease all there is, for a look that sees each once."""
        found: list[Message] = []
        while more := await self._wire.get(MOST_AT_ONCE, _HOLD_SECONDS):
            found += more
        return found

    async def _let_go(self, messages: list[Message]) -> None:
        async def show(message: Message) -> None:
            with contextlib.suppress(LockLost):  # another reader has it
                await self._wire.update(message.id, message.receipt, 0)

        for at in range(0, len(messages), MOST_AT_ONCE):
            await asyncio.gather(*(show(message) for message in messages[at : at + MOST_AT_ONCE]))


def _folded(messages: Sequence[Message]) -> list[_Record]:
    """Return the dead letters in messages, oldest first, newest generation first among those of one id."""
    found: dict[tuple[str, int, int], _Record] = {}
    for message in messages:
        key, letter = _read(message)
        known = found.get(key)
        found[key] = _Record(letter, (*known.messages, message)) if known else _Record(letter, (message,))
    return sorted(found.values(), key=lambda record: record.letter.died)


def _read(message: Message) -> tuple[tuple[str, int, int], DeadLetter]:
    content = Content.read(message.text)
    story: dict[str, Any] = content.beside if content.kind == "dead" else {}

    def field(name: str, usual: Any) -> Any:
        value = story.get(name, usual)
        return value if type(value) is type(usual) else usual

    task_id = field("id", "") or _id_in(content.body) or message.id
    letter = DeadLetter(
        id=task_id,
        reason=field("reason", "unknown"),
        description=field("description", "written by another program, or too large for its story"),
        body=content.body,
        deliveries=field("deliveries", 0),
        died=field("died", 0.0),
    )
    return (task_id, field("epoch", 0), field("generation", 0)), letter


def _id_in(body: bytes) -> str:
    try:
        return Task.decode(body).id
    except MalformedTask:
        return ""
