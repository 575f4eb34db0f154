"""The library without `async`, for scripts and notebooks: `with jobq.sync.connect("demo") as queue`.

An event loop runs in a thread of its own, so it works beside a loop that runs already (Jupyter). Each call waits for
its end. Ctrl-C meanwhile ends the work as it ends a worker's: in order, giving back what ran; a second one, without
grace.
"""

import asyncio
import concurrent.futures
import os
import signal
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from types import FrameType
from typing import Any, Final, Generic, Self, TypeVar, overload

from jobq import queue as asynchronous
from jobq.backend import DeadLetter, Hastened, Peeked, QueueStats
from jobq.batch_handle import SyncBatchHandle
from jobq.events import Event
from jobq.journal.records import Canceled, TaskRecord
from jobq.lease.named import NamedLease
from jobq.lease.store import Confirmation, LeaseRecord
from jobq.pausing import Pause
from jobq.run.attempt.runner import OnLine
from jobq.run.attempt.supervisor import DeliveryReport
from jobq.run.callbacks.callback import Callback
from jobq.run.stopping import Stopping
from jobq.run.worker.worker_report import WorkerReport
from jobq.settings import Settings
from jobq.sync.lease import Lease
from jobq.sync.taken import SyncTaking
from jobq.task import Task
from jobq.task_handle import SyncTaskHandle

_T = TypeVar("_T")
# A signal that comes in the instant before the main thread begins to wait does not end the wait: look again.
_LOOK_SECONDS: Final = 0.2


def connect(spec: str | None = None, *, settings: Settings | None = None) -> "Queue":
    """Connect to a queue; use it as `with`, or call `close` at the end.

    Args:
        spec: such as `demo` or `myaccount/myqueue`; JOBQ_QUEUE when it is None.
        settings: read from the environment when None.

    Raises:
        ConfigurationError: there is no spec, or it cannot be served.
    """
    return Queue(spec, settings)


