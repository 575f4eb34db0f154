"""`jobq QUEUE logs`: what a task has printed, and what it prints while it runs."""

import asyncio
import time
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Final

import click

from jobq.cli import completions, whole_ids
from jobq.cli.commands.status import say_missing
from jobq.cli.common import ExampleCommand, json_option, read_settings, with_queue
from jobq.cli.display import terminal

if TYPE_CHECKING:
    from jobq.backend import Backend
    from jobq.files.file_store import FileStore
    from jobq.journal.records import TaskRecord
    from jobq.journal.store import Journal

_SOME_ID: Final = "01a1fe07-5953-7359-9cd5-f423114d42f8"
_LOOK_SECONDS: Final = 0.5
_CHUNK_BYTES: Final = 1024 * 1024
_KNOWN_CHARACTERS: Final = 200  # of the journal's end, by which a log is known to be whole
_TRIES: Final = 8
_RECENT_SECONDS: Final = 60.0  # since an end: a worker sends the log within that time, or gives it up


@click.command(
    cls=ExampleCommand,
    examples=(f"jobq demo logs {_SOME_ID}", f"jobq demo logs {_SOME_ID} --attempt 1"),
)
@click.argument("id_", metavar="ID", shell_complete=completions.ids)
@click.option("--attempt", type=click.IntRange(min=1), metavar="N", help="Of this attempt. Default: the last.")
@click.option("-f", "--follow", is_flag=True, help="Go on until the task has ended.")
@click.option("--log-dir", metavar="PLACE", help="Where the worker writes all of it. Default: JOBQ_LOG_DIR.")
@json_option
@click.pass_context
def logs(ctx: click.Context, id_: str, attempt: int | None, follow: bool, log_dir: str | None, as_json: bool) -> int:
    """Show the end of what a task has printed: 64 KiB of an attempt that has ended, 4 KiB of one that runs.

    What a running task prints comes with its heartbeats, four times in a lease; where the queue is a local file, within
    seconds. With the folder or container that the worker writes to (--log-dir) all of it is shown, and at once. Control
    characters are shown as escapes; --json gives the text itself.
    """
    if follow and attempt is not None:
        raise click.UsageError("--follow goes with the attempt that runs; leave out --attempt")

    async def work(backend: "Backend") -> int:
        from jobq.journal.store import journal_of  # noqa: PLC0415 - --help must not pay for it

        journal = journal_of(backend)
        (task_id,) = await whole_ids.of_tasks(backend, [id_])
        if not await journal.find([task_id]):
            return say_missing([id_], as_json=as_json)
        printer = _Printer(task_id, as_json=as_json)
        async with AsyncExitStack() as stack:
            store = None
            if settings.log_dir is not None:
                from jobq.files.file_store import place_at  # noqa: PLC0415 - most logs are in the journal

                place = await stack.enter_async_context(place_at(settings.log_dir, settings))
                store = _Store(place, backend.name, task_id, printer)
            near = backend.capabilities.shares_machine
            return await _show(journal, store, printer, attempt, follow=follow, near=near)

    settings = read_settings(log_dir=log_dir)
    return with_queue(ctx, work, settings)


async def _show(
    journal: "Journal", store: "_Store | None", printer: "_Printer", attempt: int | None, *, follow: bool, near: bool
) -> int:
    waiting, looks = False, 0
    while True:
        record, number, text, is_recent = await _now(journal, printer.task_id, attempt)
        is_stored = store is not None and await store.show(attempt)
        looks += 1
        if store is not None and not is_stored and text and is_recent and looks <= _TRIES:
            await asyncio.sleep(_LOOK_SECONDS)  # the log is on its way, perhaps: all of it is better than its end
            continue
        if not is_stored:
            printer.show(number, text)
        if record is None and store is not None:
            await store.show_rest(number, text)
        if not waiting and record is not None and record.state == "running" and not (text or is_stored or attempt):
            waiting = True
            terminal.say(_when_it_prints(record, follow=follow, near=near))
        if not follow or record is None:
            printer.finish()
            return 0
        if not waiting and not record.attempt and record.state in ("ready", "scheduled"):
            waiting = True
            terminal.say(f"{printer.task_id} has not run yet; it is {record.state}, and this waits for it")
        await asyncio.sleep(_LOOK_SECONDS)


def _when_it_prints(record: "TaskRecord", *, follow: bool, near: bool) -> str:
    """Return when the first output of a running task will be here: its worker tells with its heartbeats.

    Args:
        record: the task's.
        follow: whether this waits for it.
        near: whether its worker renews for what it has printed.
    """
    from jobq.cli.display import format_journal  # noqa: PLC0415 - as above

    if near:
        text = "runs, and has printed nothing up to now; what it prints is here within seconds"
    elif record.beat is not None:
        text = "had printed nothing by its last heartbeat; four come in a lease"
    elif record.leased_at is None or record.lease_left is None:
        text = "runs; what it prints comes with its first heartbeat"
    else:
        age = max(0.0, time.time() - record.leased_at)
        first = max(1.0, (age + record.lease_left) / 4 - age)
        text = f"runs; what it prints comes with its first heartbeat, in about {format_journal.age(round(first))}"
    return f"{record.id} {text}" + ("" if follow else "; --follow waits for it")


