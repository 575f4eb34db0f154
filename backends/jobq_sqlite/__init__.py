"""The embedded queue on SQLite: `demo`, `sqlite:///abs/jobs.db/myqueue`, `sqlite://rel/jobs.db/myqueue`."""

from jobq.clock import StoreClock
from jobq.errors import InvalidSpec
from jobq.formats.user_paths import user_path
from jobq.settings import Settings, user_home
from jobq.spec import QueueSpec
from jobq_sqlite.backend import SqliteBackend
from jobq_sqlite.host import this_host
from jobq_sqlite.open_file import StoreFile

__all__ = ["SqliteBackend", "StoreFile", "connect", "connect_embedded"]


def connect(spec: QueueSpec, settings: Settings) -> SqliteBackend:
    """Return the backend for `sqlite://FILE/QUEUE`; raises InvalidSpec when it names no file."""
    if not spec.location or spec.location.endswith("/"):
        raise InvalidSpec(
            f"'{spec}' names no file; write sqlite:///abs/jobs.db/{spec.queue} or sqlite://rel/jobs.db/{spec.queue}"
        )
    path = user_path(spec.location, str(spec))
    return SqliteBackend(
        StoreFile(path=path, clock=StoreClock(), host=this_host(), adopt=settings.sqlite_adopt, makes_folder=False),
        spec.queue,
        keep=settings.kept,
        most_bytes=settings.journal_max,
    )


def connect_embedded(spec: QueueSpec, settings: Settings) -> SqliteBackend:
    """Return the backend for a bare queue name: the file `queues.db` in the user's data folder."""
    path = user_home(settings) / "queues.db"
    file = StoreFile(path=path, clock=StoreClock(), host=this_host(), adopt=settings.sqlite_adopt)
    return SqliteBackend(file, spec.queue, keep=settings.kept, most_bytes=settings.journal_max)
