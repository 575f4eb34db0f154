"""Making jobq's tables, safe to run twice and by several at once; tables of another version are refused."""

from importlib.resources import files
from typing import Any, Final

from jobq.errors import StoreUnusable

SCHEMA: Final = "jobq"
VERSION: Final = 13  # of schema.sql; a change of that raises it
_LOCK: Final = 0x6A6F6271  # "jobq": the advisory lock of whoever makes the tables
_VERSION: Final = "SELECT CASE WHEN to_regclass('jobq.version') IS NULL THEN NULL ELSE 'jobq.version' END"


async def installed_version(connection: Any) -> int:
    """Return the database's version, 0 where jobq was never made there."""
    # Two statements, because one that names a missing table does not even parse.
    if await connection.fetchval(_VERSION) is None:
        return 0
    return int(await connection.fetchval("SELECT version FROM jobq.version"))


def check(installed: int, place: str) -> None:
    """Refuse a database of another version, by saying what to do.

    Args:
        installed: the database's version, not 0.
        place: where, for the message.

    Raises:
        StoreUnusable: it is not this code's.
    """
    if installed != VERSION:
        raise StoreUnusable(
            f"{place} has version {installed} of jobq's tables, and this jobq works with version {VERSION} alone: use"
            " the jobq that made them, or another database"
        )


async def make(connection: Any, place: str) -> None:
    """Make the tables where there are none.

    Raises:
        StoreUnusable: a schema `jobq` of someone else, or of another version.
    """
    await connection.execute("SET statement_timeout = 0; SET lock_timeout = 0")
    # Of the session, and taken before the transaction begins: only a transaction that begins later is sure to see the
    # tables that another one made meanwhile. Freed with the connection, whatever happens.
    await connection.execute(f"SELECT pg_advisory_lock({_LOCK})")
    try:
        async with connection.transaction():
            if installed := await installed_version(connection):
                check(installed, place)
                return
            await _make_schema(connection, place)
            await connection.execute(files("jobq_postgres").joinpath("schema.sql").read_text(encoding="utf-8"))
            await connection.execute("INSERT INTO jobq.version (version) VALUES ($1)", VERSION)
    finally:
        await connection.execute(f"SELECT pg_advisory_unlock({_LOCK})")


async def _make_schema(connection: Any, place: str) -> None:
    """Make the schema, or take an empty one that an administrator made for us."""
    if await connection.fetchval("SELECT to_regnamespace('jobq') IS NULL"):
        await connection.execute("CREATE SCHEMA jobq")
    elif await connection.fetchval("SELECT EXISTS (SELECT FROM pg_class WHERE relnamespace = to_regnamespace('jobq'))"):
        raise StoreUnusable(f"{place} has a schema named 'jobq' that is not ours; use another database")
