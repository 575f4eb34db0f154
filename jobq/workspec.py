"""Work specifications: a Python class, or an async generator, that lists the tasks of a whole piece of work.

    class Folds(jobq.WorkSpecification[int]):
        def task_seeds(self):
            return range(10)

        async def list_tasks(self, seed):
            for fold in range(5):
                yield f"python train.py --seed {seed} --fold {fold}"

        def already_done(self, task):
            return Path(output_of(task)).exists()

    counts = await jobq.workspec.enqueue(queue.push, Folds())

Seeds are listed side by side, `already_done` is asked for many tasks at a time, and memory stays bounded: what lists
faster than the queue takes has to wait. What is not asynchronous runs on threads.
"""

import asyncio
import inspect
import time
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from jobq.errors import PushUnknown
from jobq.submit.pusher import FINISH_SECONDS, TAKE_BACK_SECONDS, Chunk, see_to_its_end
from jobq.task import Task

Seed = TypeVar("Seed")
Listed = Task | str  # a string is a command for the shell
LINGER_SECONDS: Final = 0.5  # how long the first task of a chunk waits for company
WAITING_TASKS: Final = 2000  # listed and not pushed yet, at most
_CANCELLED_PUSH_SECONDS: Final = FINISH_SECONDS + TAKE_BACK_SECONDS + 1  # for a pusher to find out what became of it
_CHUNK_ITEMS: Final = 200
_CHUNK_SECONDS: Final = 0.05
_END: Final = object()


class WorkSpecification(Generic[Seed]):
    """Lists the tasks of a whole piece of work; subclass it, and define `list_tasks` at least.

    Each method may be a plain function, a generator, a coroutine or an async generator.
    """

    def task_seeds(self) -> "Iterable[Seed] | AsyncIterable[Seed]":
        """Return what `list_tasks` is called with, each apart and side by side; one None by default."""
        return [None]  # type: ignore[list-item] # a specification without seeds ignores it

    def list_tasks(self, seed: Seed) -> "Iterable[Listed] | AsyncIterable[Listed]":
        """Return the tasks of one seed: `Task.new(...)`, or a string for a shell command."""
        raise NotImplementedError(f"{type(self).__name__} does not say what its tasks are: define list_tasks")

    def already_done(self, task: Task) -> "bool | Awaitable[bool]":  # noqa: ARG002 - for subclasses
        """Return whether a task need not be queued, because its result is there; False by default."""
        return False


@dataclass
class Counts:
    """What became of the tasks of a specification so far.

    Attributes:
        considered: listed.
        skipped: already done.
        queued: safely in the queue; in a dry run, those that would be.
    """

    considered: int = 0
    skipped: int = 0
    queued: int = 0


Push = Callable[[list[Task]], Awaitable[object]]


async def enqueue(
    push: Push,
    specification: "WorkSpecification[Any] | Callable[[], AsyncIterable[Listed] | Iterable[Listed]]",
    *,
    seeds_at_once: int = 8,
    checks_at_once: int = 64,
    make: Callable[[str], Task] = lambda command: Task.new(command=command),
    on_progress: Callable[[Counts], None] = lambda _counts: None,
    finish_seconds: float = 5.0,
) -> Counts:
    """Push what a specification lists and has not done already.

    Args:
        push: adds a chunk durably, all or none, such as `Queue.push`; called with one chunk at a time.
        specification: or a function that returns the tasks, such as an async generator function.
        seeds_at_once: how many seeds are listed side by side.
        checks_at_once: how many `already_done` run side by side.
        make: makes a task of a command.
        on_progress: called with the running counts after each chunk, and once at the end.
        finish_seconds: how long a push that is under way may go on when the listing fails or all is cancelled, before
            it is cancelled, too.

    Raises:
        Exception: what the specification or `push` raises; what was pushed before stays, as its note says.
    """
    if not isinstance(specification, WorkSpecification):
        specification = _Function(specification)
    enqueuing = _Enqueuing(push, specification, checks_at_once, make, on_progress, finish_seconds)
    return await enqueuing.run(seeds_at_once)


class _Function(WorkSpecification[None]):
    def __init__(self, function: Callable[[], AsyncIterable[Listed] | Iterable[Listed]]) -> None:
        self._function = function

    def list_tasks(self, seed: None) -> Iterable[Listed] | AsyncIterable[Listed]:  # noqa: ARG002 - it has none
        return self._function()


