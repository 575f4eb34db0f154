"""What a journal writes into its table: notes wait in a bounded buffer, and one loop writes them, off the tasks' path.

A table that is slow, away or refusing delays nothing and fails nothing: notes wait for it, the newest of each row; when
there are too many, some are dropped, and the log says how many, once a minute and at the end.
"""

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from jobq.errors import JobqError
from jobq_azure.common.errors import NoAnswer
from jobq_azure.table_journal.client import MOST_ROWS, TableWire, Verb, Write
from jobq_azure.table_journal.errors import WriteRefused
from jobq_azure.table_journal.note import Note

MOST_NOTES: Final = 20_000
MOST_BYTES: Final = 16 * 1024 * 1024
FLUSH_SECONDS: Final = 3.0  # at the end, for what is still to be written; within the 30 s of a stop (P8)
_LINGER_SECONDS: Final = 0.1  # a note waits so long for company
_TRANSACTION_BYTES: Final = 3 * 1024 * 1024  # the service takes 4 MiB
_FIRST_PAUSE_SECONDS: Final = 0.5
_LONGEST_PAUSE_SECONDS: Final = 15.0
_WARN_SECONDS: Final = 60.0
_ASKED_AT_ONCE: Final = 32
_log: Final = logging.getLogger(__name__)


# Returns notes to be written before, when that has to be looked up first.
Inquiry = Callable[[], Awaitable[list[Note]]]


