"""A queue that is missing is made by whoever first needs it, unless that is forbidden."""

from jobq.backend import Backend
from jobq.cli.display import terminal
from jobq.errors import AccessDenied, BackendUnavailable, QueueNotFound
from jobq.lease.store import checked_name, store_of


async def create(backend: Backend, missing: QueueNotFound, *, tells: bool = True) -> None:
    """Make the queue, and say so where `tells`; raises AccessDenied, which then also says what was missing."""
    try:
        await backend.create(exist_ok=True)
    except AccessDenied as error:
        error.add_note(str(missing))
        raise
    if tells:
        terminal.tell(f"created queue {backend.name}")


async def ready_for_lease(backend: Backend, name: str, *, creates: bool = True, tells: bool = True) -> None:
    """See to it, before a named lease is asked for, that there is where it is kept.

    Args:
        backend: keeps it.
        name: of the lease.
        creates: whether to make what is missing.
        tells: whether to say that it was made.

    Raises:
        QueueNotFound: it is missing, and is not to be made.
        ConfigurationError: no lease can be had there, or not under this name.
    """
    try:
        await store_of(backend).read(checked_name(name))
    except QueueNotFound as missing:
        if not creates:
            raise
        await create(backend, missing, tells=tells)
    except BackendUnavailable:
        pass  # the lease is asked for until it is answered, or for as long as the user waits
