"""The stores of the campaigns: how each is started, reached through a port, killed, and asked for the truth."""

import asyncio
import re
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, ClassVar, Final

import asyncpg

from jobq.errors import BackendUnavailable
from jobq.queue import Queue, connect
from jobq.settings import Settings
from tests.azure.emulator import ACCOUNT, Azurite, connection_string, is_installed
from tests.chaos import store_truth
from tests.chaos.azurite_record import AzuriteRecord
from tests.chaos.store_truth import Attempt, Lease
from tests.postgres.server import Database, PostgresServer
from tests.service.server import HttpServer
from tests.support.http_proxy import HttpProxy

QUEUE: Final = "chaos"
# Written by PostgreSQL in the very transaction that granted or ended a lease, as `store_truth` has SQLite do it.
_RECORDER: Final = """
    CREATE TABLE public.chaos_record (n bigserial, id text, deliveries integer, state text,
        expires_at float8, was_settled boolean, wall float8);
    CREATE FUNCTION public.chaos_recorder() RETURNS trigger LANGUAGE plpgsql AS $$
    DECLARE
        wall float8 := extract(epoch FROM clock_timestamp());
        was_valid boolean := OLD.expires_at > clock_timestamp();
    BEGIN
        IF TG_OP = 'UPDATE' AND NEW.receipt IS NOT NULL THEN
            IF NEW.receipt IS DISTINCT FROM OLD.receipt OR NEW.expires_at IS DISTINCT FROM OLD.expires_at THEN
                INSERT INTO public.chaos_record (id, deliveries, state, expires_at, was_settled, wall) VALUES
                    (NEW.id, NEW.deliveries, 'leased', extract(epoch FROM NEW.expires_at), false, wall);
            END IF;
        ELSIF OLD.receipt IS NOT NULL THEN
            INSERT INTO public.chaos_record (id, deliveries, state, expires_at, was_settled, wall) VALUES
                (OLD.id, OLD.deliveries, CASE TG_OP WHEN 'DELETE' THEN 'ended' ELSE 'ready' END, NULL, was_valid, wall);
        END IF;
        RETURN NULL;
    END $$;
    CREATE TRIGGER chaos_recorder AFTER UPDATE OR DELETE ON jobq.task
        FOR EACH ROW EXECUTE FUNCTION public.chaos_recorder();
"""
_ENDS: Final = """
    SELECT id, coalesce(outcome, 'done') FROM jobq.submission WHERE ended_at IS NOT NULL
    UNION ALL SELECT id, 'dead' FROM jobq.dead UNION ALL SELECT id, 'waiting' FROM jobq.task
"""


class Store(ABC):
    """One store with one queue.

    Args:
        folder: of the campaign.

    Attributes:
        name: of its kind.
        has_network: whether workers reach it through proxies.
        port: of the service that workers reach through proxies; 0 = there is no network.
        can_be_killed: whether `kill` is power loss that the store promises to live through.
        cancels: whether its tasks can be canceled.
        verbs: of those that workers use, how a request begins.
    """

    name: str
    has_network: bool = True
    port: int = 0
    can_be_killed: bool = False
    cancels: bool = True
    verbs: ClassVar[Mapping[str, re.Pattern[bytes]]] = {}

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._stack = AsyncExitStack()

    @abstractmethod
    def reached(self, port: int) -> tuple[str, Mapping[str, str]]:
        """Return the spec, and the environment besides, by which a worker reaches the queue through a proxy."""

    @abstractmethod
    async def ends(self) -> Mapping[str, Sequence[str]]:
        """Return where each task is: done, dead, canceled, or anything else while it has not ended.

        Raises:
            BackendUnavailable: the store is away.
        """

    @abstractmethod
    async def leases(self) -> Mapping[Attempt, Lease]:
        """Return what the store says of each delivery."""

    @abstractmethod
    async def start(self) -> None:
        """Start it, with an empty queue whose changes are recorded from now on."""

    async def stop(self) -> None:
        """End it."""
        await self._stack.aclose()

    async def kill(self) -> None:
        """End it as a power cut does."""
        raise NotImplementedError

    async def restart(self) -> None:
        """Start it again with the data of before."""
        raise NotImplementedError

    async def queue(self) -> Queue:
        """Return the queue for those who push; through no proxy."""
        spec, environment = self.reached(self.port)
        return await self._stack.enter_async_context(connect(spec, settings=Settings.from_environment(environment)))


class SqliteStore(Store):
    """The embedded queue: a file."""

    name = "sqlite"
    has_network = False

    @property
    def path(self) -> Path:
        return self.folder / "queue.db"

    def reached(self, port: int) -> tuple[str, Mapping[str, str]]:
        return f"sqlite://{self.path}/{QUEUE}", {}

    async def start(self) -> None:
        spec, _ = self.reached(0)
        async with connect(spec, settings=Settings.from_environment({})) as queue:
            await queue.backend.create()
        store_truth.record_from_now_on(self.path)

    async def ends(self) -> Mapping[str, Sequence[str]]:
        states = await asyncio.to_thread(store_truth.states, self.path)
        return {task: [state] for task, state in states.items()}

    async def leases(self) -> Mapping[Attempt, Lease]:
        return store_truth.leases(self.path)