class _Enqueuing:
    """Listers fill one bounded queue, checkers another, and one pusher empties that."""

    def __init__(
        self,
        push: Push,
        specification: WorkSpecification[Any],
        checks_at_once: int,
        make: Callable[[str], Task],
        on_progress: Callable[[Counts], None],
        finish_seconds: float,
    ) -> None:
        self._push = push
        self._specification = specification
        self._checks_at_once = checks_at_once
        self._make = make
        self._on_progress = on_progress
        self._finish_seconds = finish_seconds
        self._counts = Counts()
        self._doubtful: tuple[str, ...] = ()
        self._listed: asyncio.Queue[Any] = asyncio.Queue(WAITING_TASKS)
        self._wanted: asyncio.Queue[Any] = asyncio.Queue(WAITING_TASKS)

    async def run(self, seeds_at_once: int) -> Counts:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._list_all(seeds_at_once))
                group.create_task(self._check_all())
                group.create_task(self._push_all())
        except asyncio.CancelledError:
            self._on_progress(self._counts)
            raise
        except BaseExceptionGroup as errors:
            error: BaseException = errors
            while isinstance(error, BaseExceptionGroup):
                error = error.exceptions[0]
            self._on_progress(self._counts)
            error.add_note(f"{self._counts.queued} tasks were queued before")
            if self._doubtful:
                error.add_note(f"in doubt: {len(self._doubtful)} tasks ({', '.join(self._doubtful)})")
            raise error from None
        self._on_progress(self._counts)
        return self._counts

    async def _list_all(self, seeds_at_once: int) -> None:
        free = asyncio.Semaphore(seeds_at_once)

        async def list_one(seed: Any) -> None:
            try:
                async for listed in _each(self._specification.list_tasks(seed)):
                    await self._listed.put(self._make(listed) if isinstance(listed, str) else _checked(listed))
                    self._counts.considered += 1
            except SystemExit as error:
                raise _exited(error) from None
            finally:
                free.release()

        async with asyncio.TaskGroup() as group:
            try:
                async for seed in _each(self._specification.task_seeds()):
                    await free.acquire()
                    group.create_task(list_one(seed))
            except SystemExit as error:
                raise _exited(error) from None
        for _ in range(self._checks_at_once):
            await self._listed.put(_END)

    async def _check_all(self) -> None:
        is_default = type(self._specification).already_done is WorkSpecification.already_done
        is_plain = not inspect.iscoroutinefunction(self._specification.already_done)

        async def is_done(task: Task) -> Any:
            if is_default:
                return False
            try:
                if not is_plain:
                    return await self._specification.already_done(task)  # type: ignore[misc] # a coroutine function
                done: Any = await asyncio.to_thread(self._specification.already_done, task)
                return await done if inspect.isawaitable(done) else done
            except SystemExit as error:
                raise _exited(error) from None

        async def check() -> None:
            while (task := await self._listed.get()) is not _END:
                if await is_done(task):
                    self._counts.skipped += 1
                else:
                    await self._wanted.put(task)

        async with asyncio.TaskGroup() as group:
            for _ in range(self._checks_at_once):
                group.create_task(check())
        await self._wanted.put(_END)

    async def _push_all(self) -> None:
        ended = False
        while not ended:
            chunk, ended = await self._chunk()
            if chunk:
                await self._push_one(chunk)
            self._on_progress(self._counts)

    async def _push_one(self, chunk: list[Task]) -> None:
        """Push, and count what was queued: a push that is on its way when the listing fails is seen to its end."""
        pushing = asyncio.ensure_future(self._push(chunk))
        try:
            await asyncio.shield(pushing)
        except asyncio.CancelledError:
            await see_to_its_end(pushing, self._finish_seconds, _CANCELLED_PUSH_SECONDS)
            has_answer = pushing.done() and not pushing.cancelled()
            error = pushing.exception() if has_answer else None
            if isinstance(error, PushUnknown):
                self._doubtful = tuple(error.ids)
            elif not pushing.done():
                self._doubtful = tuple(task.id for task in chunk)
            elif has_answer and error is None:
                self._counts.queued += len(chunk)
            raise
        self._counts.queued += len(chunk)

    async def _chunk(self) -> tuple[list[Task], bool]:
        """Return what has come within the linger time of the first, and whether that was all."""
        chunk = Chunk()
        first = await self._wanted.get()
        if first is _END:
            return chunk.tasks, True
        is_full = chunk.add(first)
        with suppress(TimeoutError):
            async with asyncio.timeout(LINGER_SECONDS):
                while not is_full:
                    task = await self._wanted.get()
                    if task is _END:
                        return chunk.tasks, True
                    is_full = chunk.add(task)
        return chunk.tasks, False


def _exited(error: SystemExit) -> RuntimeError:
    """Return what to raise instead: a SystemExit in a task would tear the event loop down under everybody."""
    return RuntimeError(f"sys.exit({error.code!r}) was called").with_traceback(error.__traceback__)


def _checked(listed: object) -> Task:
    if isinstance(listed, Task):
        return listed
    raise TypeError(f"list_tasks gave a {type(listed).__name__}; it gives tasks (jobq.Task.new) or commands (strings)")


async def _each(items: Any) -> AsyncIterator[Any]:
    """Iterate over what may be awaitable, asynchronous or plain; what is plain may block, so it runs on a thread."""
    if inspect.isawaitable(items):
        items = await items
    if isinstance(items, AsyncIterable):
        async for item in items:
            yield item
        return
    if isinstance(items, list | tuple | range):  # no code of the user's runs
        for item in items:
            yield item
        return
    iterator: Iterator[Any] = iter(items)
    ended: BaseException | bool = False
    while not ended:
        chunk, ended = await asyncio.to_thread(_some, iterator)
        for item in chunk:
            yield item
    if isinstance(ended, BaseException):
        raise ended


def _some(iterator: Iterator[Any]) -> tuple[list[Any], BaseException | bool]:
    """Return the next items, so many as come in a moment (a thread for each would cost more), and whether it ended."""
    until = time.monotonic() + _CHUNK_SECONDS
    chunk: list[Any] = []
    try:
        for item in iterator:
            chunk.append(item)
            if len(chunk) >= _CHUNK_ITEMS or time.monotonic() >= until:
                return chunk, False
    except (Exception, SystemExit) as error:  # noqa: BLE001 - raised once what came before it is dealt with
        return chunk, error
    return chunk, True
