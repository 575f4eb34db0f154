"""PostgreSQL: `postgresql://user@host/db/myqueue` (extra `postgres`)."""

from jobq.settings import Settings
from jobq.spec import QueueSpec
from jobq_postgres.backend import PostgresBackend
from jobq_postgres.lane import Lane, Server
from jobq_postgres.server_spec import server_of
from jobq_postgres.walked_rows import connect_rows

__all__ = ["Lane", "PostgresBackend", "Server", "connect", "connect_rows", "server_of"]


def connect(spec: QueueSpec, settings: Settings) -> PostgresBackend:
    """Return the backend for `postgresql://[USER@][HOST][:PORT]/DATABASE[?OPTIONS]/QUEUE`; raises InvalidSpec."""
    return PostgresBackend(server_of(spec), spec.queue, keep=settings.kept, most_bytes=settings.journal_max)
