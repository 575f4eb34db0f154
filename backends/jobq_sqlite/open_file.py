"""Opening the file: is it there, is it ours, of our version and of this machine? And closing it, unless it is gone."""

import errno
import os
import shlex
import sqlite3
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from jobq.clock import Clock
from jobq.errors import AccessDenied, BackendUnavailable, ConfigurationError, JobqError, QueueNotFound, StoreUnusable
from jobq.formats.lazy_dataclass import dataclass
from jobq_sqlite import forked, private_file
from jobq_sqlite.errors import StoreReplaced, no_write, translate
from jobq_sqlite.file_clock import FileClock
from jobq_sqlite.host import BootedHost
from jobq_sqlite.same_file import SameFile, other_name
from jobq_sqlite.stops import Undisturbed
from jobq_sqlite.task_sql import Now

SCHEMA_VERSION: Final = 14  # of schema.sql; a change of that raises it
APPLICATION_ID: Final = 0x6A6F6271  # "jobq"
_BUSY_PAUSE_SECONDS: Final = 0.005
_OLDEST_SQLITE: Final = (3, 24, 0)  # ON CONFLICT DO NOTHING
_NEVER_CLOSED: Final[list[sqlite3.Connection]] = []


@dataclass(frozen=True, kw_only=True)
class StoreFile:
    """An SQLite file and who may use it.

    Attributes:
        path: the file.
        clock: decides leases; on the system's clock for all but tests.
        host: this machine and boot.
        adopt: take over a file of another machine.
        makes_folder: whether its folder is ours to make: one that somebody has typed may hold a slip.
        busy_timeout: seconds to wait for the write lock of another process.
        connection_class: what speaks to SQLite; replaced in tests, to fail at will.
    """

    path: Path
    clock: Clock
    host: BootedHost
    adopt: bool = False
    makes_folder: bool = True
    busy_timeout: float = 5.0
    connection_class: type[sqlite3.Connection] = sqlite3.Connection

    def open(self, *, create: bool) -> sqlite3.Connection:
        """Return a connection to the file, which is of this version; for the thread that will own it.

        Args:
            create: whether to make what is missing.

        Raises:
            QueueNotFound: it is not there, or is empty, and `create` is false.
            ConfigurationError, BackendUnavailable: it cannot be used.
        """
        if sqlite3.sqlite_version_info < _OLDEST_SQLITE:
            raise ConfigurationError(f"Python is linked to SQLite {sqlite3.sqlite_version}; jobq needs 3.24 or newer")
        if create:
            self._make_folder()
        self._check_place(create=create)
        if create:
            private_file.make_file(self.path)
        try:
            database = sqlite3.connect(
                f"{self.path.absolute().as_uri()}?mode={'rwc' if create else 'rw'}",
                uri=True,
                isolation_level=None,
                timeout=self.busy_timeout,
                factory=self.connection_class,
            )
        except sqlite3.Error as error:
            raise translate(error, self.path) from error
        with _closed_by_errors(database, self.path):
            self._prepare_patiently(database, create=create)
        return database

    def _make_folder(self) -> None:
        folder = self.path.parent
        if (missing := self.missing_folder()) is not None:
            raise StoreUnusable(missing)
        try:
            private_file.make_folder(folder)
        except OSError as error:
            raise _cannot(error, f"the folder {folder} cannot be made") from error

    def missing_folder(self) -> str | None:
        """Return what is wrong where the folder is not there, and not ours to make."""
        folder = self.path.parent
        if self.makes_folder or os.path.lexists(folder):
            return None
        return f"the folder {folder} does not exist; if that is no slip, make it: mkdir -p {shlex.quote(str(folder))}"

    def _check_place(self, *, create: bool) -> None:
        try:
            kind = self.path.stat().st_mode
        except FileNotFoundError:
            if not create:
                there = f"{self.path} does not exist; the first push makes it, or `jobq QUEUE create`"
                raise QueueNotFound(self.missing_folder() or there) from None
        except OSError as error:
            raise _cannot(error, f"{self.path} cannot be opened") from error
        else:
            if not stat.S_ISREG(kind):
                raise StoreUnusable(f"{self.path} is not a file; name a file, such as {self.path / 'jobs.db'}")
            if (wrong := other_name(self.path)) is not None:
                raise StoreUnusable(wrong)
            if not os.access(self.path, os.W_OK):  # SQLite would open it to read, now and then
                raise no_write(self.path, os.strerror(errno.EACCES))

    def _prepare_patiently(self, database: sqlite3.Connection, *, create: bool) -> None:
        # SQLite's busy time-out does not hold while others make the file (the switch to its log, a journal left hot).
        give_up = time.monotonic() + self.busy_timeout
        while True:
            try:
                return self._prepare(database, create=create)
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() >= give_up:
                    raise
                time.sleep(_BUSY_PAUSE_SECONDS)

    def _prepare(self, database: sqlite3.Connection, *, create: bool) -> None:
        self._check_owner(database)
        (mode,) = database.execute("PRAGMA journal_mode = WAL").fetchone()
        if mode != "wal":
            raise StoreUnusable(f"{self.path} cannot use SQLite's write-ahead log here; put it on a local disk")
        # FULL: an acknowledged task survives the loss of power (S1). fullfsync is what that takes on macOS.
        database.execute("PRAGMA synchronous = FULL")
        database.execute("PRAGMA fullfsync = ON")
        if _user_version(database) == 0:
            if not create:
                raise QueueNotFound(f"{self.path} is empty; the first push fills it, or `jobq QUEUE create`")
            self._make_schema(database)

    def _check_owner(self, database: sqlite3.Connection) -> None:
        # In this order: the tables and their mark are committed together, perhaps by another process just now.
        (tables,) = database.execute("SELECT count(*) FROM sqlite_master").fetchone()
        (application,) = database.execute("PRAGMA application_id").fetchone()
        if tables and application != APPLICATION_ID:
            raise StoreUnusable(f"{self.path} is an SQLite database of another program; name another file")
        if (version := _user_version(database)) not in (0, SCHEMA_VERSION):
            raise StoreUnusable(
                f"{self.path} has schema version {version}, and this jobq works with version {SCHEMA_VERSION} alone:"
                " use the jobq that made it, or name another file"
            )

    def _make_schema(self, database: sqlite3.Connection) -> None:
        database.execute("BEGIN IMMEDIATE")  # two first pushes at once: the second finds it made
        try:
            if _user_version(database) == 0:
                for statement in _statements():
                    database.execute(statement)
                database.execute(
                    "INSERT INTO host (only_row, machine_id, boot_id, boottime, wall, identity)"
                    " VALUES (1, ?, ?, ?, ?, lower(hex(randomblob(16))))",
                    (self.host.machine_id, self.host.boot_id, self.clock.boottime(), self.clock.wall()),
                )
                database.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                database.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
            database.execute("COMMIT")
        except BaseException:
            if database.in_transaction:
                database.execute("ROLLBACK")
            raise


