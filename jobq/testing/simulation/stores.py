"""The backends of this project on a simulated server's clock; the core imports none of them before one is asked for."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from jobq.backend import Backend
from jobq.testing.simulation.broker import MakeBackend
from jobq.testing.simulation.loop import Machine

QUEUE: Final = "queue"
_TRACE_LENGTH: Final = 16  # of the store's own
_IN_MEMORY: Final = Path("/dev/shm")  # noqa: S108 - what a power failure leaves is tested elsewhere


@contextmanager
def memory(server: Machine) -> Iterator[Backend]:
    """Lend the in-memory backend."""
    from jobq_memory import MemoryBackend, Router  # noqa: PLC0415

    yield MemoryBackend(Router(clock=server, trace_length=_TRACE_LENGTH), QUEUE)


@contextmanager
def sqlite(server: Machine) -> Iterator[Backend]:
    """Lend the embedded one: the real SQL on a real file, without its threads."""
    from jobq_sqlite import SqliteBackend, StoreFile  # noqa: PLC0415
    from jobq_sqlite.host import Host  # noqa: PLC0415
    from jobq_sqlite.loop_connection import LoopConnection  # noqa: PLC0415

    place = _IN_MEMORY if _IN_MEMORY.is_dir() else None
    with tempfile.TemporaryDirectory(prefix="jobq-simulation-", dir=place) as folder:
        file = StoreFile(path=Path(folder) / "jobs.db", clock=server, host=Host("machine", "boot"))
        yield SqliteBackend(file, QUEUE, connect=LoopConnection)


STORES: Final[dict[str, MakeBackend]] = {"memory": memory, "sqlite": sqlite}
