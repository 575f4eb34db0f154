"""How the conformance suite reaches each backend of this repository; one function per backend."""

import contextlib
import itertools
import shutil
import sqlite3
import tempfile
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import asyncpg

from jobq.backend import Backend
from jobq.settings import Settings
from jobq.spec import resolve
from jobq.task import new_id
from jobq.testing.clock import RealTime, VirtualClock
from jobq.testing.conformance import Harness
from jobq_azure.service_bus.backend import ServiceBusBackend
from jobq_azure.service_bus.namespace import Namespace, QueueAddress, place_of
from jobq_azure.service_bus.options import Options
from jobq_azure.service_bus.rest_client import Outgoing, RestClient
from jobq_azure.storage.account import Account
from jobq_azure.storage.message_format import text_of
from jobq_memory import MemoryBackend, Router
from jobq_postgres import PostgresBackend
from jobq_postgres.add_tasks import FORMER_EPOCH
from jobq_sqlite import SqliteBackend, StoreFile
from jobq_sqlite.host import BootedHost
from tests.emulators.service_bus.emulator import Emulator
from tests.postgres.server import Database

Wrap = Callable[[Backend], Backend]


def memory(wrap: Wrap = lambda backend: backend, *, max_message_bytes: int | None = None) -> Harness:
    """A router of its own on a virtual clock; `wrap` may break what a handle does."""
    clock = VirtualClock()
    router = Router(clock, max_message_bytes=max_message_bytes, is_observed=True)

    async def inject(queue: str, body: bytes) -> str:
        return router.inject(queue, body)

    return Harness(
        connect=lambda queue: wrap(MemoryBackend(router, queue)),
        clock=clock,
        inject=inject,
        case_timeout=timedelta(seconds=20),
    )


def sqlite(folder: Path | None = None, *, at_once: bool = False) -> Harness:
    """A file of its own on a virtual clock; raw messages are written as a stranger with the file would.

    Args:
        folder: of the file; None = a new one.
        at_once: whether it is asked as short commands do: without a thread, and with nobody who looks for changes.
    """
    own = Path(tempfile.mkdtemp(prefix="jobq-conformance-")) if folder is None else folder
    clock = VirtualClock()
    file = StoreFile(path=own / "jobs.db", clock=clock, host=BootedHost("machine", "boot"))

    async def inject(queue: str, body: bytes) -> str:
        message_id = new_id()
        with contextlib.closing(sqlite3.connect(file.path, isolation_level=None)) as database:
            database.execute(
                "INSERT INTO task (queue_id, id, state, available_at, body)"
                " SELECT queue_id, ?, 'ready', ?, ? FROM queue WHERE name = ?",
                (message_id, clock.wall(), body, queue),
            )
        return message_id

    def connect(queue: str) -> SqliteBackend:
        backend = SqliteBackend(file, queue)
        if at_once:
            backend.without_loop()
        return backend

    return Harness(
        connect=connect,
        clock=clock,
        inject=inject,
        close=lambda: shutil.rmtree(own),
        case_timeout=timedelta(seconds=20),
    )


def storage_queue(connection_string: str, account: str, journal: str = "auto") -> Harness:
    """A storage account that keeps its own time; raw messages are put as another program would."""
    settings = Settings(connection_string=connection_string, poll_max=timedelta(seconds=1), journal=journal)

    def connect(queue: str) -> Backend:
        return resolve(f"{account}/{queue}", settings)

    async def inject(queue: str, body: bytes) -> str:
        async with Account(account, connection_string, "") as stranger:
            message_id, _ = await stranger.wire(queue).put(text_of(body))
        return message_id

    # Many cases at once share two cores and one emulator: a lease of 2 s leaves too little room between its edges.
    lease, limit = timedelta(seconds=4), timedelta(seconds=120)
    return Harness(connect=connect, clock=RealTime(), inject=inject, lease=lease, case_timeout=limit)


def service_bus(emulator: Emulator, **options: Any) -> Harness:
    """An emulated namespace on a virtual clock; raw messages are sent as another program would."""
    clock = emulator.clock
    assert isinstance(clock, VirtualClock)
    queues = itertools.count()

    def connect(queue: str) -> ServiceBusBackend:
        # Counts are asked for each time: the cases compare them with what they have just done.
        more: dict[str, Any] = {"stats_seconds": 0.0, "dedup_window": timedelta(0)} | options
        return ServiceBusBackend(Namespace(_place(emulator, queue)), Options(**more), now=clock.boottime)

    return Harness(
        connect=connect,
        clock=clock,
        inject=_sent_raw(emulator),
        lease=timedelta(minutes=1),
        case_timeout=timedelta(seconds=60),
        queue_name=lambda: f"q-{next(queues)}",
    )


def _place(emulator: Emulator, queue: str) -> QueueAddress:
    return place_of("emulator", queue, emulator.connection_string, "")


def _sent_raw(emulator: Emulator) -> Callable[[str, bytes], Awaitable[str]]:
    async def inject(queue: str, body: bytes) -> str:
        message_id = new_id()
        async with Namespace(_place(emulator, queue)) as stranger:
            await RestClient(stranger, queue).send(Outgoing(body=body, message_id=message_id))
        return message_id

    return inject


def postgres(database: Database) -> Harness:
    """A database that keeps its own time; raw messages are written as a stranger with the tables would."""
    server = database.server()

    async def inject(queue: str, body: bytes) -> str:
        message_id = new_id()
        statement = (
            "WITH known AS (INSERT INTO jobq.submission (queue_id, id) SELECT queue_id, $1 FROM jobq.queue"
            " WHERE name = $2 RETURNING queue_id, id)"
            " INSERT INTO jobq.task (queue_id, id, body) SELECT queue_id, id, $3 FROM known"
        )
        connection = await server.connect("inject")
        try:
            while True:
                try:
                    await connection.execute(statement, message_id, queue, body)
                except asyncpg.PostgresError as error:
                    if error.sqlstate != FORMER_EPOCH:
                        raise
                else:
                    return message_id
        finally:
            await connection.close()

    # As with Azurite: many cases at once share two cores and one server.
    lease, limit = timedelta(seconds=4), timedelta(seconds=120)
    return Harness(
        connect=lambda queue: PostgresBackend(server, queue),
        clock=RealTime(),
        inject=inject,
        lease=lease,
        case_timeout=limit,
    )
