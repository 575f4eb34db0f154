"""`jobq QUEUE logs`: what a task has printed, and what it prints while it runs."""

import asyncio
from typing import TYPE_CHECKING, Final

import click

from jobq.cli import terminal
from jobq.cli.parts import ExampleCommand, json_option, with_queue
from jobq.cli.status import tell_missing

if TYPE_CHECKING:
    from jobq.backend import Backend
    from jobq.journal.store import Journal

_SOME_ID: Final = "01a1fe07-5953-7359-9cd5-f423114d42f8"
_LOOK_SECONDS: Final = 0.5


@click.command(
    cls=ExampleCommand,
    examples=(f"jobq demo logs {_SOME_ID}", f"jobq demo logs {_SOME_ID} --attempt 1"),
)
@click.argument("id_", metavar="ID")
@click.option("--attempt", type=click.IntRange(min=1), metavar="N", help="Of this attempt. Default: the last.")
@click.option("-f", "--follow", is_flag=True, help="Go on until the task has ended.")
@json_option
@click.pass_context
def logs(ctx: click.Context, id_: str, attempt: int | None, follow: bool, as_json: bool) -> int:
    """Show the end of what a task has printed: 64 KiB of an attempt that has ended, 4 KiB of one that runs.

    What a running task prints comes with its heartbeats, four times in a lease. Control characters are shown as
    escapes; --json gives the text as it is.
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
            printer.show(number, text)
            if not follow or record is None:
                return 0
            await asyncio.sleep(_LOOK_SECONDS)

    return with_queue(ctx, work)


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

    def show(self, attempt: int, text: str) -> None:
        """Print what was not printed before; an attempt begins anew."""
        if attempt != self._attempt:
            self._attempt, self._seen = attempt, ""
        new = _after(self._seen, text)
        self._seen = text or self._seen
        if not new:
            return
        if self._as_json:
            terminal.put_json({"id": self._id, "attempt": attempt, "output": new})
        else:
            for line in new.splitlines():
                terminal.put(terminal.visible(line))
        terminal.flush()


def _after(seen: str, text: str) -> str:
    """Return what stands in `text` behind the end of what was seen before; all of it, where that is not in it."""
    tail = seen[-512:]
    at = text.rfind(tail) if tail else -1
    return text if at < 0 else text[at + len(tail) :]
