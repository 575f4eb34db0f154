"""From records to tasks: each record, or each batch of them, put into a template, under an id that is found again."""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from jobq.errors import MalformedTask
from jobq.formats import task_fields
from jobq.submit.command_template import InvalidTemplate, Template, Values
from jobq.submit.grid import INDEX
from jobq.submit.input_lines import TaskOptions
from jobq.submit.record_sources import InputRecord, RecordSource
from jobq.task import Task

BATCH_FIELDS: Final = ("count", "first", "items", "last", "number")
_KEYED_BYTES: Final = 12  # of 10^9 records two are alike once in 10^11 times; and an id has at most 100 characters
_KEPT_SHAPES: Final = 100  # sets of fields that were found good

# Of some records, the position of the first, and what the template has made of them: the id.
IdOf = Callable[[Sequence[InputRecord], int, Mapping[str, Any]], str]


@dataclass(kw_only=True)
class RecordTasks:
    """Makes the tasks of a data set.

    Args:
        records: the data set.
        command: what each record is put into.
        options: what all tasks have.
        id_of: names the tasks; None = each has a random id.
        batch: records of one task.
        mend: what to do about a record that is refused, for messages.
        leave_out: told of each record that no task can be made of, which is left out then; None = it is an error.

    Attributes:
        skipped: how many records were left out.
    """

    records: RecordSource
    command: Template
    options: TaskOptions
    id_of: IdOf | None = None
    batch: int = 1
    mend: str = ""
    leave_out: Callable[[str], None] | None = None
    skipped: int = field(default=0, init=False)
    _shapes: set[tuple[str, ...]] = field(default_factory=set, init=False)

    def check(self) -> None:
        """Raise, before anything is queued, for what certainly cannot be filled in.

        Raises:
            InvalidTemplate: the records have no such field, as far as is known.
            MalformedTask: of a sample no task can be made; says of which.
        """
        if self.batch > 1:
            self.command.check(BATCH_FIELDS, many="items")
        elif self.records.fields is not None:
            self.command.check(self.records.fields)
        for record in self.records.samples:
            self._made([record], 0)

    def tasks(self, records: Sequence[InputRecord], before: int) -> Iterator[Task]:
        """Yield the tasks of the records of one page.

        Args:
            records: of the page; whole batches, unless it is the last.
            before: how many records come before it.

        Raises:
            MalformedTask: no task can be made of one; says of which, and what to do.
        """
        for start in range(0, len(records), self.batch):
            some = [one for one in records[start : start + self.batch] if not one.is_blank]
            task = self._task(some, before + start) if some else None
            if task is not None:
                yield task

    def _task(self, records: list[InputRecord], position: int) -> Task | None:
        """Return the task of some records; of those that are not refused, if these are to be left out."""
        try:
            return self._made(records, position)
        except MalformedTask as error:
            if self.leave_out is None:
                raise MalformedTask(f"{error}{self.mend}") from None
            refused = error
        if len(records) > 1:
            kept = [record for record in records if self._is_good(record, position)]
            if len(kept) < len(records):
                return self._task(kept, position) if kept else None
        self.skipped += len(records)
        more = f" (and the others of its batch of {len(records)})" if len(records) > 1 else ""
        self.leave_out(f"left out: {refused}{more}")
        return None

    def _is_good(self, record: InputRecord, position: int) -> bool:
        assert self.leave_out is not None
        try:
            self._made([record], position)
        except MalformedTask as error:
            self.skipped += 1
            self.leave_out(f"left out: {error}")
            return False
        return True

    def _made(self, records: Sequence[InputRecord], position: int) -> Task:
        for record in records:
            if record.refused:
                raise MalformedTask(f"{record.where}: {record.refused}")
        fields: Values = records[0].fields
        if self.batch == 1:
            self._check_shape(fields, records[0].where)
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
            named: dict[str, Any] = {} if self.id_of is None else {"id": self.id_of(records, position, filled)}
            if self.options.batch is not None:
                named["params"] = shown(fields)
            return self.options.task(**filled, **named)
        except MalformedTask as error:
            raise MalformedTask(f"{records[0].where}: {error}") from None

    def _check_shape(self, fields: Values, where: str) -> None:
        """Raise InvalidTemplate where these fields cannot be filled in; each set of them is looked at once."""
        if self.records.fields is not None or (shape := tuple(fields)) in self._shapes:
            return
        try:
            self.command.check(fields)
        except InvalidTemplate as error:
            raise InvalidTemplate(f"{where}: {error}") from None
        self._shapes = {*self._shapes, shape} if len(self._shapes) < _KEPT_SHAPES else {shape}


def shown(fields: Values) -> dict[str, str | int | float] | None:
    """Return what a table of results shows of a record: its short values, as many as there is room for."""
    texts = {name: value for name, value in fields.items() if isinstance(value, str) and name != INDEX}
    return task_fields.fitting_params({name: _number(text) for name, text in texts.items()})


def _number(text: str) -> str | int | float:
    """Return a number, where that is written so and no other way; all else as it is, such as 01 and 1.50."""
    for kind in (int, float):
        with suppress(ValueError):
            if str(number := kind(text)) == text and abs(number) < 2**63:
                return number
    return text


def named_by_record(name: str) -> IdOf:
    """Return ids that are the same for the same records, so that a page which is queued again adds nothing (S8)."""

    def id_of(records: Sequence[InputRecord], position: int, filled: Mapping[str, Any]) -> str:
        keys = [record.identity for record in records]
        if None in keys:
            return f"{name}.{position}.{digest(list(filled.values()))}"
        # Wherever they stand by then. With their content: a queue refuses an id that it knows with another task.
        return f"{name}.{digest([keys, list(filled.values())], _KEYED_BYTES)}"

    return id_of


def named_by_index(name: str, count: int) -> IdOf:
    """Return ids by place, of one width, so that they sort as the records stand."""
    width = _width(count)

    def id_of(_records: Sequence[InputRecord], position: int, _filled: Mapping[str, Any]) -> str:
        return f"{name}.{position:0{width}d}"

    return id_of


def index_ids(name: str, count: int) -> list[str]:
    """Return all ids that `named_by_index` gives."""
    width = _width(count)
    return [f"{name}.{position:0{width}d}" for position in range(count)]


def _width(count: int) -> int:
    return len(str(max(0, count - 1)))


def digest(value: Any, size: int = 6) -> str:
    """Return the fingerprint of what JSON can hold, in hexadecimal digits."""
    return hashlib.blake2b(json.dumps(value).encode(), digest_size=size).hexdigest()