class Queue:
    """As `jobq.Queue`, each verb blocking; may be used from several threads. `connect` makes one."""

    def __init__(self, spec: str | None, settings: Settings | None) -> None:
        self._loop: Final = asyncio.new_event_loop()
        self._opened: Final[concurrent.futures.Future[asynchronous.Queue]] = concurrent.futures.Future()
        self._closing: Final = asyncio.Event()
        self._guard: Final = threading.Lock()  # of the two that follow
        self._is_closed = False
        self._process: Final = os.getpid()
        self._calls: Final[set[_Call[Any]]] = set()
        self._thread: Final = threading.Thread(target=self._main, args=(spec, settings), name="jobq", daemon=True)
        self._thread.start()
        try:
            self._queue: Final = self._opened.result()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """End what another thread still runs, give it back, and free everything; may be repeated."""
        self._refuse_own_thread()
        with suppress(RuntimeError):  # its loop is closed already
            self._loop.call_soon_threadsafe(self._closing.set)
        self._thread.join()

    @overload
    def push(self, tasks: Task | str) -> SyncTaskHandle: ...  # type: ignore[overload-overlap] # a string is one command

    @overload
    def push(self, tasks: Iterable[Task | str]) -> list[SyncTaskHandle]: ...

    def push(self, tasks: Task | str | Iterable[Task | str]) -> SyncTaskHandle | list[SyncTaskHandle]:
        """Durably add one task, or many, all or none; a string is a command. As `jobq.Queue.push`."""
        if isinstance(tasks, Task | str):
            return SyncTaskHandle.of(self._call(self._queue.push(tasks)), self._call)
        made = asynchronous.tasks_of(tasks)  # here: what gives them is this thread's
        return [SyncTaskHandle.of(handle, self._call) for handle in self._call(self._queue.push(made))]

    def batch(self, name: str, *, then: Iterable[Task | str] = ()) -> SyncBatchHandle:
        """Return a batch: `with queue.batch("s7") as batch: batch.push(tasks)`; see `jobq.Queue.batch`."""
        return SyncBatchHandle(self._queue.batch(name, then=then), self._call)

    def map(self, function: Callable[..., Any], items: Iterable[Any], *, batch: str, **fields: Any) -> SyncBatchHandle:
        """Queue a call of a function for each item, as one batch: `for value in queue.map(...).values()`.

        See `jobq.Queue.map`.
        """
        made = list(items)  # here: what gives them is this thread's
        return SyncBatchHandle(self._call(self._queue.map(function, made, batch=batch, **fields)), self._call)

    def task(self, task_id: str) -> SyncTaskHandle:
        """Return the handle of a task that was pushed before, perhaps by another program."""
        return SyncTaskHandle.of(self._queue.task(task_id), self._call)

    def status(self, task_id: str) -> TaskRecord:
        """Return where a task is now; raises TaskNotFound."""
        return self._call(self._queue.status(task_id))

    def cancel(self, ids: Sequence[str]) -> list[Canceled]:
        """Cancel tasks; see `jobq.Queue.cancel`."""
        return self._call(self._queue.cancel(ids))

    def pull_and_execute(
        self,
        callback: Callback | None = None,
        *,
        wait: timedelta = timedelta(0),
        thread: bool = False,
        on_line: OnLine = lambda _task, _stream, _line: None,
    ) -> DeliveryReport | None:
        """Receive one task and run it, or a callback on it; see `jobq.Queue.pull_and_execute`.

        An asynchronous callback, and `on_line`, run in the queue's own thread.
        """
        stopping = Stopping()
        pulling = self._queue.pull_and_execute(callback, wait=wait, thread=thread, stopping=stopping, on_line=on_line)
        return self._call(pulling, stopping)

    def get(self, *, wait: timedelta = timedelta(0)) -> SyncTaking:
        """Return a context that takes one task: `with queue.get() as delivery`; see `jobq.Queue.get`.

        Its lease is renewed by the queue's own thread, whatever the program does meanwhile.
        """
        return SyncTaking(self._queue.get(wait=wait), self._call)

    def worker(
        self,
        callback: Callback | None = None,
        *,
        thread: bool = False,
        num_workers: int | None = None,
        idle_timeout: timedelta | None = None,
        time_limit: timedelta | None = None,
        max_tasks: int | None = None,
        on_event: Callable[[Event], None] | None = None,
        on_line: OnLine = lambda _task, _stream, _line: None,
    ) -> WorkerReport:
        """Run a worker until the queue is worked off; see `jobq.Queue.worker`.

        It listens to no signals: SIGTERM ends the program, its tasks die with it and come back when their leases run
        out. After a Ctrl-C, KeyboardInterrupt is raised once everything is given back. Asynchronous callbacks,
        `on_event` and `on_line` run in the queue's own thread.
        """
        stopping = Stopping()
        working = self._queue.worker(
            callback,
            thread=thread,
            num_workers=num_workers,
            idle_timeout=idle_timeout,
            time_limit=time_limit,
            max_tasks=max_tasks,
            stopping=stopping,
            on_event=on_event,
            on_line=on_line,
        )
        return self._call(working, stopping)

    def lease(
        self,
        name: str,
        *,
        ttl: timedelta | None = None,
        wait: bool | timedelta = True,
        holder: str | None = None,
    ) -> "Lease":
        """Return a lease on a name, to be entered: `with queue.lease("nightly") as lease`; see `jobq.Queue.lease`.

        It is renewed by the queue's own thread, whatever the program does meanwhile.
        """

        async def made() -> NamedLease:
            return self._queue.lease(name, ttl=ttl, wait=wait, holder=holder)

        return Lease(self._call(made()), self._call)

    def list_leases(self) -> list[LeaseRecord]:
        """Return all named leases of this queue."""
        return self._call(self._queue.list_leases())

    def confirm_lease(self, name: str, token: int, value: str = "") -> Confirmation:
        """Confirm, or repeat a confirmation, by token alone."""
        return self._call(self._queue.confirm_lease(name, token, value))

    def release_lease(self, name: str, token: int) -> None:
        """Release by token alone, a confirmed lease too."""
        self._call(self._queue.release_lease(name, token))

    def peek(self, limit: int = 10) -> list[Peeked]:
        """Look at waiting tasks."""
        return self._call(self._queue.peek(limit))

    def stats(self) -> QueueStats:
        """Count."""
        return self._call(self._queue.stats())

    def pause(self, reason: str = "") -> Pause:
        """Hand out no task from now on; see `jobq.Queue.pause`."""
        return self._call(self._queue.pause(reason))

    def resume(self) -> Pause | None:
        """Hand tasks out again; return the mark that was there."""
        return self._call(self._queue.resume())

    def hasten(self, ids: Sequence[str]) -> list[Hastened]:
        """Let tasks that are put off be due now; see `jobq.Queue.hasten`."""
        return self._call(self._queue.hasten(ids))

    def clear(self) -> int:
        """Delete what waits or is leased; return how many."""
        return self._call(self._queue.clear())

    def dead_letters(self, limit: int = 100) -> list[DeadLetter]:
        """Look at what jobq gave up on, oldest first."""
        return self._call(self._queue.dead_letters(limit))

    def redrive(self, ids: Sequence[str]) -> list[str]:
        """Put dead letters back; return those found."""
        return self._call(self._queue.redrive(ids))

    def purge_dead(self, ids: Sequence[str]) -> list[str]:
        """Delete dead letters for good; return those found."""
        return self._call(self._queue.purge_dead(ids))

    def _call(self, work: Coroutine[Any, Any, _T], stopping: Stopping | None = None) -> _T:
        """Run it on the loop and wait for its end, also after a Ctrl-C: KeyboardInterrupt is raised then.

        Args:
            work: what to run.
            stopping: ends it in order; None = it is cancelled.
        """
        if os.getpid() != self._process:
            work.close()
            raise RuntimeError(
                "this process was forked from the one that connected: connect in it, after the fork alone"
            )
        call = _Call(work)
        ways = [] if stopping is None else [stopping.stop, stopping.now]

        def interrupt() -> None:
            with suppress(RuntimeError):  # the loop is closed: it has ended
                if ways:
                    self._loop.call_soon_threadsafe(ways.pop(0), "interrupted")
                else:
                    self._loop.call_soon_threadsafe(call.cancel)

        with _hearing_ctrl_c(interrupt):
            self._begin(call)
            try:
                _wait(call.ended)
            except BaseException:  # raised by a signal handler of the program's own
                ways.clear()
                interrupt()
                _wait(call.ended)
                raise
        if call.ended.cancelled():
            raise RuntimeError("this queue was closed meanwhile; what ran was given back")
        return call.ended.result()

    def _begin(self, call: "_Call[Any]") -> None:
        try:
            self._refuse_own_thread()
            with self._guard:
                if self._is_closed:
                    raise RuntimeError("this queue is closed; connect again")
                self._calls.add(call)
                self._loop.call_soon_threadsafe(call.start, self._end)
        except RuntimeError:
            call.work.close()
            raise

    def _end(self, call: "_Call[Any]") -> None:
        with self._guard:
            self._calls.discard(call)

    def _refuse_own_thread(self) -> None:
        if threading.current_thread() is self._thread:
            raise RuntimeError("a callback on the queue's own thread cannot wait for it; use `jobq.connect` there")

    def _main(self, spec: str | None, settings: Settings | None) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve(spec, settings))

    async def _serve(self, spec: str | None, settings: Settings | None) -> None:
        try:
            async with asynchronous.connect(spec, settings=settings) as queue:
                self._opened.set_result(queue)
                await self._closing.wait()
                while waiting := self._calls_to_end():
                    await asyncio.wait([asyncio.wrap_future(call.ended) for call in waiting])
        except BaseException as error:
            if self._opened.done():
                raise
            self._opened.set_exception(error)

    def _calls_to_end(self) -> list["_Call[Any]"]:
        with self._guard:
            self._is_closed = True
            calls = list(self._calls)
        for call in calls:
            call.cancel()
        return calls


