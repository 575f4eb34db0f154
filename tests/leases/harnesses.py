"""How the suite of named leases reaches each store of this repository."""

from datetime import timedelta
from pathlib import Path

from jobq.testing.clock import RealTime, VirtualClock
from jobq.testing.named_leases import LeaseHarness
from jobq_azure.storage.account import Account
from jobq_azure.storage.backend import StorageQueueBackend
from jobq_memory import MemoryBackend, Router
from jobq_postgres import PostgresBackend
from jobq_sqlite import SqliteBackend, StoreFile
from jobq_sqlite.host import BootedHost
from tests.postgres.server import Database


def memory() -> LeaseHarness:
    """A router of its own on a virtual clock."""
    router = Router(VirtualClock())
    return LeaseHarness(connect=lambda queue: MemoryBackend(router, queue), clock=router.clock)  # type: ignore[arg-type] # the virtual one


def sqlite(folder: Path) -> LeaseHarness:
    """A file of its own on a virtual clock."""
    clock = VirtualClock()
    file = StoreFile(path=folder / "jobs.db", clock=clock, host=BootedHost("machine", "boot"))
    return LeaseHarness(connect=lambda queue: SqliteBackend(file, queue), clock=clock, creates=True)


def azure(connection_string: str, account: str) -> LeaseHarness:
    """A storage account that keeps its own time."""

    def connect(queue: str) -> StorageQueueBackend:
        return StorageQueueBackend(Account(account, connection_string, ""), queue, timedelta(seconds=1))

    return LeaseHarness(connect=connect, clock=RealTime(), case_timeout=timedelta(seconds=120))


def postgres(database: Database) -> LeaseHarness:
    """A database that keeps its own time."""
    server = database.server()
    return LeaseHarness(connect=lambda queue: PostgresBackend(server, queue), clock=RealTime(), creates=True)
