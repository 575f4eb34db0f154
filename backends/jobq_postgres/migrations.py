"""Making and migrating the schema: versioned, forward only, safe to run twice and by two at once.

Sections that are `online` run after all others, statement by statement, each in no transaction: the indexes of large
tables are built beside who writes them. The version is raised when the last of a section is done; whoever runs the
migration after a crash begins with the first again, and finds what is there.
"""

import asyncio
import re
from functools import cache
from importlib.resources import files
from typing import Any, Final, NamedTuple

from jobq.errors import StoreUnusable

SCHEMA: Final = "jobq"
_HEADING: Final = re.compile(r"^--== (\d+): (.+) ==$", re.MULTILINE)
_LOCK: Final = 0x6A6F6271  # "jobq": the advisory lock that only one migration holds
_LOCK_POLL_SECONDS: Final = 0.1
_ONLINE: Final = ", online"
_INDEX: Final = re.compile(r"^CREATE (?:UNIQUE )?INDEX CONCURRENTLY (\w+)", re.MULTILINE)
_IS_VALID: Final = "SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass('jobq.' || $1)"
_VERSION: Final = "SELECT CASE WHEN to_regclass('jobq.version') IS NULL THEN NULL ELSE 'jobq.version' END"


class Section(NamedTuple):
    """One step of the schema: its number, its name, its statements."""

    number: int
    name: str
    sql: str

    @property
    def is_online(self) -> bool:
        """Whether its statements run outside of a transaction."""
        return self.name.endswith(_ONLINE)

    @property
    def statements(self) -> list[str]:
        """Those of an online section, without comments."""
        text = re.sub(r"--.*", "", self.sql)
        return [statement.strip() for statement in text.split(";") if statement.strip()]

    @property
    def at_once(self) -> str:
        """The same for a transaction, while the tables are empty."""
        return self.sql.replace("INDEX CONCURRENTLY", "INDEX")


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
    """Bring the schema up to `wanted_version`; return the version that was found.

    What is not online is done in one transaction, and a schema that is not there yet is made in one.

    Raises:
        StoreUnusable: a schema `jobq` of someone else, or of a newer jobq.
    """
    await connection.execute("SET statement_timeout = 0; SET lock_timeout = 0")
    # Of the session, and taken before the transaction begins: only a transaction that begins later is sure to see the
    # tables that the other one made meanwhile. Freed with the connection, whatever happens. Asked for again and again:
    # a statement that waits for it has a snapshot, for whose end who builds an index would wait.
    while not await connection.fetchval(f"SELECT pg_try_advisory_lock({_LOCK})"):  # noqa: ASYNC110 - of the server
        await asyncio.sleep(_LOCK_POLL_SECONDS)
    try:
        async with connection.transaction():
            found = await installed_version(connection)
            left = await _migrate(connection, place, found)
        for section in left:
            await _migrate_online(connection, section)
        return found
    finally:
        await connection.execute(f"SELECT pg_advisory_unlock({_LOCK})")


async def _migrate(connection: Any, place: str, found: int) -> tuple[Section, ...]:
    """Run what belongs into a transaction; return what is to be done after it."""
    if found > wanted_version():
        check(found, place)
    if found == 0:
        await _make_schema(connection, place)
        for section in sections():
            await connection.execute(section.at_once if section.is_online else section.sql)
        await connection.execute("INSERT INTO jobq.version (version) VALUES ($1)", wanted_version())
        return ()
    missing = sections()[found:]
    first = next((at for at, section in enumerate(missing) if section.is_online), len(missing))
    for section in missing[:first]:
        await connection.execute(section.sql)
    if first:
        await _set_version(connection, missing[first - 1].number)
    return missing[first:]


async def _migrate_online(connection: Any, section: Section) -> None:
    if not section.is_online:  # behind one that is: alone
        async with connection.transaction():
            await connection.execute(section.sql)
            await _set_version(connection, section.number)
        return
    for statement in section.statements:
        if index := _INDEX.match(statement):
            is_valid = await connection.fetchval(_IS_VALID, index[1])
            if is_valid:
                continue
            if is_valid is not None:  # whoever built it was killed, and it is used by nobody
                await connection.execute(f"DROP INDEX CONCURRENTLY jobq.{index[1]}")
        await connection.execute(statement)
    await _set_version(connection, section.number)


async def _set_version(connection: Any, number: int) -> None:
    await connection.execute("UPDATE jobq.version SET version = $1", number)


async def _make_schema(connection: Any, place: str) -> None:
    """Make the schema, or take an empty one that an administrator made for us."""
    if await connection.fetchval("SELECT to_regnamespace('jobq') IS NULL"):
        await connection.execute("CREATE SCHEMA jobq")
    elif await connection.fetchval("SELECT EXISTS (SELECT FROM pg_class WHERE relnamespace = to_regnamespace('jobq'))"):
        raise StoreUnusable(f"{place} has a schema named 'jobq' that is not ours; use another database")
