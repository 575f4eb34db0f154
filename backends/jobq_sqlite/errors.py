"""What SQLite's result codes mean to jobq: one table from code to error (https://www.sqlite.org/rescode.html)."""

import sqlite3
from pathlib import Path

from jobq.errors import AccessDenied, BackendUnavailable, JobqError, StoreUnusable
from jobq_sqlite.lock_holder import holder_of


class StoreReplaced(StoreUnusable):
    """Another file stands where the one that is open stood, or it is another machine's now."""


def translate(error: sqlite3.Error, path: Path) -> JobqError:  # noqa: PLR0911 - a table, one row each
    """Return the jobq error for a statement that definitely did not take effect."""
    code = getattr(error, "sqlite_errorcode", None)
    primary = code & 0xFF if code is not None else None
    match primary:
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            if holder := holder_of(path):
                return BackendUnavailable(f"{path} stayed locked by {holder}; nothing was changed. Try again")
            return BackendUnavailable(
                f"{path} stayed locked by another process; nothing was changed. Try again, or find the holder with:"
                f" fuser {path}"
            )
        case sqlite3.SQLITE_FULL:
            return BackendUnavailable(
                f"no space left for {path}; nothing was changed. Free some space on {path.parent} and try again"
            )
        case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_PERM | sqlite3.SQLITE_AUTH:
            return no_write(path, str(error))
        case sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_NOTADB:
            return StoreUnusable(
                f"{path} is damaged or no SQLite database ({error}). Move it away and push again, or save what can be"
                f" read with: sqlite3 {path} .recover"
            )
        case sqlite3.SQLITE_IOERR:
            return BackendUnavailable(f"{path}: {error}; nothing was changed. Check the disk (dmesg) and try again")
        case sqlite3.SQLITE_ERROR:
            return StoreUnusable(f"{path} has not the tables it should have ({error}); was it changed by hand?")
    return BackendUnavailable(f"{path}: {error}")


def no_write(path: Path, why: str) -> AccessDenied:
    """Return what a user is told who may not write to the file."""
    return AccessDenied(
        f"{path} cannot be written by this user ({why}), which a look needs, too: give this user the right to write to"
        " the file and its folder, or choose another folder with JOBQ_HOME"
    )


def leaves_doubt(error: sqlite3.Error) -> bool:
    """Return whether a COMMIT that failed so may yet be found committed: its frames may have reached the log."""
    code = getattr(error, "sqlite_errorcode", None)
    return code is None or code & 0xFF == sqlite3.SQLITE_IOERR
