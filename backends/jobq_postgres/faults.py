"""What PostgreSQL's answers, and their absence, mean in jobq's errors: one table from SQLSTATE to error.

An error that the server reports took no effect: its statement was rolled back. Only that of a server or session that
is ending (57P01, 57P02, 57P05, class 08) may come after the commit; that, and a connection that breaks or is silent
after the statement was sent, is `NoAnswer`, and each caller knows what it means for its verb (S5, S8).
(https://www.postgresql.org/docs/current/errcodes-appendix.html)
"""

from typing import Final

import asyncpg

from jobq.errors import AccessDenied, BackendUnavailable, JobqError, QueueNotFound, StoreUnusable

# Ends of the session, which may come when the statement is committed and its answer is not yet sent.
_LEAVES_DOUBT: Final = frozenset({"57P01", "57P02", "57P05"})
# What one bad row among many may cause: the others are tried again without it (S11).
_OF_ONE_ROW: Final = frozenset({"22", "23", "54"})
_REPEAT: Final = frozenset({"40001", "40P01"})
READ_ONLY: Final = "25006"


class NoAnswer(Exception):
    """The statement was sent and may have taken effect or not; the message says how the answer was lost."""


class RowRefused(BackendUnavailable):
    """A statement for many failed over one of them, or over another session: tried one by one, most may succeed."""


def state_of(error: BaseException) -> str:
    """Return the SQLSTATE of an error that the server reported; empty for any other."""
    return str(getattr(error, "sqlstate", None) or "") if isinstance(error, asyncpg.PostgresError) else ""


def leaves_doubt(error: BaseException) -> bool:
    """Tell whether a statement that was sent and failed so may have been committed."""
    if isinstance(error, JobqError):
        return False
    state = state_of(error)
    # A client that finds its connection closed tells that as an error of class 08 without asking the server.
    return not state or state in _LEAVES_DOUBT or state.startswith("08")


def ends_connection(error: BaseException) -> bool:
    """Tell whether the next call should connect anew: after a failover another server may answer."""
    return state_of(error) == READ_ONLY


def translate(error: BaseException, place: str) -> JobqError:  # noqa: PLR0911 - a table, one row each
    """Return the jobq error for a statement that definitely took no effect.

    Args:
        error: of the client library.
        place: HOST/DATABASE, for messages.
    """
    if isinstance(error, JobqError):
        return error
    state, said = state_of(error), _said(error)
    if state in {"3F000", "42P01"}:
        return QueueNotFound(f"{place} has no tables of jobq; make them and the queue with: jobq QUEUE create")
    if state == "42501":
        return AccessDenied(
            f"{place}: this role may not do that ({said}); the owner of the schema grants what pushers and workers need,"
            " see docs/postgresql.md"
        )
    if state.startswith("28"):
        return AccessDenied(
            f"{place} refuses this role ({said}); is the user right, and its password in the file that PGPASSFILE names"
            " (~/.pgpass), or in PGPASSWORD?"
        )
    if state == "3D000":
        return StoreUnusable(f"{place}: there is no such database; make it with `createdb`, or name another one")
    if state == READ_ONLY:
        return BackendUnavailable(
            f"{place} is read-only now: a standby, or a failover under way; nothing was changed, and it is tried again"
        )
    if state == "53300":
        return BackendUnavailable(f"{place} has no connection left ({said}); raise max_connections, or use a pooler")
    if state == "57014":
        return BackendUnavailable(f"{place} cancelled the statement ({said}); nothing was changed")
    if state in _REPEAT or state == "55P03":
        return RowRefused(f"{place}: another session was in the way ({said}); nothing was changed")
    if state[:2] in _OF_ONE_ROW:
        return RowRefused(f"{place}: {said} (SQLSTATE {state}); nothing was changed")
    if state.startswith("42"):
        return StoreUnusable(f"{place} has not the tables it should have ({said}); were they changed by hand?")
    if state:
        return BackendUnavailable(f"{place}: {said} (SQLSTATE {state}); nothing was changed")
    return BackendUnavailable(f"{place}: cannot connect ({said}); nothing was changed")


def _said(error: BaseException) -> str:
    """Return the server's own sentence; its details may quote the data of a row (A5)."""
    if isinstance(error, asyncpg.PostgresError):
        return str(error.args[0] if error.args else "").split("\n", 1)[0]
    return f"{type(error).__name__}: {error.strerror}" if isinstance(error, OSError) else type(error).__name__