class ServiceStore(SqliteStore):
    """`jobq serve` before an embedded queue."""

    name = "service"
    has_network = True
    can_be_killed = True
    verbs: ClassVar[Mapping[str, re.Pattern[bytes]]] = {
        "receive": re.compile(rb"POST /api/tasks/next"),
        "renew": re.compile(rb"PUT \S+/heartbeat"),
        "settle": re.compile(rb"POST /api/tasks/settle|PUT \S+/(complete|fail|release|requeue|dead-letter)"),
    }

    def reached(self, port: int) -> tuple[str, Mapping[str, str]]:
        return f"http://127.0.0.1:{port}/{QUEUE}", {}

    async def start(self) -> None:
        file = SqliteStore(self.folder)
        await file.start()
        self._server = HttpServer(file.reached(0)[0], self.folder)
        self._stack.callback(self._server.kill)
        await self.restart()
        self.port = self._server.port

    async def kill(self) -> None:
        await asyncio.to_thread(self._server.kill)

    async def restart(self) -> None:
        await asyncio.to_thread(self._server.start)


class PostgresStore(Store):
    """PostgreSQL, on a server of its own."""

    name = "postgres"
    can_be_killed = True

    def reached(self, port: int) -> tuple[str, Mapping[str, str]]:
        return self._database.through(port).spec(QUEUE), {}

    @property
    def _database(self) -> Database:
        return self._server.database

    async def start(self) -> None:
        self._server = await asyncio.to_thread(PostgresServer)
        self._stack.callback(self._server.stop)
        await self.restart()
        self.port = self._server.port
        spec, _ = self.reached(self.port)
        async with connect(spec, settings=Settings.from_environment({})) as queue:
            await queue.backend.create()
        await asyncio.to_thread(self._database.run, _RECORDER)

    async def kill(self) -> None:
        await asyncio.to_thread(self._server.kill)

    async def restart(self) -> None:
        await asyncio.to_thread(self._server.start)

    async def ends(self) -> Mapping[str, Sequence[str]]:
        found: dict[str, list[str]] = defaultdict(list)
        for task, end in await self._ask(_ENDS):
            found[task].append(end)
        return found

    async def leases(self) -> Mapping[Attempt, Lease]:
        ahead = store_truth.wall_ahead_of_boottime()
        changes = await self._ask(
            "SELECT id, deliveries, state, expires_at, was_settled, wall FROM public.chaos_record ORDER BY n"
        )
        return store_truth.leases_of(
            (task, number, state, expires_at and expires_at - ahead, was_settled, wall - ahead)
            for task, number, state, expires_at, was_settled, wall in changes
        )

    async def _ask(self, sql: str) -> list[tuple[Any, ...]]:
        try:
            return await asyncio.to_thread(self._database.run, sql)
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
            raise BackendUnavailable(str(error)) from error


class AzuriteStore(Store):
    """Azurite's queues. It is never killed: what it has not saved yet it forgets, leases too, as no Azure does."""

    name = "azurite"
    cancels = False  # that takes a journal, whose tables would be one more service
    verbs: ClassVar[Mapping[str, re.Pattern[bytes]]] = {
        "receive": re.compile(rb"GET \S+/messages\?"),
        "renew": re.compile(rb"PUT \S+/messages/"),
        "settle": re.compile(rb"DELETE \S+/messages/"),
    }

    def reached(self, port: int) -> tuple[str, Mapping[str, str]]:
        return f"{ACCOUNT}/{QUEUE}", {"JOBQ_CONNECTION_STRING": connection_string(port), "JOBQ_JOURNAL": "off"}

    async def start(self) -> None:
        place = self.folder / "azurite"
        place.mkdir()
        azurite = Azurite(place)
        self._stack.callback(azurite.kill)
        await asyncio.to_thread(azurite.start)
        self._recorder = await self._stack.enter_async_context(HttpProxy(azurite.port))
        self._record = AzuriteRecord(QUEUE)
        self.port = self._recorder.port
        queue = await self.queue()
        await queue.backend.create()

    async def ends(self) -> Mapping[str, Sequence[str]]:
        self._record.read(self._recorder.requests)
        return self._record.ends

    async def leases(self) -> Mapping[Attempt, Lease]:
        self._record.read(self._recorder.requests)
        return self._record.leases


STORES: Final = {store.name: store for store in (SqliteStore, ServiceStore, PostgresStore, AzuriteStore)}


def why_not(name: str) -> str:
    """Say why a store cannot be had here; empty when it can."""
    return "" if name != "azurite" or is_installed() else "Azurite is not installed: `make install` does it"
