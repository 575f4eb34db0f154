"""`jobq QUEUE logs`: what a task has printed, and what it prints while it runs."""

import asyncio
from typing import TYPE_CHECKING, Final

import click

from jobq.cli import terminal
from jobq.cli.parts import ExampleCommand, json_option, read_settings, with_queue
from jobq.cli.status import tell_missing

if TYPE_CHECKING:
    from pathlib import Path

    from jobq.backend import Backend
    from jobq.journal.store import Journal

_SOME_ID: Final = "01a1fe07-5953-7359-9cd5-f423114d42f8"
_LOOK_SECONDS: Final = 0.5
_CHUNK_BYTES: Final = 1024 * 1024


@click.command(
    cls=ExampleCommand,
    examples=(f"jobq demo logs {_SOME_ID}", f"jobq demo logs {_SOME_ID} --attempt 1"),
)
@click.argument("id_", metavar="ID")
@click.option("--attempt", type=click.IntRange(min=1), metavar="N", help="Of this attempt. Default: the last.")
@click.option("-f", "--follow", is_flag=True, help="Go on until the task has ended.")
@click.option("--log-dir", metavar="FOLDER", help="Where the worker writes all of it. Default: JOBQ_LOG_DIR.")
@json_option
@click.pass_context
def logs(ctx: click.Context, id_: str, attempt: int | None, follow: bool, log_dir: str | None, as_json: bool) -> int:
    """Show the end of what a task has printed: 64 KiB of an attempt that has ended, 4 KiB of one that runs.

    What a running task prints comes with its heartbeats, four times in a lease. With a folder that the worker writes to
    (--log-dir) all of it is shown, and at once. Control characters are shown as escapes; --json gives the text itself.
    """
    if follow and attempt is not None:
        raise click.UsageError("--follow goes with the attempt that runs; leave out --attempt")

    async def work(backend: "Backend") -> int:
        from jobq.journal.store import journal_of  # noqa: PLC0415 - --help must not pay for pydantic

        journal = journal_of(backend)
        if not await journal.find([id_]):
            return tell_missing([id_], as_json=as_json)
        printer = _Printer(id_, as_json=as_json)
        while True:
            record, number, text = await _now(journal, id_, attempt)
            if not (settings.log_dir and _show_file(printer, settings.log_dir, backend.name, id_, attempt)):
                printer.show(number, text)
            if not follow or record is None:
                printer.finish()
                return 0
            await asyncio.sleep(_LOOK_SECONDS)

    settings = read_settings(log_dir=log_dir)
    return with_queue(ctx, work, settings)


def _show_file(printer: "_Printer", folder: "Path", queue: str, id_: str, attempt: int | None) -> bool:
    """Show what is new in the file of an attempt; tell whether there is one."""
    from jobq.run.log_files import latest_log_file, log_file  # noqa: PLC0415 - most logs are in the journal

    found = latest_log_file(folder, queue, id_) if attempt is None else (attempt, log_file(folder, queue, id_, attempt))
    if found is None or not found[1].is_file():
        return False
    printer.show_file(*found)
    return True


async def _now(journal: "Journal", id_: str, attempt: int | None) -> tuple[object | None, int, str]:
    """Return the task's record unless it has ended, the number of the attempt, and the end of what that printed."""
    found = await journal.find([id_])
    record = found[0] if found and not found[0].state.is_final else None
    if attempt is None and record is not None and record.beat is not None:
        return record, record.attempt, record.beat.output
    output = await journal.output(id_, attempt)
    return record, *(output or (0, ""))


class _Printer:
    """Prints what is new of a text of which only the end is known each time."""

    def __init__(self, task_id: str, *, as_json: bool) -> None:
        self._id = task_id
        self._as_json = as_json
        self._attempt = 0
        self._seen = ""
        self._path: Path | None = None  # the file of this attempt, and how far it was read
        self._offset = 0
        self._rest = b""

    def show_file(self, attempt: int, path: "Path") -> None:
        """Print what was added to a file since the last look; of an earlier attempt's first what was still missing."""
        if attempt != self._attempt:
            if self._path is not None:
                self._read(self._path)
            self.finish()
            self._attempt, self._path, self._offset = attempt, path, 0
        self._read(path)
        terminal.flush()

    def finish(self) -> None:
        """Print a last line that has no end."""
        rest, self._rest = self._rest, b""
        if rest:
            self._put(rest.decode("utf-8", "replace"))

    def _read(self, path: "Path") -> None:
        with path.open("rb") as stream:
            stream.seek(self._offset)
            while chunk := stream.read(_CHUNK_BYTES):
                self._offset += len(chunk)
                whole, newline, rest = (self._rest + chunk).rpartition(b"\n")
                self._rest = rest if len(rest) < _CHUNK_BYTES else b""
                self._put((whole + newline + (rest if not self._rest else b"")).decode("utf-8", "replace"))

    def show(self, attempt: int, text: str) -> None:
        """Print what was not printed before; an attempt begins anew."""
        if attempt != self._attempt:
            self._attempt, self._seen = attempt, ""
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
            terminal.put(terminal.visible(line))


def _after(seen: str, text: str) -> str:
    """Return what stands in `text` behind the end of what was seen before; all of it, where that is not in it."""
    tail = seen[-512:]
    at = text.rfind(tail) if tail else -1
    return text if at < 0 else text[at + len(tail) :]
