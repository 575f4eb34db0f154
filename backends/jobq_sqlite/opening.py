"""Opening the file: is it there, is it ours, of our version, of this machine and of this boot?"""

import errno
import sqlite3
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Final

from jobq.clock import Clock
from jobq.errors import AccessDenied, BackendUnavailable, ConfigurationError, JobqError, QueueNotFound, StoreUnusable
from jobq_sqlite import noting
from jobq_sqlite.faults import translate
from jobq_sqlite.host import Host
from jobq_sqlite.leases import EXPIRE_ALL

SCHEMA_VERSION: Final = 4
# What each version added, in order: a file of an older one gets what it lacks, forward only, in one transaction.
_ADDED_BY: Final = {1: "schema.sql", 2: "leases.sql", 3: "service.sql", 4: "journal.sql"}
APPLICATION_ID: Final = 0x6A6F6271  # "jobq"
_BUSY_PAUSE_SECONDS: Final = 0.005
_OLDEST_SQLITE: Final = (3, 24, 0)  # ON CONFLICT DO NOTHING


@dataclass(frozen=True, kw_only=True)
class StoreFile:
    """An SQLite file and who may use it.

    Attributes:
        path: the file.
        clock: decides leases; on the system's clock for all but tests.
        host: this machine and boot.
        adopt: take over a file of another machine.
        private: make a missing folder with mode 0700; tasks may hold secrets.
        busy_timeout: seconds to wait for the write lock of another process.
        connection_class: what speaks to SQLite; replaced in tests, to fail at will.
    """

    path: Path
    clock: Clock
    host: Host
    adopt: bool = False
    private: bool = False
    busy_timeout: float = 5.0
    connection_class: type[sqlite3.Connection] = sqlite3.Connection

    def opener(self, *, create: bool) -> Callable[[], sqlite3.Connection]:
        """Return a function that opens the file, for the thread that will own the connection."""
        return lambda: self._open(create=create)

    def _open(self, *, create: bool) -> sqlite3.Connection:
        if sqlite3.sqlite_version_info < _OLDEST_SQLITE:
            raise ConfigurationError(f"Python is linked to SQLite {sqlite3.sqlite_version}; jobq needs 3.24 or newer")
        if create:
            self._make_folder()
        self._check_place(create=create)
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
        try:
            self._prepare_patiently(database, create=create)
        except sqlite3.Error as error:
            database.close()
            raise translate(error, self.path) from error
        except BaseException:
            database.close()
            raise
        return database

    def _make_folder(self) -> None:
        folder = self.path.parent
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700 if self.private else 0o777)
        except OSError as error:
            raise _cannot(error, f"the folder {folder} cannot be made") from error

    def _check_place(self, *, create: bool) -> None:
        try:
            kind = self.path.stat().st_mode
        except FileNotFoundError:
            if not create:
                raise QueueNotFound(
                    f"{self.path} does not exist; the first push makes it, or `jobq QUEUE create`"
                ) from None
        except OSError as error:
            raise _cannot(error, f"{self.path} cannot be opened") from error
        else:
            if not stat.S_ISREG(kind):
                raise StoreUnusable(f"{self.path} is not a file; name a file, such as {self.path / 'jobs.db'}")

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
        if _user_version(database) == 0 and not create:
            raise QueueNotFound(f"{self.path} is empty; the first push fills it, or `jobq QUEUE create`")
        if _user_version(database) < SCHEMA_VERSION:
            self._upgrade_schema(database)
        self._check_host(database)

    def _check_owner(self, database: sqlite3.Connection) -> None:
        # In this order: the tables and their mark are committed together, perhaps by another process just now.
        (tables,) = database.execute("SELECT count(*) FROM sqlite_master").fetchone()
        (application,) = database.execute("PRAGMA application_id").fetchone()
        if tables and application != APPLICATION_ID:
            raise StoreUnusable(f"{self.path} is an SQLite database of another program; name another file")
        version = _user_version(database)
        if version > SCHEMA_VERSION:
            raise StoreUnusable(
                f"{self.path} has schema version {version}, this jobq knows {SCHEMA_VERSION}; upgrade jobq"
            )

    def _upgrade_schema(self, database: sqlite3.Connection) -> None:
        database.execute("BEGIN IMMEDIATE")  # two first pushes at once: the second finds it made
        try:
            version = _user_version(database)
            for added in range(version + 1, SCHEMA_VERSION + 1):
                for statement in _statements_of(_ADDED_BY[added]):
                    database.execute(statement)
            if version == 0:
                database.execute(
                    "INSERT INTO host VALUES (1, ?, ?, ?, ?)",
                    (self.host.machine_id, self.host.boot_id, self.clock.boottime(), self.clock.wall()),
                )
                database.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            if version < SCHEMA_VERSION:
                database.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
            database.execute("COMMIT")
        except BaseException:
            if database.in_transaction:
                database.execute("ROLLBACK")
            raise

    def _check_host(self, database: sqlite3.Connection) -> None:
        """Apply RELIABILITY 1.3 rule 10: same boot, compare; same machine, new boot, expired; else refuse."""
        if database.execute("SELECT boot_id FROM host").fetchone() == (self.host.boot_id,):
            return
        database.execute("BEGIN IMMEDIATE")
        try:
            machine_id, boot_id = database.execute("SELECT machine_id, boot_id FROM host").fetchone()
            if boot_id != self.host.boot_id:
                self._refuse_other_machine(machine_id)
                database.execute(
                    "UPDATE host SET machine_id = ?, boot_id = ?, boottime = ?, wall = ?",
                    (self.host.machine_id, self.host.boot_id, self.clock.boottime(), self.clock.wall()),
                )
                lost = database.execute(
                    "SELECT seq, deliveries, holder, started_at, 0 FROM task WHERE state = 'leased'"
                )
                noting.note_lost(database, lost.fetchall(), None, self.clock.wall())
                database.execute(noting.CANCEL_LEASED, (self.clock.wall(),))
                database.execute(
                    "UPDATE task SET state = 'ready', available_at = ?, receipt = NULL, expires_at = NULL,"
                    " holder = NULL, beat = NULL WHERE state = 'leased'",
                    (self.clock.wall(),),
                )
                database.execute(EXPIRE_ALL, (self.clock.boottime(),))
            database.execute("COMMIT")
        except BaseException:
            if database.in_transaction:
                database.execute("ROLLBACK")
            raise

    def _refuse_other_machine(self, machine_id: str) -> None:
        if self.adopt or (machine_id and machine_id == self.host.machine_id):
            return
        raise StoreUnusable(
            f"{self.path} belongs to another machine, whose leases cannot be judged from here. One file serves one"
            " machine; for several use Azure or PostgreSQL. If the file was moved here and nothing else uses it, run"
            " one command with JOBQ_SQLITE_ADOPT=1"
        )


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


def _statements_of(file: str) -> list[str]:
    text = files("jobq_sqlite").joinpath(file).read_text(encoding="utf-8")
    bare = "\n".join(line.partition("--")[0] for line in text.splitlines())
    return [statement for statement in bare.split(";") if statement.strip()]
