"""What `push --resume` and `fanout` share: the lease that carries their cursor, and a push under it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from jobq.backend import Backend
from jobq.cli.common import spec_of, with_queue
from jobq.cli.display import terminal
from jobq.cli.submit.create_queue import ready_for_lease
from jobq.cli.submit.push_given import HowToPush
from jobq.cli.submit.push_options import check_priority
from jobq.errors import ConfigurationError, JobqError, SourceChanged
from jobq.lease.named import NamedLease, named_lease
from jobq.lease.store import store_of
from jobq.settings import Settings
from jobq.spec import QueueSpec, parse, resolve
from jobq.submit.command_template import InvalidTemplate
from jobq.submit.pusher import Pusher

if TYPE_CHECKING:
    from jobq.batches import Batch

# Short, since an interrupted one that is run again waits for it; and no shorter than what Azure grants.
_TTL: Final = timedelta(seconds=20)
_MOST_NAME: Final = 80  # ids are made of it and have at most 100 characters


@dataclass(frozen=True)
class CursorLease:
    """What carries the cursor of a walk.

    Attributes:
        lease: the lease.
        source: by what else a walk is known there; see `Traversal`.
    """

    lease: NamedLease
    source: Mapping[str, str]


def push_under_cursor(
    how: HowToPush,
    name: str,
    push: Callable[[Pusher, CursorLease], Awaitable[int]],
    ids: Callable[[], Awaitable[list[str]]] | None = None,
) -> int:
    """Connect to the queue, push under a lease that carries the cursor, and wait if that is wanted; return the code.

    Args:
        how: to push.
        name: of the lease.
        push: queues what is left.
        ids: returns those of all tasks, also of those that an earlier run has queued; None = nobody waits for them.
    """
    echo = how.echo

    async def work(backend: Backend) -> int:
        check_priority(backend, how.template.priority)
        queue, says = parse(spec_of(how.ctx, how.settings)), not echo.as_json

        async def pushed(batch: "Batch | None") -> int:
            # Of this life of the batch: another one of its name has to be walked from the beginning.
            lease = name if batch is None else f"{name}.{life_of(batch)}"
            async with cursor_of(backend, queue, how.settings, lease, creates=how.creates, says=says) as cursor:
                return await push(how.pusher(backend), cursor)

        if echo.kept is None or ids is None:
            return await how.in_batch(backend, pushed)
        from jobq.cli.submit.wait_for_results import check_journal, wait_for  # noqa: PLC0415 - most do not wait

        await check_journal(backend)
        if code := await how.in_batch(backend, pushed):
            return code
        # Those of earlier runs too: the same command gives the same answer, however often it was interrupted.
        return await wait_for(backend, await ids(), as_json=echo.as_json, timeout=echo.wait_timeout)

    return with_queue(how.ctx, work, how.settings, interruptible=echo.kept is not None)


def life_of(batch: "Batch") -> str:
    """Return what tells a batch from another one by its name, before or after it."""
    return f"{int(batch.created * 100):x}"


@asynccontextmanager
async def cursor_of(
    backend: Backend, queue: QueueSpec, settings: Settings, name: str, *, creates: bool, says: bool
) -> AsyncIterator[CursorLease]:
    """Yield what carries a walk's cursor, kept by the queue itself or by the one that JOBQ_LEASES names.

    Args:
        backend: of the queue.
        queue: its spec.
        settings: of the lease.
        name: of the lease.
        creates: whether to make what is missing.
        says: whether to say that it was made.

    Raises:
        QueueNotFound: there is none to keep it, and none is to be made.
        ConfigurationError: the backend keeps no named leases, or the name cannot serve.
    """
    if settings.leases is not None and parse(settings.leases).scheme == "memory":
        raise ConfigurationError(
            "JOBQ_LEASES: memory:// lives in one process and ends with this command, and the cursor with it. Name an"
            " embedded queue, such as: cursors"
        )
    async with keeper_of(backend, settings) as keeper:
        lease = _walk_lease(keeper, settings, name)
        await ready_for_lease(keeper, name, creates=creates, says=says)
        yield CursorLease(lease, {"queue": str(queue)} if settings.leases else {})  # several queues may meet there


def keeper_of(backend: Backend, settings: Settings) -> AbstractAsyncContextManager[Backend]:
    """Return the queue that keeps cursors: the given one, or that of JOBQ_LEASES, whose own journal is no matter."""
    if settings.leases is None:
        return nullcontext(backend)
    return resolve(settings.leases, settings.changed(journal="auto"))


@contextmanager
def saying_how_to_go_on(pusher: Pusher) -> Iterator[None]:
    """Say of an interruption, and with an error, what was queued, and that the same command goes on."""
    try:
        yield
    except asyncio.CancelledError:
        terminal.say(f"{pusher.summary()}; run the same command again to go on")
        raise
    except JobqError as error:
        if not isinstance(error, SourceChanged | InvalidTemplate):
            error.add_note(f"{pusher.summary()}; run the same command again to go on")
        raise


def _walk_lease(backend: Backend, settings: Settings, name: str) -> NamedLease:
    if len(name) > _MOST_NAME:
        raise ConfigurationError(f"a name has at most {_MOST_NAME - len(name.partition(':')[0]) - 1} characters")
    named: set[int] = set()

    def on_busy(text: str, token: int) -> None:
        if token not in named:
            named.add(token)
            terminal.say(f"waiting: {text}")

    try:
        store = store_of(backend)
    except ConfigurationError as error:
        error.add_note("JOBQ_LEASES names such a queue, for the cursor alone")
        raise
    return named_lease(store, settings, name, ttl=settings.lease_ttl or _TTL, on_busy=on_busy)