class _Store:
    """The logs of one task where a worker writes all of them."""

    def __init__(self, place: "FileStore", queue: str, task_id: str, printer: "_Printer") -> None:
        self._place = place
        self._queue = queue
        self._id = task_id
        self._printer = printer
        self._name = ""  # of the log that is shown, and how far it was read
        self._offset = 0

    async def show(self, attempt: int | None) -> bool:
        """Show what is new in the log of an attempt, the last by default; return whether there is one."""
        from jobq.run.process.log_files import latest_log, log_name  # noqa: PLC0415 - as above

        if attempt is None:
            found = latest_log(await self._place.names(f"{self._queue}/{self._id}."), self._queue, self._id)
        else:
            found = attempt, log_name(self._queue, self._id, attempt)
        if found is None:
            return False
        if found[1] != self._name:
            if self._name:  # of an earlier attempt first what was still missing
                await self._read()
            self._printer.begin(found[0])
            self._name, self._offset = found[1], 0
        return await self._read()

    async def _read(self) -> bool:
        try:
            while chunk := await self._place.read(self._name, self._offset, _CHUNK_BYTES):
                self._offset += len(chunk)
                self._printer.add(chunk)
        except FileNotFoundError:
            return False
        terminal.flush()
        return True

    async def show_rest(self, attempt: int, text: str) -> None:
        """Wait a little for the end of the log of an attempt that has ended, where the journal knows what that is."""
        end = _letters(text)[-_KNOWN_CHARACTERS:]
        tries = 0
        while self._name and attempt == self._printer.attempt and not self._printer.ends_with(end):
            tries += 1
            if tries > _TRIES:
                terminal.say("the end of this log has not come to its place (yet)", is_error=True)
                return
            await asyncio.sleep(_LOOK_SECONDS)
            await self._read()


async def _now(journal: "Journal", id_: str, attempt: int | None) -> tuple["TaskRecord | None", int, str, bool]:
    """Look at a task.

    Returns:
        Its record unless it has ended, the number of the attempt, the end of what that printed, and whether it prints
        still or has just ended.
    """
    found = await journal.find([id_])
    record = found[0] if found and not found[0].state.is_final else None
    if attempt is None and record is not None and record.beat is not None:
        return record, record.attempt, record.beat.output, True
    ended = found[0].last.ended if found and found[0].last is not None else 0.0
    output = await journal.output(id_, attempt)
    return record, *(output or (0, "")), record is not None or time.time() - ended < _RECENT_SECONDS


class _Printer:
    """Prints what is new of a text of which only the end is known each time."""

    def __init__(self, task_id: str, *, as_json: bool) -> None:
        self._id = task_id
        self._as_json = as_json
        self._attempt = 0
        self._seen = ""
        self._rest = b""
        self._last = ""

    @property
    def task_id(self) -> str:
        """Whose."""
        return self._id

    @property
    def attempt(self) -> int:
        """The number of the attempt that is shown; 0 = none yet."""
        return self._attempt

    def begin(self, attempt: int) -> None:
        """Go on with another attempt."""
        if attempt != self._attempt:
            self.finish()
            self._attempt, self._seen, self._last = attempt, "", ""

    def ends_with(self, text: str) -> bool:
        """Return whether what was added ends in these letters."""
        return _letters(self._last).endswith(text)

    def finish(self) -> None:
        """Print a last line that has no end."""
        rest, self._rest = self._rest, b""
        if rest:
            self._put(rest.decode("utf-8", "replace"))

    def add(self, chunk: bytes) -> None:
        """Print more of a log, in whole lines."""
        self._last = (self._last + chunk[-4 * _KNOWN_CHARACTERS :].decode("utf-8", "replace"))[-4 * _KNOWN_CHARACTERS :]
        whole, newline, rest = (self._rest + chunk).rpartition(b"\n")
        self._rest = rest if len(rest) < _CHUNK_BYTES else b""
        self._put((whole + newline + (rest if not self._rest else b"")).decode("utf-8", "replace"))

    def show(self, attempt: int, text: str) -> None:
        """Print what was not printed before; an attempt begins anew."""
        self.begin(attempt)
        new = _after(self._seen, text)
        self._seen = text or self._seen
        if new:
            self._put(new)
            terminal.flush()

    def _put(self, text: str) -> None:
        if self._as_json and text:
            terminal.put_json({"id": self._id, "attempt": self._attempt, "output": text})
        if self._as_json:
            return
        for line in text.splitlines():
            terminal.put(line)


def _letters(text: str) -> str:
    """Return what no cutting and no decoding changes."""
    return "".join(character for character in text if character.isascii() and character.isalnum())


def _after(seen: str, text: str) -> str:
    """Return what stands in `text` behind the end of what was seen before; all of it, where that is not in it."""
    tail = seen[-512:]
    at = text.rfind(tail) if tail else -1
    return text if at < 0 else text[at + len(tail) :]
