"""The rows of a query on PostgreSQL, page by page: a ready data set for a traversal. The database is only read."""

import asyncio
from collections.abc import Sequence
from typing import Any, Final

import asyncpg

from jobq.errors import BackendUnavailable, ConfigurationError
from jobq.lease.data_sources import Row, rows
from jobq.lease.traversal import Fetch
from jobq.spec import QueueSpec
from jobq_postgres import errors
from jobq_postgres.lane import Server
from jobq_postgres.server_spec import server_of

_SECONDS: Final = 600.0  # for a page of a query of others, which may sort much
_MARK: Final = "\0"  # stands for a value: in a statement of PostgreSQL nothing else may


def connect_rows(database: str, query: str, key: str) -> tuple[Fetch[Row], str]:
    """Return a fetch of the rows, see `jobq.lease.data_sources.rows`, and what names the database.

    Args:
        database: postgresql://[USER@][HOST][:PORT]/DATABASE[?OPTIONS]; passwords as for queues.
        query: a SELECT, without ORDER BY and LIMIT.
        key: the column to walk by.

    Raises:
        InvalidSpec: see `server_of`.
    """
    scheme, _, location = database.partition("://")
    server = server_of(QueueSpec(scheme=scheme, location=location, queue=""))

    def ask(statement: str, values: Sequence[Any]) -> list[Row]:
        return asyncio.run(_asked(server, statement, values))  # a fetch calls it on a thread

    return rows(ask, query, key, mark=_MARK), server.place


async def _asked(server: Server, statement: str, values: Sequence[Any]) -> list[Row]:
    first, *parts = statement.split(_MARK)
    numbered = first + "".join(f"${number}{part}" for number, part in enumerate(parts, 1))
    connection = await server.open("fanout")
    try:
        # In binary, a `real` of 0.1 comes as the double next to it: 0.10000000149011612.
        await connection.set_type_codec("float4", schema="pg_catalog", encoder=str, decoder=float, format="text")
        async with asyncio.timeout(_SECONDS), connection.transaction(readonly=True):
            return [dict(row) for row in await connection.fetch(numbered, *values)]
    except TimeoutError:
        raise BackendUnavailable(f"{server.place}: no page of the query within {_SECONDS:g} s") from None
    except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, ValueError) as error:
        if (state := errors.state_of(error)) and state[:2] in {"0A", "22", "25", "42"}:  # the user's own statement
            raise ConfigurationError(f"{server.place}: {errors.said(error)}") from None
        raise errors.translate(error, server.place) from None
    finally:
        connection.terminate()
