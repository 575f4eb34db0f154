"""A queue that is missing is made by the first command that needs it, unless that is forbidden."""

from jobq.backend import Backend
from jobq.cli.display import terminal
from jobq.errors import BackendUnavailable, QueueNotFound
from jobq.lease.store import checked_name, store_of
from jobq.submit.pusher import make_queue


def say_created(backend: Backend) -> None:
    """Say that a queue was made."""
    terminal.say(f"created queue {backend.name}")


async def ready_for_lease(backend: Backend, name: str, *, creates: bool = True, says: bool = True) -> None:
    """See to it, before a named lease is asked for, that there is where it is kept.

    Args:
        backend: keeps it.
        name: of the lease.
        creates: whether to make what is missing.
        says: whether to say that it was made.

    Raises:
        QueueNotFound: it is missing, and is not to be made.
        ConfigurationError: no lease can be had there, or not under this name.
    """
    try:
        await store_of(backend).read(checked_name(name))
    except QueueNotFound as missing:
        if not creates:
            raise
        if await make_queue(backend, missing) and says:
            say_created(backend)
    except BackendUnavailable:
        pass  # the lease is asked for until it is answered, or for as long as the user waits
