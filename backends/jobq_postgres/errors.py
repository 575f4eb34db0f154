"""What PostgreSQL's answers, and their absence, mean in jobq's errors: one table from SQLSTATE to error.

An error that the server reports took no effect: its statement was rolled back. Only that of a server or session that
is ending (57P01, 57P02, 57P05, class 08) may come after the commit; that, and a connection that breaks or is silent
after the statement was sent, is `NoAnswer`, and each caller knows what it means for its verb (S5, S8).
(https://www.postgresql.org/docs/current/errcodes-appendix.html)
"""

from typing import Final

import asyncpg

from jobq.errors import (
    AccessDenied,
    BackendUnavailable,
    ConfigurationError,
    InvalidSpec,
    JobqError,
    QueueNotFound,
    StoreUnusable,
)

# Ends of the session, which may come when the statement is committed and its answer is not yet sent.
_LEAVES_DOUBT: Final = frozenset({"57P01", "57P02", "57P05"})
READ_ONLY: Final = "25006"
_NO_TLS: Final = "rejected SSL upgrade"  # the client library has no class for it
_NOT_CONNECTED: Final = (
    "{place}: cannot connect ({said}); nothing was changed. Does the server run there, and is its port open to this"
    " machine?"
)
_OTHER: Final = "{place}: {said} (SQLSTATE {state}); nothing was changed"


class NoAnswer(Exception):
    """The statement was sent and may have taken effect or not; the message says how the answer was lost."""


class RowRefused(BackendUnavailable):
    """A statement for many failed over one of them, or over another session: tried one by one, most may succeed."""


def state_of(error: BaseException) -> str:
    """Return the SQLSTATE of an error that the server reported; empty for any other."""
    return str(getattr(error, "sqlstate", None) or "") if isinstance(error, asyncpg.PostgresError) else ""


def leaves_doubt(error: BaseException) -> bool:
    """Return whether a statement that was sent and failed so may have been committed."""
    if isinstance(error, JobqError):
        return False
    state = state_of(error)
    # A client that finds its connection closed raises that as an error of class 08 without asking the server.
    return not state or state in _LEAVES_DOUBT or state.startswith("08")


def ends_connection(error: BaseException) -> bool:
    """Return whether the next call should connect anew: after a failover another server may answer."""
    return state_of(error) == READ_ONLY


_MEANINGS: Final[dict[str, tuple[type[JobqError], str]]] = {
    # SQLSTATE, or the two characters of its class.
    "3F000": (QueueNotFound, "{place} has no tables of jobq; make them and the queue with: jobq QUEUE create"),
    "42P01": (QueueNotFound, "{place} has no tables of jobq; make them and the queue with: jobq QUEUE create"),
    "42501": (
        AccessDenied,
        "{place}: this role may not do that ({said}); see docs/postgresql.md for what its owner grants to whom",
    ),
    "42": (StoreUnusable, "{place} has not the tables it should have ({said}); were they changed by hand?"),
    "28": (
        AccessDenied,
        "{place} refuses this role ({said}); is its password in ~/.pgpass, in PGPASSFILE's file or in PGPASSWORD?",
    ),
    "3D000": (StoreUnusable, "{place}: there is no such database; make it with `createdb`, or name another one"),
    READ_ONLY: (BackendUnavailable, "{place} is read-only: a standby, or a failover under way; nothing was changed"),
    "53300": (BackendUnavailable, "{place} has no connection left ({said}); raise max_connections, or use a pooler"),
    "57014": (BackendUnavailable, "{place} cancelled the statement ({said}); nothing was changed"),
    "55P03": (RowRefused, "{place}: another session was in the way ({said}); nothing was changed"),
    "40": (RowRefused, "{place}: another session was in the way ({said}); nothing was changed"),
    # What one bad row among many may cause.
    "22": (RowRefused, "{place}: {said} (SQLSTATE {state}); nothing was changed"),
    "23": (RowRefused, "{place}: {said} (SQLSTATE {state}); nothing was changed"),
    "54": (RowRefused, "{place}: {said} (SQLSTATE {state}); nothing was changed"),
    # A feature that this server or pooler has not.
    "0A": (StoreUnusable, "{place} cannot do what jobq needs ({said}); PostgreSQL 14 or newer is supported"),
}


def translate(error: BaseException, place: str) -> JobqError:
    """Return the jobq error for a statement that definitely took no effect.

    Args:
        error: of the client library.
        place: HOST/DATABASE, for messages.
    """
    if isinstance(error, JobqError):
        return error
    state, words = state_of(error), said(error)
    kind, text = _MEANINGS.get(state) or _MEANINGS.get(state[:2]) or (BackendUnavailable, _OTHER)
    if not state:
        kind, text = BackendUnavailable, _NOT_CONNECTED
    return kind(text.format(place=place, said=words, state=state))


def misconfigured(error: BaseException, place: str) -> JobqError | None:
    """Return what is wrong with the spec or with the PG... variables, for a connection that could not be made.

    Args:
        error: of the client library.
        place: HOST/DATABASE, for messages.

    Returns:
        None where it may be made later, with the same words; a value is not repeated (A5).
    """
    state = state_of(error)
    if state == "42704":  # what the client library does not know it hands on, as a setting of the session
        return InvalidSpec(f"{place}: {said(error)}; the options of a spec are those of libpq and of the server")
    if state == "22023":
        return InvalidSpec(f"{place}: {said(error).partition(':')[0]}; see the options of the spec, and PGOPTIONS")
    if isinstance(error, ConnectionError) and str(error).endswith(_NO_TLS):
        return ConfigurationError(
            f"{place} speaks no TLS, which sslmode (or PGSSLMODE) asks for; switch it on in the server, or ask for less"
        )
    if isinstance(error, (ValueError, OverflowError)) and not isinstance(error, OSError):
        words = str(error) if isinstance(error, asyncpg.ClientConfigurationError) else type(error).__name__
        return InvalidSpec(
            f"{place}: cannot connect with what this spec and the PG... variables say: {words.splitlines()[0]}"
        )
    return None


def said(error: BaseException) -> str:
    """Return the server's own sentence; its details may quote the data of a row (A5)."""
    if isinstance(error, asyncpg.PostgresError):
        return str(error.args[0] if error.args else "").split("\n", 1)[0]
    return f"{type(error).__name__}: {error.strerror}" if isinstance(error, OSError) else type(error).__name__
