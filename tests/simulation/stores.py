"""The backends of this project on a simulated server's clock; the core imports none of them before one is asked for."""

import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from random import Random
from typing import Any, Final

from jobq.backend import Backend
from tests.simulation.loop import Machine
from tests.simulation.menu import NOT_OF_THE_BUS, NOT_ON_THE_MACHINE
from tests.simulation.network import NetworkLink
from tests.simulation.rules.monitor import Monitor
from tests.simulation.service_bus.copy_monitor import CopyMonitor
from tests.simulation.store import SimulatedStore

QUEUE: Final = "queue"
_TRACE_LENGTH: Final = 16  # of the store's own
_IN_MEMORY: Final = Path("/dev/shm")


@contextmanager
def memory(server: Machine) -> Iterator[Backend]:
    """Lend the in-memory backend."""
    from jobq_memory import MemoryBackend, Router  # noqa: PLC0415 - only this store needs it

    yield MemoryBackend(Router(clock=server, trace_length=_TRACE_LENGTH), QUEUE)


@contextmanager
def sqlite(server: Machine) -> Iterator[Backend]:
    """Lend the embedded one: the real SQL on a real file, without its threads."""
    from jobq_sqlite import SqliteBackend, StoreFile  # noqa: PLC0415 - likewise
    from jobq_sqlite.host import BootedHost  # noqa: PLC0415 - likewise
    from jobq_sqlite.loop_connection import LoopConnection  # noqa: PLC0415 - likewise

    place = _IN_MEMORY if _IN_MEMORY.is_dir() else None
    with tempfile.TemporaryDirectory(prefix="jobq-simulation-", dir=place) as folder:
        file = StoreFile(path=Path(folder) / "jobs.db", clock=server, host=BootedHost("machine", "boot"))
        yield SqliteBackend(file, QUEUE, connect=LoopConnection)


@contextmanager
def service_bus(server: Machine) -> Iterator[Any]:
    """Lend the far side of Service Bus."""
    from tests.simulation.service_bus.bus import Bus  # noqa: PLC0415 - likewise

    yield Bus(server)


@asynccontextmanager
async def _connected(link: NetworkLink, machine: Machine) -> AsyncIterator[Any]:
    from tests.simulation.service_bus.client import connected  # noqa: PLC0415 - likewise

    async with connected(link, machine) as backend:
        yield backend


def _finish(bus: Any, monitor: Monitor, lease: float, chance: Random) -> None:
    bus.make(monitor, lease, chance)


STORES: Final[dict[str, SimulatedStore]] = {
    "memory": SimulatedStore(make=memory),
    "sqlite": SimulatedStore(make=sqlite),
    # As `jobq worker` has it: a file of the workers' own machine.
    "embedded": SimulatedStore(make=sqlite, is_on_machine=True, without=NOT_ON_THE_MACHINE),
    # Its protocol of several requests a verb, each of them over the network.
    "service-bus": SimulatedStore(
        make=service_bus,
        finish=_finish,
        connect=_connected,
        monitor=CopyMonitor,
        grain=1.0,
        without=NOT_OF_THE_BUS,
    ),
}
