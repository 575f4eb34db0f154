"""The work of `jobq fanout`: pages of records into tasks, under the lease that carries the cursor."""

import asyncio
import hashlib
import json
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

from jobq.backend import Backend
from jobq.cli import terminal
from jobq.cli.batches import BATCH_TASKS, Pusher
from jobq.cli.lines import Template
from jobq.cli.progress import Bar
from jobq.cli.records_of import Record, Records
from jobq.cli.templates import CommandTemplate
from jobq.cli.walking import walk_lease
from jobq.errors import JobqError, MalformedTask
from jobq.lease.traversal import Page, Traversal
from jobq.settings import Settings
from jobq.task import Task

_BATCH_FIELDS: Final = frozenset({"first", "last", "count", "number", "items"})


class Fanout:
    """One fanout, from its records to its exit code.

    Args:
        pusher: brings batches into the queue.
        backend: whose queue it is; keeps the lease.
        settings: of the lease.
        name: of the fanout.
        records: the data set.
        command: the template of the commands.
        template: what all tasks have.
        batch: records of one task.

    Raises:
        InvalidTemplate: the command has a field that the records do not have.
    """

    def __init__(
        self,
        pusher: Pusher,
        backend: Backend,
        settings: Settings,
        *,
        name: str,
        records: Records,
        command: CommandTemplate,
        template: Template,
        batch: int,
    ) -> None:
        fields = records.fields if batch == 1 else _BATCH_FIELDS
        if fields is not None:
            command.check(fields)
        self._pusher = pusher
        self._name = name
        self._records = records
        self._command = command
        self._template = template
        self._batch = batch
        self._lease = walk_lease(backend, settings, f"fanout:{name}")

    async def run(self) -> int:
        """Queue what is left; return the exit code."""
        source = {
            "data set": self._records.source,
            "command": self._command.text,
            "--batch": str(self._batch),
            "options": _digest(repr(self._template)),
        }
        # Whole batches, so that no page but the last ends within one.
        size = self._batch * max(1, BATCH_TASKS // self._batch)
        walk = Traversal(self._lease, self._records.fetch, batch_size=size, source=source)
        try:
            await self._pusher.ready_for_lease(self._lease.name)
            async with walk:
                if walk.progress.is_done:
                    terminal.tell(f"{self._name} is done: all {walk.progress.handled} records were queued before")
                    return 0
                earlier = walk.progress.handled
                if earlier:
                    terminal.tell(f"going on with {self._name} after {earlier} records")
                with Bar("queueing", self._records.total) as bar:
                    async for page in walk:
                        await self._push(page, walk.progress.handled)
                        position = page.after[0] if self._records.total and isinstance(page.after, list) else 0
                        done = walk.progress.handled + len(page.items)
                        bar.show_rate(position, done, "records", earlier=earlier)
        except asyncio.CancelledError:
            terminal.tell(f"{self._pusher.summary()}; run the same command again to go on")
            raise
        except JobqError as error:
            error.add_note(f"{self._pusher.count} tasks were queued; run the same command again to go on")
            raise
        terminal.tell(f"{self._pusher.summary()} of {walk.progress.handled} records")
        return 0

    async def _push(self, page: Page[Record], before: int) -> None:
        tasks = list(self._tasks(page.items, before))
        for start in range(0, len(tasks), BATCH_TASKS):
            await self._pusher.push(tasks[start : start + BATCH_TASKS])

    def _tasks(self, records: Sequence[Record], before: int) -> Iterator[Task]:
        if self._batch == 1:
            for number, record in enumerate(records):
                if record.fields.get("line") == "":
                    continue
                self._command.check(set(record.fields))
                yield self._task([record], record.fields, before + number)
            return
        ends = [*range(0, len(records), self._batch), len(records)]
        for start, end in pairwise(ends):
            some = [record for record in records[start:end] if record.fields.get("line") != ""]
            if not some:
                continue
            fields: dict[str, str | list[str]] = {
                "first": some[0].key,
                "last": some[-1].key,
                "count": str(len(some)),
                "number": str((before + start) // self._batch + 1),
                "items": [record.key for record in some],
            }
            yield self._task(some, fields, before + start)

    def _task(self, records: Sequence[Record], fields: "dict[str, str | list[str]] | object", position: int) -> Task:
        try:
            command = self._command.filled(fields)  # type: ignore[arg-type] # a mapping of either kind
        except MalformedTask as error:
            raise MalformedTask(f"{records[0].where}: {error}") from None
        # The same records make the same id, so that a page which is queued again adds nothing (S8).
        id_ = f"{self._name}.{position}.{_digest(command)}"
        return self._template.task(command=command, id=id_)


def _digest(text: str) -> str:
    return hashlib.blake2b(json.dumps(text).encode(), digest_size=6).hexdigest()