@contextmanager
def _hearing_ctrl_c(interrupt: Callable[[], None]) -> Iterator[None]:
    """Call `interrupt` at each Ctrl-C instead of raising KeyboardInterrupt, which is raised on leaving.

    Raised at any bytecode, it could leave what runs to nobody. A handler of the program's own stays in force.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    heard = False

    def hear(_number: int, _frame: FrameType | None) -> None:
        nonlocal heard
        heard = True
        interrupt()

    signal.signal(signal.SIGINT, hear)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if heard:
        raise KeyboardInterrupt


def _wait(ended: "concurrent.futures.Future[Any]") -> None:
    while not ended.done():
        concurrent.futures.wait([ended], timeout=_LOOK_SECONDS)


class _Call(Generic[_T]):
    """One call of another thread; its methods run on the loop."""

    def __init__(self, work: Coroutine[Any, Any, _T]) -> None:
        self.work: Final = work
        self.ended: Final[concurrent.futures.Future[_T]] = concurrent.futures.Future()
        self._task: asyncio.Task[_T] | None = None
        self._is_cancelled = False

    def start(self, on_end: Callable[["_Call[_T]"], None]) -> None:
        """Run it as a task."""
        self._task = asyncio.get_running_loop().create_task(self.work, name="a call of jobq.sync")
        self._task.add_done_callback(lambda task: self._end(task, on_end))
        if self._is_cancelled:  # before it began
            self._task.cancel()

    def cancel(self) -> None:
        """Cancel it; it ends when it has given back what it ran."""
        self._is_cancelled = True
        if self._task is not None:
            self._task.cancel()

    def _end(self, task: "asyncio.Task[_T]", on_end: Callable[["_Call[_T]"], None]) -> None:
        on_end(self)
        if task.cancelled():
            self.ended.cancel()
            self.ended.set_running_or_notify_cancel()
        elif (error := task.exception()) is not None:
            self.ended.set_exception(error)
        else:
            self.ended.set_result(task.result())
