"""The library's face: `async with jobq.connect("demo") as queue`."""

from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, TypeVar, overload

from jobq.backend import Backend, DeadLetter, Hastened, Peeked, QueueStats, hastening
from jobq.errors import ConfigurationError
from jobq.events import Event, Events
from jobq.formats.arguments import checked_ids, checked_span
from jobq.formats.trace_context import current_context
from jobq.journal.records import Canceled, TaskRecord
from jobq.journal.store import Journal, journal_of
from jobq.lease.named import NamedLease, named_lease
from jobq.lease.store import Confirmation, LeaseRecord, LeaseStore, checked_name, store_of
from jobq.lease.traversal import BATCH_SIZE, Fetch, Traversal
from jobq.pausing import Pause, mark_of, pausable
from jobq.run.attempt.runner import OnLine
from jobq.run.attempt.supervisor import DeliveryReport
from jobq.run.callbacks.callback import Callback
from jobq.run.stopping import Stopping
from jobq.run.worker.pull_one import pull_and_execute, way_of
from jobq.run.worker.take_one import Taking
from jobq.run.worker.worker import Worker
from jobq.run.worker.worker_report import WorkerReport
from jobq.settings import Settings
from jobq.spec import resolve
from jobq.submit.pusher import Pusher
from jobq.task import Task
from jobq.task_handle import TaskHandle
from jobq.workspec import enqueue

if TYPE_CHECKING:
    from jobq.batch_handle import BatchHandle
    from jobq.batches import Batch

_T = TypeVar("_T")
_WANTED: Final = "give a task (jobq.Task.new) or a command (a string)"


@asynccontextmanager
async def connect(spec: str | None = None, *, settings: Settings | None = None) -> AsyncIterator["Queue"]:
    """Connect to a queue.

    Args:
        spec: such as `demo` or `myaccount/myqueue`; JOBQ_QUEUE when it is None.
        settings: read from the environment when None.

    Raises:
        ConfigurationError: there is no spec, or it cannot be served.
    """
    settings = settings or Settings.from_environment()
    spec = spec or settings.queue
    if spec is None:
        raise ConfigurationError("no queue was named; pass a spec such as 'demo', or set JOBQ_QUEUE")
    async with resolve(spec, settings) as backend:
        yield Queue(backend, settings)


