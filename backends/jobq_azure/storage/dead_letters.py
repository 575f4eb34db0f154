"""The dead-letter place of a Storage Queue: the queue QUEUE-failed, with a line before each body that says why.

The service has none of its own, so a dead letter is written there first and deleted after. A crash between the two
leaves it in both, and the next delivery writes it again: readers fold what began as one message
(`dead_letter_format.folded`).
"""

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Hashable, Sequence
from dataclasses import replace
from typing import Any, Final

from jobq.backend import DeadLetter
from jobq.batch_ids import IdInBatch, check_one_work, is_meant, key_of
from jobq.delivery import BaseDelivery
from jobq.errors import (
    AccessDenied,
    BackendUnavailable,
    JobqError,
    LeaseError,
    LockLost,
    MalformedTask,
    PushUnknown,
    QueueNotFound,
)
from jobq.formats.task_fields import MAX_EPOCH
from jobq_azure.common.errors import NoAnswer
from jobq_azure.common.letter_work import work_in
from jobq_azure.storage import held_letters
from jobq_azure.storage.dead_letter_format import DeadLetterRecord, folded
from jobq_azure.storage.envelope import Envelope, spilled
from jobq_azure.storage.held_letters import HeldLetters
from jobq_azure.storage.large_payloads import SUFFIX as SUFFIX  # noqa: PLC0414 - of the queue's name
from jobq_azure.storage.large_payloads import Payloads, within
from jobq_azure.storage.letter_ledger import LetterLedger, OtherWork, not_kept
from jobq_azure.storage.message_format import MAX_TEXT_BYTES, MessageContent, MessageNotes, size_of
from jobq_azure.storage.queue_client import EPOCH_SECONDS, MOST_AT_ONCE, StorageQueueClient
from jobq_azure.storage.queue_messages import Message

_SPILL_SECONDS: Final = 2.0  # for a story's room: the settle that waits for it has 7.5 s at most
_MARGIN: Final = 50  # letters beyond the limit that are looked at, since some fold into one
_BLOBS_AT_ONCE: Final = 8
_BLOB_SECONDS: Final = 10.0
_log: Final = logging.getLogger(__name__)
Do = Callable[[DeadLetterRecord, dict[str, Message]], Awaitable[None]]
Check = Callable[[Sequence[str], Sequence[DeadLetterRecord]], Awaitable[None]]


