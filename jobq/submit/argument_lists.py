"""The lists that arguments of jobs come from, as GNU parallel gives them: `:::` words, `::::` files, and a pipe.

Several lists make each combination, the first list slowest; a list behind `:::+` or `::::+` goes in step with the one
before it, as long as the shorter of them. A single file or pipe is read as it comes; several are held in memory.
"""

import itertools
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from jobq.errors import JobqError, MalformedTask
from jobq.submit.input_lines import Input, LineCutter
from jobq.submit.pusher import CHUNK_TASKS

WORDS: Final = (":::", ":::+")
FILES: Final = ("::::", "::::+")
MARKS: Final = (*WORDS, *FILES)


class InvalidLists(JobqError):
    """The lists cannot be read as they are given; the message says what to write instead."""

    exit_code = 2


@dataclass(frozen=True, kw_only=True)
class ListForm:
    """How a list is cut into the arguments of jobs.

    Attributes:
        end: the byte that ends each value of a file or pipe.
        per_job: how many values of the one list a job has.
    """

    end: bytes = b"\n"
    per_job: int = 1


@dataclass(frozen=True)
class ArgumentList:
    """One list.

    Attributes:
        name: for messages.
        values: of it; None = they are read.
        path: what is read; `-` = standard input.
        in_step: whether it goes in step with the list before it.
    """

    name: str
    values: tuple[str, ...] | None = None
    path: str | None = None
    in_step: bool = False


def lists_of(words: Sequence[str]) -> list[ArgumentList]:
    """Return the lists of a command line, from its first mark on; raises InvalidLists."""
    lists: list[ArgumentList] = []
    rest = list(words)
    while rest:
        mark = rest.pop(0)
        end = next((place for place, word in enumerate(rest) if word in MARKS), len(rest))
        values, rest = rest[:end], rest[end:]
        in_step = mark.endswith("+")
        if in_step and not lists:
            raise InvalidLists(f"{mark} goes in step with a list before it, and there is none; write {mark[:-1]}")
        if mark in WORDS:
            lists.append(ArgumentList(f"list {len(lists) + 1}", tuple(values), in_step=in_step))
        elif not values:
            raise InvalidLists(f"{mark} needs the name of a file; - is standard input")
        else:
            lists += [ArgumentList(path, path=path, in_step=in_step) for path in values]
    return lists


class Arguments:
    """The arguments of all jobs, in order.

    Args:
        lists: at least one.
        form: how they are cut.

    Raises:
        InvalidLists: they do not go together.
    """

    def __init__(self, lists: Sequence[ArgumentList], form: ListForm) -> None:
        self._lists = lists
        self._form = form
        if form.per_job > 1 and len(lists) > 1:
            raise InvalidLists("-N takes several values of one list: it goes with one list")
        if sum(one.path == "-" for one in lists) > 1:
            raise InvalidLists("standard input can be only one of the lists")
        self.bytes_read = 0

    @property
    def count(self) -> int:
        """How many arguments a job has at most."""
        return len(self._lists) * self._form.per_job

    @property
    def path(self) -> str | None:
        """Of the file that is read; None = none is."""
        return next((one.path for one in self._lists if one.path is not None), None)

    async def pages(self) -> AsyncIterator[list[list[str]]]:
        """Yield the arguments of some jobs at a time; of a pipe, what came together.

        Raises:
            InputUnreadable: a file cannot be read.
            MalformedTask: a value is no text; what stands before it came.
        """
        if len(self._lists) == 1 and self._lists[0].values is None:
            async for page in self._read_on(self._lists[0]):
                yield page
            return
        lists = [[value async for value in self._values(one)] for one in self._lists]
        if len(lists) == 1:
            jobs: Iterator[list[str]] = self._grouped(iter(lists[0]))
        else:
            jobs = self._combined(lists)
        while page := list(itertools.islice(jobs, CHUNK_TASKS)):
            yield page

    async def _read_on(self, source: ArgumentList) -> AsyncIterator[list[list[str]]]:
        held: list[str] = []
        fault: MalformedTask | None = None
        async for values, fault in self._chunks(source):
            held += values
            whole = len(held) if self._form.per_job == 1 else len(held) // self._form.per_job * self._form.per_job
            yield list(self._grouped(iter(held[:whole])))
            held = held[whole:]
            if fault is not None:
                break
        if held:
            yield list(self._grouped(iter(held)))
        if fault is not None:
            raise fault

    async def _values(self, source: ArgumentList) -> AsyncIterator[str]:
        if source.values is not None:
            for number, value in enumerate(source.values, 1):
                yield _checked(value, f"{source.name}, value {number}")
            return
        async for values, fault in self._chunks(source):
            for value in values:
                yield value
            if fault is not None:
                raise fault

    async def _chunks(self, source: ArgumentList) -> AsyncIterator[tuple[list[str], MalformedTask | None]]:
        """Yield what came together, and what is wrong with the value behind it."""
        cutter = LineCutter(self._form.end)
        with Input(str(source.path)) as file:
            data: bytes | None = None
            while data != b"":
                data = await file.read(None)
                self.bytes_read += len(data or b"")
                values: list[str] = []
                for number, line in cutter.feed(data) if data is not None else ():
                    try:
                        values.append(_checked(line.decode("utf-8", "surrogateescape"), f"{file.name}, value {number}"))
                    except MalformedTask as error:
                        yield values, error
                        return
                if values:
                    yield values, None

    def _grouped(self, values: Iterator[str]) -> Iterator[list[str]]:
        while some := list(itertools.islice(values, self._form.per_job)):
            yield some

    def _combined(self, lists: Sequence[Sequence[str]]) -> Iterator[list[str]]:
        groups: list[list[Sequence[str]]] = []
        for one, values in zip(self._lists, lists, strict=True):
            if one.in_step:
                groups[-1].append(values)
            else:
                groups.append([values])
        steps = [list(zip(*group, strict=False)) for group in groups]  # as long as the shortest
        for chosen in itertools.product(*steps):
            yield [value for step in chosen for value in step]


def _checked(value: str, where: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise MalformedTask(f"{where}: no text that UTF-8 has: {value!a}"[:300]) from None
    return value