class Queue:
    """One queue, for programs.

    Args:
        backend: an entered backend.
        settings: leases, budgets, limits.
    """

    def __init__(self, backend: Backend, settings: Settings) -> None:
        self.backend = backend
        self.settings = settings

    @overload
    async def push(self, tasks: Task | str) -> TaskHandle: ...  # type: ignore[overload-overlap] # a string is one command

    @overload
    async def push(self, tasks: Iterable[Task | str]) -> list[TaskHandle]: ...

    @overload
    async def push(self, tasks: AsyncIterable[Task | str]) -> int: ...

    async def push(
        self, tasks: "Task | str | Iterable[Task | str] | AsyncIterable[Task | str]"
    ) -> "TaskHandle | list[TaskHandle] | int":
        """Durably add one task, many, or what an async iterator gives; the queue is made when it does not exist.

        A string is a command for the shell. Many are added all or none. An async iterator is added in batches of at
        most `CHUNK_TASKS`, each all or none, so memory stays bounded; a batch waits `LINGER_SECONDS` for company.
        A push whose answer was lost is repeated once with the same ids, where the service takes none of them twice.

        Args:
            tasks: one, many, or an async iterator.

        Returns:
            The id of the one, the ids of the many in order, or how many the iterator gave. An id is a string with
            verbs: `await id.result()` waits for what the task comes to.

        Raises:
            DuplicateTask, PushUnknown, BackendUnavailable: see `Backend.push`; of an iterator, a note says how many
                were added before.
        """
        if isinstance(tasks, Task | str):
            return self._handles(await self._push([_task(tasks, "tasks")]))[0]
        if isinstance(tasks, AsyncIterable):
            counts = await enqueue(self._push, lambda: tasks)
            return counts.queued
        return self._handles(await self._push(tasks_of(tasks)))

    def _handles(self, ids: Sequence[str]) -> list[TaskHandle]:
        return [TaskHandle.of(id_, self.backend) for id_ in ids]

    async def _push(self, batch: list[Task]) -> list[str]:
        if context := current_context():  # the attempts are linked to the span that pushes
            batch = [task if task.trace_context else task.copied({"trace_context": context}) for task in batch]
        return await Pusher(self.backend).push(batch)

    def batch(self, name: str, *, then: Iterable[Task | str] = ()) -> "BatchHandle":
        """Return a batch, new or not: `async with queue.batch("s7") as batch: await batch.push(tasks)`.

        Entered, it is begun if it is not there, and left without an error it is sealed.

        Args:
            name: 1 to 64 letters, digits or ._- that begin with a letter or digit.
            then: tasks, or commands, that are queued once all of its tasks have ended, after each round.

        Raises:
            ConfigurationError: this queue keeps no batches, or the name is none.
        """
        from jobq.batch_handle import BatchHandle  # noqa: PLC0415 - most programs have none
        from jobq.batch_plan import Plan, named_for_end  # noqa: PLC0415 - as above
        from jobq.submit.batch_end import begun  # noqa: PLC0415 - as above
        from jobq.submit.pusher import signed  # noqa: PLC0415 - as above

        after = tasks_of(list(then))

        async def begin(name: str, plan: Plan) -> "Batch":
            signed_ones = await signed(self.backend, named_for_end(name, after))
            bodies = tuple(task.encode().decode() for task in signed_ones)
            plan = plan.with_later(Plan(then=bodies))
            return await begun(self.backend, name, plan)

        return BatchHandle(name, self.backend, begin, self._push, Plan())

    async def map(
        self, function: Callable[..., Any], items: Iterable[Any], *, batch: str, **fields: Any
    ) -> "BatchHandle":
        """Queue a call of a function for each item, as one batch; the same call again goes on where it was interrupted.

        Args:
            function: one that workers can import; a coroutine function is run by asyncio.
            items: the arguments of each call: a mapping by name, a tuple by position, or the only one; all as JSON
                holds them.
            batch: its name.
            fields: of all tasks, such as `timeout` or `env`; see `Task`.

        Returns:
            The batch: `async for value in batch.values()` waits for what each call returns, in the order of items.

        Raises:
            ConfigurationError: this queue keeps no batches, or the function cannot be imported.
            MalformedTask: an item is no argument of it; nothing is queued.
            BatchSealed, DuplicateTask: the name was used for other calls.
        """
        handle = self.batch(batch)
        await handle.map(function, items, fields)
        return handle

    async def pull_and_execute(
        self,
        callback: Callback | None = None,
        *,
        wait: timedelta = timedelta(0),
        thread: bool = False,
        stopping: Stopping | None = None,
        on_line: OnLine = lambda _task, _stream, _line: None,
    ) -> DeliveryReport | None:
        """Receive one task and run it, or a callback on it, under its lease; None when there was no task.

        The callback gets the task's arguments by name (`command=` of a command), and, if it has a parameter
        `delivery`, a `TaskContext` or `SyncTaskContext`. What it returns is the task's value, what it raises is a
        failure. An asynchronous one runs here and is cancelled when the lease is lost; the delivery is then left
        unsettled. A plain one runs in a supervised process, which is killed then.

        Cancelling this call ends the task at once and gives it back.

        Args:
            callback: what to run; None = the task's own command.
            wait: how long to stay for a task.
            thread: run a plain callback in a thread of this process: unprotected, nothing can end a thread.
            stopping: ends it early by other means than cancelling: `stop` leaves it its grace, `now` does not.
            on_line: given what a process prints: task id, "stdout" or "stderr", line; must not block.

        Raises:
            ConfigurationError: the callback can never work, or the queue cannot be used.
            JobqError: the receive failed; nothing was leased, or its lease runs out.
        """
        checked_span("wait", wait)
        way = way_of(callback, thread=thread)
        return await pull_and_execute(self.backend, self.settings, way, wait=wait, stopping=stopping, on_line=on_line)

    def get(self, *, wait: timedelta = timedelta(0)) -> Taking:
        """Return a context that takes one task: `async with queue.get() as delivery`; None when there was none.

        Its lease is renewed until `await delivery.complete(value)` or `await delivery.fail(error)`. Both raise LockLost
        when that is too late, as does leaving. Left by an exception, or without a word, the task has failed; by a
        cancellation it is given back. Nothing ends the code inside when the lease is lost: see `TakenTask`, and
        `pull_and_execute` for what can be killed. The loop must not be blocked meanwhile; `jobq.sync` may be.

        Args:
            wait: how long to stay for a task.

        Raises:
            ConfigurationError: the queue cannot be used.
            JobqError: the receive failed; nothing was leased, or its lease runs out.
        """
        return Taking(self.backend, self.settings, checked_span("wait", wait))

    async def worker(
        self,
        callback: Callback | None = None,
        *,
        thread: bool = False,
        num_workers: int | None = None,
        idle_timeout: timedelta | None = None,
        time_limit: timedelta | None = None,
        max_tasks: int | None = None,
        stopping: Stopping | None = None,
        on_event: Callable[[Event], None] | None = None,
        on_line: OnLine = lambda _task, _stream, _line: None,
    ) -> WorkerReport:
        """Run a worker, of commands or of a callback (see `pull_and_execute`), until the queue is worked off.

        In the main thread it takes SIGTERM, SIGHUP, SIGINT and SIGUSR1 while it runs, and gives them back after.
        Cancelling it ends what runs at once and gives it back to the queue.

        Args:
            callback: what to run; None = the tasks' own commands. Processes run below a guardian of their own.
            thread: run a plain callback in threads of this process: unprotected, nothing can end a thread.
            num_workers: slots; the settings' by default, as in the next two.
            idle_timeout: how long an empty queue is watched.
            time_limit: how long new tasks are taken.
            max_tasks: how many to take at most; None = no limit.
            stopping: stops it by other means than signals: `drain`, `stop`, `now`.
            on_event: gets each transition; must not block.
            on_line: given what processes print: task id, "stdout" or "stderr", line; must not block.

        Raises:
            ConfigurationError, QueueNotFound, BackendUnavailable: the callback can never work, or the queue cannot
                be used at all.
        """
        way = way_of(callback, thread=thread)
        given = {"num_workers": num_workers, "idle_timeout": idle_timeout, "time_limit": time_limit}
        own = {name: value for name, value in given.items() if value is not None}
        worker = Worker(
            self.backend,
            self.settings.changed(**own),
            runner=way.inside,
            adapt=way.adapt,
            events=Events(on_event) if on_event is not None else None,
            on_line=on_line,
            stopping=stopping,
            max_tasks=max_tasks,
        )
        return await worker.run()

    def lease(
        self,
        name: str,
        *,
        ttl: timedelta | None = None,
        wait: bool | timedelta = True,
        holder: str | None = None,
    ) -> NamedLease:
        """Return a lease on a name, to be entered: `async with queue.lease("nightly") as lease`.

        It is renewed while entered and released at the end; leaving raises LockLost if it was lost meanwhile. Watch
        `lease.lost`, and give `lease.token` along with every write that must not come from a stale holder (S10).

        Args:
            name: 1 to 128 letters, digits, dots, dashes, colons and underscores; of this queue.
            ttl: how long it outlasts its holder's last renewal; None = the store's default, about a minute.
            wait: True = for as long as it takes; False = raise LeaseHeld at once; a time = after so long.
            holder: for display only; None = HOST:PID.

        Raises:
            ConfigurationError: this service keeps no named leases, or not of this length.
        """
        for argument, span in (("ttl", ttl), ("wait", wait)):
            if span is not None and not isinstance(span, bool):
                checked_span(argument, span)
        return named_lease(self.leases, self.settings, name, ttl=ttl, wait=wait, holder=holder)

    def traversal(
        self,
        name: str,
        fetch: Fetch[_T],
        *,
        batch_size: int = BATCH_SIZE,
        source: Mapping[str, str] | None = None,
        **lease: Any,
    ) -> Traversal[_T]:
        """Return a walk through an ordered data set, to be entered; it goes on where the last holder stopped.

        Args:
            name: of the lease that carries the cursor.
            fetch: returns a page; see `jobq.lease.traversal.Traversal`. `jobq.lease.data_sources` has ready ones.
            batch_size: records of a page, at most.
            source: fingerprints of the data; a walk that was begun over other data is refused with SourceChanged.
            lease: as for `Queue.lease`.
        """
        return Traversal(self.lease(name, **lease), fetch, batch_size=batch_size, source=source)

    @property
    def leases(self) -> LeaseStore:
        """Where this queue's named leases are kept; raises ConfigurationError where the service keeps none."""
        return store_of(self.backend)

    async def list_leases(self) -> list[LeaseRecord]:
        """Return all named leases of this queue: active, expired, released and confirmed."""
        return await self.leases.list()

    async def confirm_lease(self, name: str, token: int, value: str = "") -> Confirmation:
        """Confirm, or repeat a confirmation, by token alone; see `NamedLease.confirm`."""
        return await self.leases.confirm(checked_name(name), token, value)

    async def release_lease(self, name: str, token: int) -> None:
        """Release by token alone, a confirmed lease too; raises LockLost when it is another's by now."""
        await self.leases.release(checked_name(name), token)

    @property
    def journal(self) -> Journal:
        """What is known of this queue's tasks; raises ConfigurationError where the service keeps no journal."""
        return journal_of(self.backend)

    async def status(self, task_id: str) -> TaskRecord:
        """Return where a task is now; raises TaskNotFound."""
        return await self.task(task_id).status()

    def task(self, task_id: str) -> TaskHandle:
        """Return the handle of a task that was pushed before, perhaps by another program."""
        return TaskHandle.of(task_id, self.backend)

    async def cancel(self, ids: Sequence[str]) -> list[Canceled]:
        """Cancel tasks, at most 500: what waits has ended then, what runs is stopped with its next heartbeat."""
        return await self.journal.cancel([TaskHandle.pushed(each) for each in checked_ids(ids)])

    async def peek(self, limit: int = 10) -> list[Peeked]:
        """Look at waiting tasks."""
        return await self.backend.peek(limit)

    async def stats(self) -> QueueStats:
        """Count."""
        return await self.backend.stats()

    async def pause(self, reason: str = "") -> Pause:
        """Hand out no task from now on, whichever worker asks; what runs goes on. Return the mark.

        Args:
            reason: for people, at most 200 characters.

        Raises:
            ConfigurationError: queues of this service cannot be paused.
        """
        mark = mark_of(reason)
        await pausable(self.backend).pause(mark)
        return mark

    async def resume(self) -> Pause | None:
        """Hand tasks out again; return the mark that was there, None where it was not paused."""
        return await pausable(self.backend).resume()

    async def hasten(self, ids: Sequence[str]) -> list[Hastened]:
        """Let tasks that are put off, until a time or for a retry, be due now; say of each what it was, in order.

        Raises:
            ConfigurationError: queues of this service cannot.
        """
        return await hastening(self.backend).hasten(checked_ids(ids))

    async def clear(self) -> int:
        """Delete what waits or is leased; return how many."""
        return await self.backend.clear()

    async def dead_letters(self, limit: int = 100) -> list[DeadLetter]:
        """Look at what jobq gave up on, oldest first."""
        return await self.backend.dead_letters(limit)

    async def redrive(self, ids: Sequence[str]) -> list[str]:
        """Put dead letters back; return those found."""
        return await self.backend.redrive(checked_ids(ids))

    async def purge_dead(self, ids: Sequence[str]) -> list[str]:
        """Delete dead letters for good; return those found."""
        return await self.backend.purge_dead(checked_ids(ids))


def tasks_of(given: object) -> list[Task]:
    """Return several tasks, and commands as tasks; raises TypeError, which says which of them is neither."""
    if isinstance(given, bytes | Mapping) or not isinstance(given, Iterable):
        raise TypeError(f"tasks is {_found(given)}; {_WANTED}, or several of these")
    return [_task(task, f"tasks[{number}]") for number, task in enumerate(given)]


def _task(given: object, name: str) -> Task:
    if isinstance(given, Task):
        return given
    if not isinstance(given, str):
        raise TypeError(f"{name} is {_found(given)}; {_WANTED}")
    return Task.new(command=given)


def _found(given: object) -> str:
    return "None" if given is None else f"of type {type(given).__name__} ({given!r:.60})"