class Writer:
    """The buffer, and the loop that empties it.

    Args:
        wire: entered, until after `aclose`.
        most_notes, most_bytes: of the buffer.
    """

    def __init__(self, wire: TableWire, most_notes: int = MOST_NOTES, most_bytes: int = MOST_BYTES) -> None:
        self._wire = wire
        self._most_notes = most_notes
        self._most_bytes = most_bytes
        self._notes: dict[tuple[str, str], Note] = {}
        self._spare: dict[tuple[str, str], None] = {}  # the keys of those that are, oldest first
        self._inquiries: dict[tuple[str, str], Inquiry] = {}
        self._bytes = 0
        self._waiting = asyncio.Event()  # something is to be written
        self._moved = asyncio.Event()  # notes were written, or cannot be
        self._closing = asyncio.Event()
        self._loop: asyncio.Task[None] | None = None
        self._dropped = 0  # since the last warning
        self._warned = 0.0  # when, by the monotonic clock
        self._trouble = ""
        self._pause = _FIRST_PAUSE_SECONDS

    def __len__(self) -> int:
        return len(self._notes)

    @property
    def bytes(self) -> int:
        """About how much memory the notes take."""
        return self._bytes

    def add(self, notes: Iterable[Note], inquiry: Inquiry | None = None) -> None:
        """Take notes, and return at once; one of a row takes the place of an earlier one.

        Args:
            notes: in the order in which they are to be written.
            inquiry: made once before the first of them is written, or what takes its place.
        """
        first: Note | None = None
        for note in notes:
            first = first or note
            if (waiting := self._notes.get(note.key)) is not None and _knows_more(waiting, note):
                continue
            self._remove(note.key)
            if self._has_room(note):
                self._notes[note.key] = note
                self._bytes += note.bytes
                if note.is_spare:
                    self._spare[note.key] = None
            else:
                self._dropped += 1
        if first is not None and inquiry is not None and first.key in self._notes:
            self._inquiries[first.key] = inquiry
        if self._notes and self._loop is None:
            self._loop = asyncio.create_task(self._write_for_ever(), name="journal writer")
        self._waiting.set()

    def _has_room(self, note: Note) -> bool:
        """Make room, at the cost of what is worth less."""
        while len(self._notes) >= self._most_notes or self._bytes + note.bytes > self._most_bytes:
            if note.is_spare or not self._spare:
                return False
            spare = next(iter(self._spare))
            self._remove(spare)
            self._inquiries.pop(spare, None)
            self._dropped += 1
        return True

    def _remove(self, key: tuple[str, str]) -> None:
        if (note := self._notes.pop(key, None)) is not None:
            self._bytes -= note.bytes
            self._spare.pop(key, None)

    async def room(self, seconds: float) -> None:
        """Wait for room for many notes: for so long at most, and while the table answers."""
        try:
            async with asyncio.timeout(seconds):
                while len(self._notes) > self._most_notes // 2 and not self._trouble:
                    self._moved.clear()
                    await self._moved.wait()
        except TimeoutError:
            pass

    async def aclose(self, seconds: float = FLUSH_SECONDS) -> None:
        """Write what is left, for so long at most and while that succeeds; then say what was not written."""
        self._closing.set()
        self._waiting.set()
        if self._loop is not None:
            await asyncio.wait({self._loop}, timeout=seconds)
            self._loop.cancel()
            await asyncio.wait({self._loop})
        self._drop_all()
        if self._dropped:
            self._warn(
                f"{self._dropped} notes were not written, as far as is known; the tasks themselves are not concerned"
            )

    def _drop_all(self) -> None:
        self._dropped += len(self._notes)
        self._notes.clear()
        self._spare.clear()
        self._inquiries.clear()
        self._bytes = 0

    async def _write_for_ever(self) -> None:
        while True:
            if not self._notes:
                if self._closing.is_set():
                    return
                self._waiting.clear()
                await self._waiting.wait()
                await _either(self._closing, _LINGER_SECONDS)
                continue
            try:
                await self._write_some()
            except (JobqError, NoAnswer) as error:
                self._failed(str(error))
                if self._closing.is_set():
                    return
                await _either(self._closing, self._pause)
                self._pause = min(2 * self._pause, _LONGEST_PAUSE_SECONDS)
            except Exception:  # noqa: BLE001 - a fault of ours in one note: logged, and not repeated for ever
                _log.exception("the journal of %s: internal error; what was to be written is dropped", self._place)
                self._drop_all()

    async def _write_some(self) -> None:
        batch = await self._asked(self._next())
        made = [(note, values) for note in batch if (values := note.make()) is not None]
        wanted = {id(note) for note, _ in made}
        self._written(note for note in batch if id(note) not in wanted)
        while made:
            writes = [Write(note.verb, note.row, values, note.etag) for note, values in made]
            try:
                await self._wire.write(made[0][0].partition, writes)
            except WriteRefused as refused:
                made = await self._without(made, refused)
                if made:
                    continue
            self._written([note for note, _ in made])
            self._recovered()  # it was answered, if only by a refusal
            return

    async def _asked(self, batch: Sequence[Note]) -> list[Note]:
        """Look up what has to be known before these are written; return those of which it is known now."""
        turn = asyncio.Semaphore(_ASKED_AT_ONCE)

        async def ask(note: Note) -> None:
            async with turn:
                if (inquiry := self._inquiries.get(note.key)) is not None:
                    self.add(await inquiry())
                    self._inquiries.pop(note.key, None)
                if note.look is not None:
                    await note.look()

        answers = await asyncio.gather(*(ask(note) for note in batch), return_exceptions=True)
        errors = [answer for answer in answers if answer is not None]
        self._put_last(note for note, answer in zip(batch, answers, strict=True) if answer is not None)
        faults = [error for error in errors if not isinstance(error, JobqError | NoAnswer)]
        if faults or len(errors) == len(batch):
            raise (faults or errors)[0]
        return [note for note, answer in zip(batch, answers, strict=True) if answer is None]

    def _put_last(self, notes: Iterable[Note]) -> None:
        """Let others be written before these."""
        for note in notes:
            if self._notes.get(note.key) is note:
                self._notes[note.key] = self._notes.pop(note.key)

    def _next(self) -> list[Note]:
        """Return what goes into one transaction, oldest first: of one partition, and not too much; in trouble one."""
        batch: list[Note] = []
        size = 0
        for note in self._notes.values():
            if batch and note.partition != batch[0].partition:
                continue
            if batch and (self._trouble or len(batch) >= MOST_ROWS or size + note.bytes > _TRANSACTION_BYTES):
                break
            batch.append(note)
            size += note.bytes
        return batch

    async def _without(
        self, made: list[tuple[Note, Mapping[str, Any]]], refused: WriteRefused
    ) -> list[tuple[Note, Mapping[str, Any]]]:
        """Return a transaction without what was refused; where nobody says which it was, the first half of it."""
        if refused.index is None and len(made) > 1:
            return made[: len(made) // 2]  # the rest stays in the buffer
        note, values = made.pop(min(refused.index or 0, len(made) - 1))
        if not refused.is_conflict or note.look is None:
            self._settled(note)  # else it stays in the buffer, and is looked up again: somebody has written since
        if not refused.is_conflict:
            self._dropped += 1
            self._warn(f"a row of {len(json.dumps(dict(values)))} bytes was refused: {refused}")
            return made
        # What is there already, or gone already, was written by somebody who knew more; and it is seldom alone.
        keys = sorted(each.row for each, _ in made if each.verb is not Verb.REPLACE)
        if not keys:
            return made
        found, more = await self._wire.look(note.partition, keys[0], f"{keys[-1]}!", select="At")
        if more is not None:
            return made
        there = {row["RowKey"] for row in found}
        known = [each for each, _ in made if each.row in there and each.verb is Verb.INSERT]
        known += [each for each, _ in made if each.row not in there and each.verb is Verb.DELETE]
        self._written(each for each in known if each.look is None)  # the others stay, and are looked up
        return [pair for pair in made if pair[0] not in known]

    def _written(self, notes: Iterable[Note]) -> None:
        for note in notes:
            note.written()
            self._settled(note)

    def _settled(self, note: Note) -> None:
        self._moved.set()
        if self._notes.get(note.key) is note:  # else there is a newer one by now
            self._remove(note.key)

    @property
    def _place(self) -> str:
        return self._wire.place.spec

    def _failed(self, why: str) -> None:
        is_news = not self._trouble
        self._trouble = why
        self._moved.set()
        if is_news or time.monotonic() - self._warned >= _WARN_SECONDS:
            dropped = f", {self._dropped} were dropped" if self._dropped else ""
            self._dropped = 0
            self._warn(f"cannot be written, and the tasks go on: {why}; {len(self._notes)} notes wait{dropped}")

    def _recovered(self) -> None:
        self._pause = _FIRST_PAUSE_SECONDS
        if self._trouble:
            self._trouble = ""
            dropped = f"; {self._dropped} notes were dropped meanwhile" if self._dropped else ""
            self._dropped = 0
            self._warn(f"is written again{dropped}")

    def _warn(self, what: str) -> None:
        self._warned = time.monotonic()
        _log.warning("the journal of %s %s", self._place, what)


def _knows_more(waiting: Note, note: Note) -> bool:
    """Return whether a note that waits to be written stays, and another of that row is dropped."""
    if note.verb is Verb.DELETE:
        return bool(note.etag)  # what was read is older
    if note.verb is Verb.INSERT:
        return waiting.verb is not Verb.DELETE
    return waiting.order > note.order


async def _either(event: asyncio.Event, seconds: float) -> None:
    """Wait for an event, or for so long."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        pass
