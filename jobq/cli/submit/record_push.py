"""The work of `push --grid`, `push --each` and `fanout`: pages of records into tasks, with a cursor or at one go."""

import asyncio
from collections.abc import AsyncIterable
from dataclasses import dataclass, replace

from jobq.cli.display import terminal
from jobq.cli.display.progress_bar import Bar
from jobq.cli.interrupts import Interrupted
from jobq.cli.submit.cursor_lease import CursorLease, saying_how_to_go_on
from jobq.errors import JobqError, SourceChanged
from jobq.lease.traversal import Page, Traversal
from jobq.submit.pusher import CHUNK_TASKS, Pusher
from jobq.submit.record_sources import InputRecord
from jobq.submit.record_tasks import RecordTasks, digest


@dataclass(kw_only=True)
class RecordPush:
    """One push of a data set, from its records to its exit code.

    Args:
        pusher: brings batches into the queue.
        tasks: makes them.
    """

    pusher: Pusher
    tasks: RecordTasks

    async def once(self) -> int:
        """Queue all of it; return the exit code."""
        try:
            await self._queue(self.tasks.records.pages(self._page_size), 0)
        except asyncio.CancelledError:
            again = "a push with --resume NAME goes on where it was interrupted"
            raise Interrupted(f"{self.pusher.summary()}; {again}", self.pusher.doubtful) from None
        except JobqError as error:
            error.add_note(self.pusher.summary())
            raise
        terminal.say(self.pusher.summary())
        return 0

    async def resumably(self, cursor: CursorLease, name: str, *, accepts_changes: bool) -> int:
        """Queue what is left; return the exit code.

        Args:
            cursor: where the cursor is kept.
            name: of the push.
            accepts_changes: whether records of a file that are not queued yet may be others than when it began.
        """
        records = self.tasks.records
        source = {
            **records.source,
            "command": self.tasks.command.text,
            "--batch": str(self.tasks.batch),
            "options": digest(repr(replace(self.tasks.options, trace_context={}))),  # each run has another span
            **cursor.source,
        }
        if self.tasks.options.batch is not None:
            source["of the batch"] = self.tasks.options.batch
        file = records.file
        if file is not None and not accepts_changes:
            source["file"] = await file.digest()
        walk = Traversal(cursor.lease, records.fetch, batch_size=self._page_size, source=source)
        with saying_how_to_go_on(self.pusher):
            async with walk:
                if file is not None:
                    await file.check_queued(walk.progress, name)
                if walk.progress.is_done:
                    await self.pusher.check_done(name)
                    terminal.say(f"{name} is done: all {walk.progress.handled} records were queued before")
                    return 0
                earlier = walk.progress.handled
                if earlier:
                    terminal.say(f"going on with {name} after {earlier} records")
                await self._queue(walk, earlier)
                if file is not None:
                    if not accepts_changes:
                        file.check_unchanged(walk.progress)
                    if file.has_more():
                        raise SourceChanged(
                            f"{file.path} has grown while it was read; what was added needs another name"
                        )
        skipped = self.tasks.skipped
        left_out = f"; {skipped} {'refused one was' if skipped == 1 else 'refused ones were'} left out"
        terminal.say(f"{self.pusher.summary()} of {walk.progress.handled} records{left_out if skipped else ''}")
        return 0

    @property
    def _page_size(self) -> int:
        # Whole batches, so that no page but the last ends within one.
        return self.tasks.batch * max(1, CHUNK_TASKS // self.tasks.batch)

    async def _queue(self, pages: AsyncIterable[Page[InputRecord]], earlier: int) -> None:
        handled = earlier
        records = self.tasks.records
        with Bar("queueing", records.total) as bar:
            async for page in pages:
                # All of a page or nothing: the list is whole before the first is pushed.
                await self.pusher.push_all(list(self.tasks.tasks(page.items, handled)))
                handled += len(page.items)
                position = page.after[0] if records.total and isinstance(page.after, list) else 0
                bar.show_rate(position, handled, "records", earlier=earlier)
