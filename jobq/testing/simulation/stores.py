"""The backends of this project on a simulated server's clock."""

from typing import Final

from jobq.backend import Backend
from jobq.testing.simulation.broker import MakeBackend
from jobq.testing.simulation.loop import Machine

QUEUE: Final = "queue"
_TRACE_LENGTH: Final = 16  # of the store's own


def memory(server: Machine) -> Backend:
    """Return the in-memory backend."""
    from jobq_memory import MemoryBackend, Router  # noqa: PLC0415 - the core imports no backend

    router = Router(clock=server, trace_length=_TRACE_LENGTH)
    router.create(QUEUE)
    return MemoryBackend(router, QUEUE)


STORES: Final[dict[str, MakeBackend]] = {"memory": memory}
