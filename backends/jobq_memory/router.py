"""The router: all queues of one name in this process, one lock, and who waits for a task.

Workers may be asyncio tasks or threads with loops of their own; a change in one wakes the waiters in all others.
"""

import asyncio
import threading
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Final

from jobq.backend import FencingNumber
from jobq.clock import Clock, SystemClock
from jobq.errors import ConfigurationError, QueueNotFound
from jobq.servable import DATABASE
from jobq_memory.entry import Entry, State
from jobq_memory.leases import LeaseBook
from jobq_memory.queue_state import QueueState

_SETTLE_VERBS: Final = frozenset({"complete", "requeue", "release", "dead_letter"})


@dataclass(frozen=True, slots=True)
class TraceEvent:
    """One thing that happened.

    Attributes:
        time: boottime, in seconds.
        event: pushed, leased, renewed, expired, completed, requeued ..., or late_VERB for one that was refused.
        task: the task's id.
        fencing: the number of its latest delivery.
    """

    time: float
    event: str
    task: str
    fencing: FencingNumber


@dataclass(frozen=True, kw_only=True)
class TaskView:
    """One task as the router holds it, for tests and debugging; `expires` is boottime, None while not leased."""

    state: State
    deliveries: int
    fencing: FencingNumber
    priority: int
    checkpoint: str | None
    expires: float | None
    body: bytes

    @classmethod
    def of(cls, entry: Entry) -> "TaskView":
        """Copy what the router holds."""
        return cls(
            state=entry.state,
            deliveries=entry.deliveries,
            fencing=entry.fencing,
            priority=entry.priority,
            checkpoint=entry.checkpoint,
            expires=entry.expires if entry.state is State.LEASED else None,
            body=entry.body,
        )


class Waiter:
    """One `receive` that waits, in whichever loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.woken = asyncio.Event()

    def wake(self) -> None:
        """Make it look again; from any thread."""
        try:
            self._loop.call_soon_threadsafe(self.woken.set)
        except RuntimeError:  # its loop was closed under it: nobody waits any more
            return


class Router:
    """All queues of one name; thread-safe.

    Args:
        clock: the machine's unless a test injects another.
        min_lease: the shortest lease granted.
        max_message_bytes: the largest task taken; None = what `Task.encode` allows.
        trace_length: how many events are kept.
        is_observed: whether workers note how its queues are; nobody looks at a router from outside of its process.

    Attributes:
        trace: the latest events, oldest first.
        leases: the named leases of all queues.
        counters: how often each event happened; `late_settlements` sums the refused settlements (S4).
    """

    def __init__(
        self,
        clock: Clock | None = None,
        *,
        min_lease: timedelta = timedelta(seconds=1),
        max_message_bytes: int | None = None,
        trace_length: int = 10_000,
        is_observed: bool = False,
    ) -> None:
        self.clock: Clock = clock or SystemClock()
        self.is_observed = is_observed
        self.trace: deque[TraceEvent] = deque(maxlen=trace_length)
        self.counters: Counter[str] = Counter()
        self.capabilities = replace(
            DATABASE,
            dedup_window=None,
            min_lease=min_lease,
            max_message_bytes=max_message_bytes,
            selects=True,
            batches=True,
            views=True,
            whole_views=True,
            redelivers_at="front",  # by age: an expired or released task keeps its place
        )
        self.leases = LeaseBook(self.clock)
        self._lock = threading.Lock()
        self._stores: dict[str, QueueState] = {}
        self._waiters: dict[str, dict[Waiter, None]] = {}  # first come, first woken

    def create(self, queue: str, *, exist_ok: bool = True) -> None:
        """Make a queue; raises ConfigurationError when it exists and may not."""
        with self._lock:
            if queue not in self._stores:
                self._stores[queue] = QueueState(self.clock, self._note, self.capabilities.max_message_bytes)
                self._waiters[queue] = {}
            elif not exist_ok:
                raise ConfigurationError(f"queue {queue!a} exists already")

    def queues(self) -> list[str]:
        """Return the names of all queues."""
        with self._lock:
            return sorted(self._stores)

    @contextmanager
    def opened(self, queue: str) -> Iterator[QueueState]:
        """Lend a queue's store, alone, for one step; raises QueueNotFound."""
        with self._lock:
            if queue not in self._stores:
                raise QueueNotFound(f"queue {queue!a} does not exist in this process; create it first")
            yield self._stores[queue]

    @contextmanager
    def waiting(self, queue: str) -> Iterator[Waiter]:
        """Be notified of changes until the context is left; enter before the look, so that no change falls between."""
        waiter = Waiter()
        with self._lock:
            waiters = self._waiters.setdefault(queue, {})
            waiters[waiter] = None
        try:
            yield waiter
        finally:
            with self._lock:
                waiters.pop(waiter, None)

    def wake(self, queue: str) -> None:
        """Make every waiting `receive` of a queue look again."""
        with self._lock:
            waiters = list(self._waiters.get(queue, ()))
        for waiter in waiters:
            waiter.wake()

    def inject(self, queue: str, body: bytes) -> str:
        """Add any bytes as a message, as a foreign sender could; return its id. For poison tests (L3)."""
        with self.opened(queue) as store:
            id_ = store.inject(body)
        self.wake(queue)
        return id_

    def snapshot(self, queue: str) -> dict[str, TaskView]:
        """Return every task that the queue knows, done and dead ones too, by id; lets no time take effect."""
        with self.opened(queue) as store:
            return {id_: TaskView.of(entry) for id_, entry in store.entries.items()}

    def _note(self, event: str, entry: Entry) -> None:
        self.counters[event] += 1
        if event.removeprefix("late_") in _SETTLE_VERBS:
            self.counters["late_settlements"] += 1
        self.trace.append(TraceEvent(self.clock.boottime(), event, entry.id, entry.fencing))


_routers: dict[str, Router] = {}
_routers_lock = threading.Lock()


def router(name: str) -> Router:
    """Return the process's router of this name, made on first use."""
    with _routers_lock:
        return _routers.setdefault(name, Router())


def forget(name: str) -> None:
    """Let the next user of this name begin with an empty router; those who hold the old one keep it."""
    with _routers_lock:
        _routers.pop(name, None)
