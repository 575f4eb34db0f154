"""What `push --resume` and `fanout` share: the lease that carries their cursor."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

from jobq.backend import Backend
from jobq.cli.display import terminal
from jobq.cli.submit.create_queue import ready_for_lease
from jobq.errors import ConfigurationError
from jobq.lease.named import NamedLease, named_lease
from jobq.lease.store import store_of
from jobq.settings import Settings
from jobq.spec import QueueSpec, resolve

# Short, for whoever runs an interrupted one again waits for it; and no shorter than what Azure grants.
_TTL: Final = timedelta(seconds=20)
_MOST_NAME: Final = 80  # ids are made of it and have at most 100 characters


@dataclass(frozen=True)
class Cursors:
    """Where cursors are kept.

    Attributes:
        keeper: keeps the lease.
        creates: whether to make the queue in which it keeps it.
        tells: whether to say that it was made.
        source: what else a walk is told by there; see `Traversal`.
    """

    keeper: Backend
    creates: bool
    tells: bool
    source: Mapping[str, str] = field(default_factory=dict)

    async def ready(self, name: str) -> None:
        """See to it, before this lease is asked for, that there is where it is kept; raises QueueNotFound."""
        await ready_for_lease(self.keeper, name, creates=self.creates, tells=self.tells)


@asynccontextmanager
async def cursors_of(
    backend: Backend, queue: QueueSpec, settings: Settings, *, creates: bool, tells: bool
) -> AsyncIterator[Cursors]:
    """Yield what keeps the cursors of a queue: it itself, or the queue that JOBQ_LEASES names."""
    if settings.leases is None:
        yield Cursors(backend, creates, tells)
    else:
        async with resolve(settings.leases, settings) as keeper:
            yield Cursors(keeper, creates, tells, {"queue": str(queue)})  # cursors of several queues may meet there


def walk_lease(backend: Backend, settings: Settings, name: str) -> NamedLease:
    """Return the lease of a walk, whose end others wait for.

    Args:
        backend: keeps it.
        settings: margins and time to live.
        name: of the lease.

    Raises:
        ConfigurationError: the backend keeps no named leases, or the name cannot serve.
    """
    if len(name) > _MOST_NAME:
        raise ConfigurationError(f"a name has at most {_MOST_NAME - len(name.partition(':')[0]) - 1} characters")
    told: set[int] = set()

    def on_busy(text: str, token: int) -> None:
        if token not in told:
            told.add(token)
            terminal.tell(f"waiting: {text}")

    try:
        store = store_of(backend)
    except ConfigurationError as error:
        error.add_note("JOBQ_LEASES names such a queue, for the cursor alone")
        raise
    return named_lease(store, settings, name, ttl=settings.lease_ttl or _TTL, on_busy=on_busy)