class OpenFile:
    """A file as one thread has it open.

    Args:
        file: the file and who may use it.
        create: make it where it is missing.
        reads_beside: who has it open to write; then this one only reads, and opens no other file than that.
        looks: only read, once it is open.

    Attributes:
        undisturbed: to hold its locks in.
    """

    def __init__(
        self,
        file: StoreFile,
        *,
        create: bool = False,
        reads_beside: "OpenFile | None" = None,
        looks: bool = False,
    ) -> None:
        self.path = file.path
        self.busy_timeout = file.busy_timeout
        self.undisturbed = Undisturbed()
        self._file = file
        self._create = create
        self._looks = looks or reads_beside is not None
        self._reads_beside = reads_beside
        self._same = SameFile(file.path)
        self._clock = FileClock(file.path, file.clock, file.host, adopt=file.adopt)

    def open(self) -> sqlite3.Connection:
        """Open and check it; raises what `StoreFile.open` raises."""
        if self._reads_beside is not None:
            self._reads_beside.confirm()
        forked.hold(self, self.path)
        try:
            with self.undisturbed:  # it may have to make the file
                database = self._file.open(create=self._create)
        except BaseException:
            forked.let_go(self)
            raise
        with _closed_by_errors(database, self.path, self):
            forked.hold(self, self.path)
            self._same.remember(database)
            private_file.warn_of_others(self.path)
            self._clock.now(database)
            if self._reads_beside is not None:
                self._same.compare(self._reads_beside._same)  # noqa: SLF001 - another of this class
            if self._looks:
                database.execute("PRAGMA query_only = ON")
        return database

    def now(self, database: sqlite3.Connection) -> Now:
        """Return the time; raises StoreReplaced when another file stands there."""
        self._same.check(database)
        return self._clock.now(database)

    def now_to_write(self, database: sqlite3.Connection) -> Now:
        """As `now`, in a transaction that holds the write lock."""
        self._same.check(database)
        return self._clock.keep(database)

    def go_nameless(self) -> None:
        """Expect the file to be deleted by its only user."""
        self._same.go_nameless()

    def confirm(self) -> None:
        """Raise StoreReplaced unless what was committed stands where others look for it."""
        self._same.confirm()

    def close(self, database: sqlite3.Connection) -> None:
        """Close it, unless another file stands there: closing would write the former's log into that one."""
        try:
            self._same.confirm()
        except StoreReplaced:
            _NEVER_CLOSED.append(database)  # nor by the garbage collector
        else:
            with self.undisturbed:  # the last one moves the log into the file
                database.close()
            forked.let_go(self)


def _cannot(error: OSError, what: str) -> JobqError:
    text = f"{what} ({error.strerror})"
    match error.errno:
        case errno.EACCES | errno.EPERM | errno.EROFS:
            return AccessDenied(f"{text}; check the rights of its folders, or choose another with JOBQ_HOME")
        case errno.ENOTDIR | errno.EEXIST | errno.ENAMETOOLONG | errno.ELOOP:
            return StoreUnusable(f"{text}; name another file")
    return BackendUnavailable(f"{text}; nothing was changed")


def _user_version(database: sqlite3.Connection) -> int:
    (version,) = database.execute("PRAGMA user_version").fetchone()
    return int(version)


def _statements() -> list[str]:
    text = Path(__file__).with_name("schema.sql").read_text(encoding="utf-8")
    bare = "\n".join(line.partition("--")[0] for line in text.splitlines())
    found, begun = [], ""
    for part in bare.split(";")[:-1]:
        begun += part + ";"
        if sqlite3.complete_statement(begun):  # not so within the body of a trigger
            found.append(begun)
            begun = ""
    return found


@contextmanager
def _closed_by_errors(database: sqlite3.Connection, path: Path, held: object = None) -> Iterator[None]:
    """Close a connection that cannot be used, let go of who held it, and say why in jobq's errors."""
    try:
        yield
    except BaseException as error:
        database.close()
        forked.let_go(held)
        if isinstance(error, sqlite3.Error):
            raise translate(error, path) from error
        raise
