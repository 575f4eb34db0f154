"""The work of `jobq fanout`: pages of records into tasks, under the lease that carries the cursor."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from jobq.cli.display import terminal
from jobq.cli.display.progress_bar import Bar
from jobq.cli.submit.cursor_lease import CursorLease, saying_how_to_go_on
from jobq.errors import MalformedTask, SourceChanged
from jobq.lease.traversal import Page, Progress, Traversal
from jobq.submit import command_template
from jobq.submit.input_lines import TaskOptions
from jobq.submit.pusher import BATCH_TASKS, Pusher
from jobq.submit.record_sources import InputRecord, RecordSource
from jobq.task import Task

_KEYED_BYTES: Final = 12  # of 10^9 records two are alike once in 10^11 times; and an id has at most 100 characters
_BATCH_FIELDS: Final = ("count", "first", "items", "last", "number")


def check(command: command_template.Template, records: RecordSource, batch: int) -> None:
    """Raise InvalidTemplate for a command that cannot be filled in with what the records have, as far as is known."""
    if batch > 1:
        command.check(_BATCH_FIELDS, many="items")
    elif records.fields is not None:
        command.check(records.fields)


@dataclass(kw_only=True)
class Fanout:
    """One fanout, from its records to its exit code.

    Args:
        pusher: brings batches into the queue.
        cursor: where the cursor is kept.
        name: of the fanout.
        records: the data set.
        command: what each record is put into.
        template: what all tasks have.
        batch: records of one task.
        accepts_changes: whether lines that are not queued yet may be others than when it began.
        skips_refused: whether records that no task can be made of are reported and left out.
    """

    pusher: Pusher
    cursor: CursorLease
    name: str
    records: RecordSource
    command: command_template.Template
    template: TaskOptions
    batch: int
    accepts_changes: bool = False
    skips_refused: bool = False
    _skipped: int = field(default=0, init=False)

    async def run(self) -> int:
        """Queue what is left; return the exit code."""
        source = {
            "data set": self.records.source,
            "command": self.command.text,
            "--batch": str(self.batch),
            "options": _digest(repr(replace(self.template, trace_context={}))),  # each run has another span
            **self.cursor.source,
        }
        file = self.records.file
        if file is not None and not self.accepts_changes:
            source["file"] = await file.digest()
        # Whole batches, so that no page but the last ends within one.
        size = self.batch * max(1, BATCH_TASKS // self.batch)
        walk = Traversal(self.cursor.lease, self.records.fetch, batch_size=size, source=source)
        with saying_how_to_go_on(self.pusher):
            async with walk:
                if file is not None:
                    await file.check_queued(walk.progress, self.name)
                if walk.progress.is_done:
                    await self.pusher.check_done(self.name)
                    terminal.say(f"{self.name} is done: all {walk.progress.handled} records were queued before")
                    return 0
                earlier = walk.progress.handled
                if earlier:
                    terminal.say(f"going on with {self.name} after {earlier} records")
                with Bar("queueing", self.records.total) as bar:
                    async for page in walk:
                        await self._push(_as_begun(page, walk.progress), walk.progress.handled)
                        position = page.after[0] if self.records.total and isinstance(page.after, list) else 0
                        done = walk.progress.handled + len(page.items)
                        bar.show_rate(position, done, "records", earlier=earlier)
                if file is not None:
                    if not self.accepts_changes:
                        file.check_unchanged(walk.progress)
                    if file.has_more():
                        raise SourceChanged(
                            f"{file.path} has grown while it was read; what was added needs another name"
                        )
        are = "refused one was" if self._skipped == 1 else "refused ones were"
        skipped = f"; {self._skipped} {are} left out" if self._skipped else ""
        terminal.say(f"{self.pusher.summary()} of {walk.progress.handled} records{skipped}")
        return 0

    async def _push(self, page: Page[InputRecord], before: int) -> None:
        await self.pusher.push_all(list(self._tasks(page.items, before)))

    def _tasks(self, records: Sequence[InputRecord], before: int) -> Iterator[Task]:
        for start in range(0, len(records), self.batch):
            some = [one for one in records[start : start + self.batch] if not self._is_blank(one)]
            position = before + start
            task = self._task(some, position) if some else None
            if task is not None:
                yield task

    def _is_blank(self, record: InputRecord) -> bool:
        return self.records.file is not None and record.fields.get("line") == ""

    def _task(self, records: list[InputRecord], position: int) -> Task | None:
        """Return the task of some records; of those that are not refused, if these are to be left out."""
        try:
            return self._made(records, position)
        except MalformedTask as error:
            if not self.skips_refused:
                mend = "mend it and go on with --accept-changes, or " if self.records.file is not None else ""
                raise MalformedTask(f"{error}; {mend}leave such records out with --skip-refused") from None
            refused = error
        if len(records) > 1:
            kept = [record for record in records if self._is_good(record, position)]
            if len(kept) < len(records):
                return self._task(kept, position) if kept else None
        self._skipped += len(records)
        more = f" (and the others of its batch of {len(records)})" if len(records) > 1 else ""
        terminal.say(f"left out: {refused}{more}")
        return None

    def _is_good(self, record: InputRecord, position: int) -> bool:
        try:
            self._made([record], position)
        except MalformedTask as error:
            self._skipped += 1
            terminal.say(f"left out: {error}")
            return False
        return True

    def _made(self, records: Sequence[InputRecord], position: int) -> Task:
        for record in records:
            if record.refused:
                raise MalformedTask(f"{record.where}: {record.refused}")
        fields: command_template.Values = records[0].fields
        if self.batch == 1:
            self.command.check(fields)
        else:
            fields = {
                "first": records[0].key,
                "last": records[-1].key,
                "count": str(len(records)),
                "number": str(position // self.batch + 1),
                "items": [record.key for record in records],
            }
        try:
            filled = self.command.filled(fields)
            return self.template.task(**filled, id=f"{self.name}.{self._suffix(records, position, filled)}")
        except MalformedTask as error:
            raise MalformedTask(f"{records[0].where}: {error}") from None

    def _suffix(self, records: Sequence[InputRecord], position: int, filled: Mapping[str, Any]) -> str:
        """Return the same for the same records, so that a page which is queued again adds nothing (S8)."""
        keys = [record.identity for record in records]
        if None in keys:
            return f"{position}.{_digest(list(filled.values()))}"
        # Wherever they stand by then. With their content: a queue refuses an id that it knows with another task.
        return _digest([keys, list(filled.values())], _KEYED_BYTES)


def _as_begun(page: Page[InputRecord], before: Progress) -> Page[InputRecord]:
    """Return a page with the ids that it has already, where a version before may have queued it in part."""
    if before.mark is not None or not before.handled:
        return page
    return replace(page, items=[replace(record, identity=None) for record in page.items])


def _digest(value: Any, size: int = 6) -> str:
    return hashlib.blake2b(json.dumps(value).encode(), digest_size=size).hexdigest()