class StorageDeadLetters:
    """Reads and writes the dead letters of one queue.

    Args:
        wire: requests to QUEUE-failed.
        payloads: its blobs.
        main: requests to the queue itself, for redrives.
        main_payloads: the queue's own blobs.

    Attributes:
        ledger: keeps the tasks of batches; None = nothing of those is put back or deleted.
    """

    def __init__(
        self, wire: StorageQueueClient, payloads: Payloads, main: StorageQueueClient, main_payloads: Payloads
    ) -> None:
        self._wire = wire
        self._payloads = payloads
        self._main = main
        self._main_payloads = main_payloads
        self._letters = HeldLetters(wire)
        self.ledger: LetterLedger | None = None

    async def create(self) -> None:
        """Make the queue."""
        await self._wire.create()

    async def make_ready(self) -> None:
        """Make the queue if it is missing beside its own, as a portal makes it; warn where that may not be."""
        try:
            await self._wire.peek(1)  # what a worker may do, unlike a look at the queue's properties
        except QueueNotFound as missing:
            try:
                await self._main.peek(1)  # beside no queue nothing is made
                await self._wire.create()
            except QueueNotFound:
                return
            except (JobqError, NoAnswer) as error:
                what = "what fails for good cannot be given up, and comes again and again"
                _log.warning("%s; it cannot be made from here (%s): %s", missing, error, what)
            else:
                _log.warning("%s was missing, and is made", self._wire.place)
        except (JobqError, NoAnswer) as error:
            _log.debug("%s: whether it is there is not known: %s", self._wire.place, error)

    async def bury(
        self, given_up: BaseDelivery, envelope: Envelope, message_id: str, reason: str, description: str
    ) -> None:
        """Write a dead letter.

        A story that does not fit beside the body is cut; where there is no room for any, the body goes to a blob, and
        where that cannot be, it stays as it is and the story goes to the log (item 3 of the issue).

        Args:
            given_up: the delivery.
            envelope: what it holds.
            message_id: of its message.
            reason: one word.
            description: what happened, for people.
        """
        epoch, generation, _ = given_up.fencing
        story: dict[str, Any] = {
            "id": given_up.id,
            "origin": envelope.content.beside.origin or message_id,
            "epoch": epoch,
            "generation": generation,
            "reason": reason,
            "description": description.encode("utf-8", "replace").decode(),
            "deliveries": given_up.deliveries,
            "died": time.time(),
        }
        if book := envelope.ledger:
            story["ledger"] = book
        beside = MessageNotes(checkpoint=given_up.checkpoint_value, dead=story)
        try:
            await self._write(envelope, beside)
        except QueueNotFound as missing:  # the queue, or the container
            try:
                await self._wire.create()
            except AccessDenied:
                raise missing from None
            await self._write(envelope, beside)

    async def _write(self, envelope: Envelope, beside: MessageNotes) -> None:
        if envelope.payload is not None:  # a copy: each message owns its blob
            await self._bury_in_blob(envelope, beside)
        elif (text := _fitting(MessageContent(envelope.body, beside))) is not None:
            await self._wire.put(text)
        else:
            await self._bury_without_room(envelope, beside)

    async def _bury_without_room(self, envelope: Envelope, beside: MessageNotes) -> None:
        try:
            await self._bury_in_blob(envelope, beside, _SPILL_SECONDS)
        except JobqError as error:
            story = beside.dead or {}
            _log.error(
                "dead letter %s leaves no room for its story in %s (%s): %s: %s",
                story["id"],
                self._wire.place,
                error,
                story["reason"],
                story["description"],
            )
            await self._wire.put(envelope.text)  # as it came: so much is known to fit

    async def _bury_in_blob(self, envelope: Envelope, beside: MessageNotes, seconds: float | None = None) -> None:
        blob = await within(seconds, self._payloads.store(envelope.body))
        content = MessageContent(b"", replace(beside, blob=blob, changed=envelope.content.beside.changed))
        text = _fitting(content)
        if text is None:  # a checkpoint that jobq has not saved: it would not have taken one so large
            text = _fitting(replace(content, beside=replace(content.beside, checkpoint=None)))
        if text is None:
            await self._payloads.remove(blob)
            raise MalformedTask("has no room for its story")
        await _put(self._wire, text, self._payloads, blob)

    async def count(self) -> int:
        """Return about how many records there are; one that was written twice counts twice."""
        return await self._wire.count()

    async def letters(self, limit: int) -> list[DeadLetter]:
        """Return up to `limit` dead letters, oldest first, of the first 32 or, for a higher limit, of more."""
        messages = await self._wire.peek(MOST_AT_ONCE)
        if len(messages) == MOST_AT_ONCE and limit > MOST_AT_ONCE:
            async with self._letters.held(limit + _MARGIN) as held:
                messages = list(held.values())
        if len(messages) < min(limit, MOST_AT_ONCE) and (hidden := await self._hidden(messages)):
            _log.warning("%s: %s", self._wire.place, _held_elsewhere(hidden))
        turn = asyncio.Semaphore(_BLOBS_AT_ONCE)

        async def whole(record: DeadLetterRecord) -> DeadLetter:
            async with turn:
                try:
                    body = (await self._opened(record.messages[0])).body
                    return replace(record.letter, body=body, work=work_in(body))
                except JobqError as error:  # one that cannot be had hides no other (S11)
                    description = f"{record.letter.description}\n(its payload cannot be had now: {error})".lstrip()
                    return replace(record.letter, description=description)

        return await asyncio.gather(*(whole(record) for record in (await folded(messages, self._opened))[:limit]))

    async def walk(self) -> AsyncGenerator[list[IdInBatch]]:
        """Yield the ids of all dead letters, some hundred at a time, which are held for who takes them meanwhile."""
        count = 0
        async with contextlib.aclosing(self._letters.windows()) as windows:
            async for window in windows:
                letters = [record.letter for record in await folded(list(window.values()), self._opened)]
                yield list(
                    {key_of(id_): id_ for each in letters if (id_ := IdInBatch.of(each.id, each.batch))}.values()
                )
                count += len(window)  # which were not taken out of it
            if hidden := await self._hidden(range(count)):
                _log.warning("%s: %s", self._wire.place, _held_elsewhere(hidden))

    async def redrive(self, ids: Sequence[str]) -> list[str]:
        """Put dead letters back: send first, delete after; raises PushUnknown for one that may be back or not."""

        async def send(record: DeadLetterRecord, held: dict[str, Message]) -> None:
            await self._send(record, held)
            try:
                await self._delete(record, held)
            except (BackendUnavailable, LockLost, NoAnswer) as error:  # it is back: to send it again would make two
                _log.warning("%s is back, and perhaps still a dead letter too: purge it: %s", record.letter.id, error)

        return await self._each(ids, send)

    async def _send(self, record: DeadLetterRecord, held: dict[str, Message]) -> None:
        envelope = await self._opened(record.messages[0])
        if envelope.fault is not None:
            raise envelope.fault
        if record.ledger and self.ledger is None:
            raise not_kept(record.letter.id)
        epoch = min(record.epoch + 1, MAX_EPOCH)  # whoever may send messages can write the highest
        # A fence, and the epoch of this attempt: another reader may have the letter by now, and after a crash the next
        # attempt must send a higher one (S3, S4).
        newest = held[record.messages[0].id]
        receipt = await self._wire.update(newest.id, newest.receipt, held_letters.HOLD_SECONDS, record.raised(epoch))
        held[newest.id] = replace(newest, receipt=receipt)
        if not await self._is_to_be_sent(record, envelope, epoch):
            return
        try:
            await self._send_fitting(record, envelope, epoch)
        except NoAnswer as error:
            await asyncio.sleep(EPOCH_SECONDS)  # what is sent when this is repeated has another epoch (S3)
            what = f"{error}; {record.letter.id} may or may not be back in the queue, and is still a dead letter"
            raise PushUnknown(what, [record.letter.id]) from None
        if self.ledger is not None and record.ledger:
            with contextlib.suppress(JobqError):  # whoever claims it notes as much
                await self.ledger.redriven(record.ledger, record.letter.id, epoch)

    async def _is_to_be_sent(self, record: DeadLetterRecord, envelope: Envelope, epoch: int) -> bool:
        """Return whether a letter goes back: not one left behind, whose task is back or has ended, by its batch."""
        if self.ledger is None or not record.ledger:
            return True
        if envelope.lost_payload:  # it was given up without its payload, which may be there again
            envelope = await within(_BLOB_SECONDS, self._main_payloads.opened(envelope.body.decode(errors="replace")))
        return await self.ledger.redriving(record.ledger, record.letter.id, epoch, envelope.work)

    async def _send_fitting(self, record: DeadLetterRecord, envelope: Envelope, epoch: int) -> None:
        contents = [MessageContent(body, beside) for body, beside in record.redriven(envelope, epoch)]
        texts = [text for content in contents if size_of(text := content.text()) <= MAX_TEXT_BYTES]
        if len(texts) < len(contents) and self._main_payloads.are_possible:
            with contextlib.suppress(MalformedTask):  # what is no task is not spilled: nobody could run it
                task = record.redriven_task(envelope, epoch)
                blob = await self._main_payloads.store(task.encode())
                await _put(self._main, spilled(task, blob, record.beside()).text(), self._main_payloads, blob)
                return
        await self._main.put(texts[0] if texts else contents[-1].text())

    async def _opened(self, message: Message) -> Envelope:
        """Return what a message holds, with its payload or the reason why that will never be had."""
        return await within(_BLOB_SECONDS, self._payloads.opened(message.text))

    async def purge(self, ids: Sequence[str]) -> list[str]:
        """Delete dead letters."""
        purged = await self._each(ids, self._purge, self._check_one_work)
        with contextlib.suppress(JobqError, NoAnswer):  # they are gone all the same: somebody else's purge sweeps
            # The service's count is never too low. What was put back by hand names the payload of its letter.
            if await self._wire.count() == await self._main.count() == 0:
                await self._payloads.sweep()
        return purged

    async def _check_one_work(self, ids: Sequence[str], records: Sequence[DeadLetterRecord]) -> None:
        """Raise ConfigurationError where an id alone means letters of different work."""
        alike = Counter(record.letter.id for record in records)
        wanted = set(map(str, ids))
        several = [each for each in records if alike[each.letter.id] > 1 and each.letter.id in wanted]
        works = [work_in((await self._opened(each.messages[0])).body) for each in several]
        check_one_work(
            ids, ((each.letter.id, each.letter.batch, work) for each, work in zip(several, works, strict=True))
        )

    async def _purge(self, record: DeadLetterRecord, held: dict[str, Message]) -> None:
        if record.ledger:
            if self.ledger is None:
                raise not_kept(record.letter.id)
            newest = held[record.messages[0].id]  # another reader may have the letter by now, to put it back
            receipt = await self._wire.update(newest.id, newest.receipt, held_letters.HOLD_SECONDS)
            held[newest.id] = replace(newest, receipt=receipt)
            envelope = await self._opened(record.messages[0])
            work = "" if envelope.lost_payload else envelope.work
            await self.ledger.purging(record.ledger, record.letter.id, work)
        await self._delete(record, held)

    async def _each(self, ids: Sequence[str], do: Do, check: Check | None = None) -> list[str]:
        """Do something with each of these dead letters, and show again what it leaves; `check` first may refuse."""
        done, left = set[Hashable](), set[Hashable]()
        try:
            await self._each_to(ids, do, check, done, left)
        except (JobqError, NoAnswer) as error:
            error.done = [each for each in ids if key_of(each) in done - left]
            raise
        return [each for each in ids if key_of(each) in done - left]

    async def _each_to(
        self, ids: Sequence[str], do: Do, check: Check | None, done: set[Hashable], left: set[Hashable]
    ) -> None:
        """Note which ids were done, and which were left: a plain one may mean letters of several batches."""
        wanted = _by_text(ids)
        stay: list[JobqError] = []
        is_walk = self._letters.window is not None  # which holds some of them, and whose caller means these
        async with self._letters.held() as held:
            hidden = 0 if is_walk else await self._hidden(held)
            records = await folded(list(held.values()), self._opened)
            if check is not None and not is_walk:
                await check(ids, records)
            for record in records:
                keys = await self._keys_of(wanted.get(record.letter.id, ()), record)
                try:
                    is_done = bool(keys) and await self._done(do, record, held, keys)
                except LockLost:  # another reader has it, and shows it again
                    hidden += 1
                    left |= keys
                except (PushUnknown, LeaseError):
                    raise
                except JobqError as error:  # the others can be had all the same (S11)
                    stay.append(error)
                    left |= keys
                else:
                    done |= keys if is_done else set()
        if stay:
            raise stay[0]
        if hidden and (missing := len({key_of(each) for each in ids} - (done - left))):
            what = f"{missing} of these dead letters are not to be had now: {_held_elsewhere(hidden)}; run it again"
            raise BackendUnavailable(f"{self._wire.place}: {what}")

    async def _done(
        self, do: Do, record: DeadLetterRecord, held: dict[str, Message], keys: Collection[Hashable]
    ) -> bool:
        """Do it to one letter; return False where it was not meant after all; an error names what stays.

        An id that names a batch does not mean what only says that it is of it. What another reader has is not held.
        """
        try:
            await do(record, held)
        except OtherWork as error:
            if any(isinstance(key, str) for key in keys):
                raise
            _log.warning("%s: %s", self._wire.place, error)
            return False
        except LockLost:
            for message in record.messages:
                held.pop(message.id, None)
            raise
        except (PushUnknown, LeaseError):
            raise
        except JobqError as error:
            remedy = "; `dead purge` deletes it" if isinstance(error, MalformedTask) else ""
            error.add_note(f"dead letter {record.letter.id} stays as it is{remedy}")
            raise
        return True

    async def _keys_of(self, ids: Sequence[str], record: DeadLetterRecord) -> set[Hashable]:
        """Return the `key_of` each of these ids, which are that of a letter, by which this letter is meant."""
        work = ""
        if any(isinstance(each, IdInBatch) and each.work for each in ids):
            work = work_in((await self._opened(record.messages[0])).body)
        return {key_of(each) for each in ids if is_meant(each, record.letter.batch, work)}

    async def _hidden(self, seen: Collection[object]) -> int:
        """Return how many are there beside those that were seen; 0 for who may process messages, and not count them."""
        try:
            return max(0, await self._wire.count() - len(seen))  # the service's count is never too low
        except AccessDenied:
            return 0

    async def _delete(self, record: DeadLetterRecord, held: dict[str, Message]) -> None:
        """Delete the messages of a letter, the newest last; raises LockLost when another reader has that."""
        for message in reversed(record.messages):
            try:
                await self._wire.delete(message.id, held[message.id].receipt)
            except LockLost:
                del held[message.id]  # another reader shows it again, or deletes it with its blob
                if message.id == record.messages[0].id:
                    raise
                continue
            del held[message.id]
            if blob := MessageContent.read(message.text).beside.blob:
                await self._payloads.remove_of(blob, message.id)


def _held_elsewhere(count: int) -> str:
    return f"the service counts {count} more, which another reader holds for {held_letters.HOLD_SECONDS} s at most"


def _fitting(content: MessageContent) -> str | None:
    """Return a dead letter's message, its description cut where it must be; None where there is no room for any."""
    story = dict(content.beside.dead or {})
    description = story["description"]
    for length in (None, 3000, 1000, 300, 100, 0):
        if length is not None:
            story["description"] = description[-length:] if length else ""
        text = replace(content, beside=replace(content.beside, dead=story)).text()
        if size_of(text) <= MAX_TEXT_BYTES:
            return text
    return None


async def _put(wire: StorageQueueClient, text: str, payloads: Payloads, blob: str) -> None:
    """Add a message that owns a blob; the blob goes again when it is certain that the message is not there."""
    try:
        message_id, _ = await wire.put(text)
    except JobqError:
        await payloads.remove(blob)
        raise
    await payloads.give(blob, message_id)


def _by_text(ids: Sequence[str]) -> dict[str, list[str]]:
    """Return ids, which may say of which batch, by what they are as texts."""
    found: dict[str, list[str]] = {}
    for each in ids:
        found.setdefault(str(each), []).append(each)
    return found
