"""What `push --resume` and `fanout` share: the lease that carries their cursor."""

from datetime import timedelta
from typing import Final

from jobq.backend import Backend
from jobq.cli.display import terminal
from jobq.errors import ConfigurationError
from jobq.lease.named import NamedLease, named_lease
from jobq.lease.store import store_of
from jobq.settings import Settings

# Short, for whoever runs an interrupted one again waits for it; and no shorter than what Azure grants.
_TTL: Final = timedelta(seconds=20)
_MOST_NAME: Final = 80  # ids are made of it and have at most 100 characters


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

    return named_lease(store_of(backend), settings, name, ttl=settings.lease_ttl or _TTL, on_busy=on_busy)
