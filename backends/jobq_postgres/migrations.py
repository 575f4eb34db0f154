"""Making and migrating the schema: versioned, forward only, safe to run twice and by two at once."""

import re
from functools import cache
from importlib.resources import files
from typing import Any, Final, NamedTuple

from jobq.errors import StoreUnusable

SCHEMA: Final = "jobq"
_HEADING: Final = re.compile(r"^--== (\d+): (.+) ==$", re.MULTILINE)
_LOCK: Final = 0x6A6F6271  # "jobq": the advisory lock that only one migration holds
_VERSION: Final = "SELECT CASE WHEN to_regclass('jobq.version') IS NULL THEN NULL ELSE 'jobq.version' END"


class Section(NamedTuple):
    """One step of the schema: its number, its name, its statements."""

    number: int
    name: str
    sql: str


@cache
def sections() -> tuple[Section, ...]:
    """Return the sections of schema.sql, which count from 1 without a gap."""
    text = files("jobq_postgres").joinpath("schema.sql").read_text(encoding="utf-8")
    headings = list(_HEADING.finditer(text))
    ends = [heading.start() for heading in headings[1:]] + [len(text)]
    found = tuple(
        Section(int(heading[1]), heading[2], text[heading.end() : end])
        for heading, end in zip(headings, ends, strict=True)
    )
    assert [section.number for section in found] == list(range(1, len(found) + 1))
    return found


def wanted_version() -> int:
    """Return the version that this code works with: exactly this one."""
    return len(sections())


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
        StoreUnusable: it is older or newer than this code.
    """
    wanted = wanted_version()
    if installed < wanted:
        raise StoreUnusable(
            f"{place} has version {installed} of jobq's tables, this jobq needs {wanted}; migrate it with `jobq QUEUE"
            " create`, as the role that owns the schema, once all workers of the older jobq are stopped"
        )
    if installed > wanted:
        raise StoreUnusable(
            f"{place} has version {installed} of jobq's tables, this jobq knows only {wanted}; install a newer jobq"
        )


async def migrate(connection: Any, place: str) -> int:
    """Bring the schema up to `wanted_version` in one transaction; return the version that was found.

    Raises:
        StoreUnusable: a schema `jobq` of someone else, or of a newer jobq.
    """
    await connection.execute("SET statement_timeout = 0; SET lock_timeout = 0")
    # Of the session, and taken before the transaction begins: only a transaction that begins later is sure to see the
    # tables that the other one made meanwhile. Freed with the connection, whatever happens.
    await connection.execute(f"SELECT pg_advisory_lock({_LOCK})")
    try:
        async with connection.transaction():
            return await _migrate(connection, place)
    finally:
        await connection.execute(f"SELECT pg_advisory_unlock({_LOCK})")


async def _migrate(connection: Any, place: str) -> int:
    found = await installed_version(connection)
    if found > wanted_version():
        check(found, place)
    if found == 0:
        await _make_schema(connection, place)
    for section in sections()[found:]:
        await connection.execute(section.sql)
    if found == 0:
        await connection.execute("INSERT INTO jobq.version (version) VALUES ($1)", wanted_version())
    elif found < wanted_version():
        await connection.execute("UPDATE jobq.version SET version = $1", wanted_version())
    return found


async def _make_schema(connection: Any, place: str) -> None:
    """Make the schema, or take an empty one that an administrator made for us."""
    if await connection.fetchval("SELECT to_regnamespace('jobq') IS NULL"):
        await connection.execute("CREATE SCHEMA jobq")
    elif await connection.fetchval("SELECT EXISTS (SELECT FROM pg_class WHERE relnamespace = to_regnamespace('jobq'))"):
        raise StoreUnusable(f"{place} has a schema named 'jobq' that is not ours; use another database")
