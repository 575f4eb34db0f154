"""A batch as programs have it: pushed to, waited for, and read as values or as rows."""

from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, Final, Self, TypeVar

from jobq.backend import Backend
from jobq.batch_plan import Plan
from jobq.batch_values import BatchValues
from jobq.batches import MOST_LISTED, Batch, batches_of, checked_name
from jobq.formats.arguments import checked_span
from jobq.results.rows import Row, rows
from jobq.submit.batch_end import canceled, finished, put_back
from jobq.submit.calls import calls
from jobq.task import JsonValue, Task
from jobq.task_handle import SyncTaskHandle, TaskHandle

_T = TypeVar("_T")
Push = Callable[[list[Task]], Awaitable[list[str]]]
Begin = Callable[[str, Plan], Awaitable[Batch]]


class BatchHandle:
    """One batch of a queue; `Queue.batch` and `Queue.map` make it. As `async with` it is begun, and sealed at the end.

    What each verb may raise is BatchNotFound, and what the backend's own verbs raise.

    Args:
        name: of the batch.
        backend: an entered backend.
        begin: opens it, and makes the queue where that is missing.
        push: adds tasks durably.
        plan: what is said of it.

    Attributes:
        name: of the batch.
    """

    def __init__(self, name: str, backend: Backend, begin: Begin, push: Push, plan: Plan) -> None:
        self.name: Final = checked_name(name)
        self._backend = backend
        self._batches = batches_of(backend)
        self._begin = begin
        self._push = push
        self._plan = plan

    async def __aenter__(self) -> Self:
        await self._begin(self.name, self._plan)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is None:
            await self.seal()

    async def push(self, tasks: Iterable[Task]) -> list[TaskHandle]:
        """Durably add tasks to it, all or none; return their ids.

        Raises:
            BatchSealed: it takes no more.
            DuplicateTask, PushUnknown: see `Backend.push`.
        """
        ids = await self._push([task.in_batch(self.name) for task in tasks])
        return [TaskHandle.of(id_, self._backend) for id_ in ids]

    async def map(self, function: Callable[..., Any], items: Iterable[Any], fields: dict[str, Any]) -> None:
        """Begin it, add a call for each item, and seal it; see `Queue.map`."""
        tasks = calls(function, items, self.name, **fields)
        await self._begin(self.name, self._plan)
        for start in range(0, len(tasks), MOST_LISTED):
            await self._push(tasks[start : start + MOST_LISTED])
        await self.seal()

    async def show(self) -> Batch:
        """Return where it is, with its counts."""
        return await self._batches.find(self.name)

    async def seal(self) -> Batch:
        """Let it take no more tasks: it finishes when those that it has have ended."""
        return await self._batches.seal(self.name)

    async def reopen(self) -> Batch:
        """Let it take tasks again, in its next round if it has finished."""
        return await self._batches.reopen(self.name)

    async def cancel(self) -> Batch:
        """Seal it, end what waits, and ask what runs to end."""
        return await canceled(self._batches, self.name)

    async def retry(self) -> int:
        """Put its dead letters back into the queue; return how many."""
        return await put_back(self._backend, self.name)

    async def wait(self, timeout: timedelta | None = None) -> Batch:
        """Wait until it has finished; return it.

        Args:
            timeout: how long; None = as long as it takes.

        Raises:
            TimeoutError: it has not finished in time; says what is left.
        """
        if timeout is not None:
            checked_span("timeout", timeout)
        found, has_ended = await finished(self._batches, self.name, timeout=timeout)
        if not has_ended:
            raise TimeoutError(
                f"batch {self.name} has not finished within {timeout}: {found.unfinished} tasks are left"
            )
        return found

    def results(self, *, all_attempts: bool = False) -> AsyncIterator[Row]:
        """Yield a row for each task, or for each attempt, in the order of ids; see `jobq.results.rows`."""
        return rows(self._backend, self.name, all_attempts=all_attempts)

    async def values(self, *, progress: bool = False) -> AsyncIterator[JsonValue]:
        """Yield what each task has returned, in the order of ids, each once it has ended.

        Args:
            progress: show a bar, by tqdm where that is installed.

        Raises:
            TaskFailed: at the place of a task that did not succeed; `results` says what became of all.
            TaskNotFound: after the values of all others: tasks were cleared or purged, or the journal has forgotten
                them (its `ids`), so that not all values are there.
        """
        found = BatchValues(self._backend, self.name)
        bar = _bar((await self.show()).total) if progress else None
        try:
            async for value in found.each((lambda: None) if bar is None else bar.update):
                yield value
        finally:
            if bar is not None:
                bar.close()


class SyncBatchHandle:
    """The same for `jobq.sync`: each verb waits for its end, and `with` begins and seals it.

    Args:
        handle: of the batch.
        call: runs a coroutine to its end.
    """

    def __init__(self, handle: BatchHandle, call: Callable[[Coroutine[Any, Any, Any]], Any]) -> None:
        self.name: Final = handle.name
        self._handle = handle
        self._call = call

    def __enter__(self) -> Self:
        self._call(self._handle.__aenter__())
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        self._call(self._handle.__aexit__(kind, *rest))

    def push(self, tasks: Iterable[Task]) -> list[SyncTaskHandle]:
        """Durably add tasks to it; see `BatchHandle.push`."""
        found: Sequence[TaskHandle] = self._call(self._handle.push(list(tasks)))
        return [SyncTaskHandle.of(each, self._call) for each in found]

    def show(self) -> Batch:
        """Return where it is, with its counts."""
        return self._batch(self._handle.show())

    def seal(self) -> Batch:
        """Let it take no more tasks."""
        return self._batch(self._handle.seal())

    def reopen(self) -> Batch:
        """Let it take tasks again."""
        return self._batch(self._handle.reopen())

    def cancel(self) -> Batch:
        """Seal it, end what waits, and ask what runs to end."""
        return self._batch(self._handle.cancel())

    def retry(self) -> int:
        """Put its dead letters back into the queue; return how many."""
        count: int = self._call(self._handle.retry())
        return count

    def wait(self, timeout: timedelta | None = None) -> Batch:
        """Wait until it has finished; see `BatchHandle.wait`."""
        return self._batch(self._handle.wait(timeout))

    def results(self, *, all_attempts: bool = False) -> Iterator[Row]:
        """Yield a row for each task, or for each attempt; see `BatchHandle.results`."""
        return self._each(self._handle.results(all_attempts=all_attempts))

    def values(self, *, progress: bool = False) -> Iterator[JsonValue]:
        """Yield what each task has returned; see `BatchHandle.values`."""
        return self._each(self._handle.values(progress=progress))

    def _batch(self, work: Coroutine[Any, Any, Batch]) -> Batch:
        found: Batch = self._call(work)
        return found

    def _each(self, items: AsyncIterator[_T]) -> Iterator[_T]:
        nothing = object()

        async def next_() -> object:
            return await anext(items, nothing)

        try:
            while (item := self._call(next_())) is not nothing:
                yield item
        finally:
            self._call(_closed(items))


async def _closed(items: AsyncIterator[Any]) -> None:
    await items.aclose()  # type: ignore[attr-defined] # a generator of ours


def _bar(total: int) -> Any:
    with suppress(ImportError):
        from tqdm.auto import tqdm  # noqa: PLC0415 - where it is installed

        return tqdm(total=total)
    return None
