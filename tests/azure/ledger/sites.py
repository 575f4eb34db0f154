"""Where a ledger is kept beside a queue: a Storage Queue of Azurite, or a Service Bus; what tests ask of either."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Final, Literal, Protocol

from jobq.settings import Settings
from jobq.spec import parse
from jobq.task import new_id
from jobq_azure.ledger.queue import LedgerQueue
from jobq_azure.service_bus.backend import ServiceBusBackend
from jobq_azure.service_bus.namespace import Namespace, place_of
from jobq_azure.service_bus.options import Options
from jobq_azure.table_journal import location
from tests.azure.emulator import ACCOUNT, Azurite, connection_string
from tests.azure.journal.journal_stage import journaled
from tests.azure.stage import SHORT, Stage, staged
from tests.command_line import Ended
from tests.emulators.service_bus.faults import Faults
from tests.emulators.service_bus.fidelity import Fidelity
from tests.sb import stage as sb
from tests.service_bus.leftovers import collected
from tests.support.http_proxy import HttpProxy

Service = Literal["storage-queue", "service-bus"]
SERVICES: Final[Sequence[Service]] = ("storage-queue", "service-bus")
_WINDOW_SECONDS: Final = 600.0


class Site(Protocol):
    """A queue of one's own with a ledger.

    Attributes:
        queue: its name.
        proxies: before its services; the first is the queue's.
        tables: the one before its table.
        lease: to ask for; short enough to be waited for.
        short: the settings of workers that have such a lease.
        folder: HOME of command lines.
    """

    queue: str
    proxies: Sequence[HttpProxy]
    tables: HttpProxy
    lease: timedelta
    short: Mapping[str, str]
    folder: Path

    async def ledgered(self, *, behind: bool = False) -> LedgerQueue:
        """Return the queue, entered and ready, through the proxies or behind them; left with the site."""
        ...

    def on_amqp(self, faults: Faults | None) -> None:
        """Let something befall requests that pass no proxy; None = nothing."""
        ...

    async def total(self) -> int | None:
        """Return how many messages there are."""
        ...

    async def start(self, *words: str, **more: str) -> asyncio.subprocess.Process:
        """Start the command line, through the proxies."""
        ...

    async def run(self, *words: str, **more: str) -> Ended:
        """Run it to its end."""
        ...


class StorageSite:
    """On a Storage Queue."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.queue, self.folder = stage.queue, stage.folder
        self.proxies: Sequence[HttpProxy] = (stage.proxy, stage.tables, stage.blobs)
        self.tables = stage.tables
        self.lease = timedelta(seconds=2)
        self.short: Mapping[str, str] = SHORT

    async def ledgered(self, *, behind: bool = False) -> LedgerQueue:
        found = await journaled(self.stage, behind=behind)
        assert isinstance(found, LedgerQueue)
        await found.stats()  # so that it looks for no pause meanwhile
        return found

    def on_amqp(self, faults: Faults | None) -> None:
        """There is none."""

    async def total(self) -> int | None:
        return await self.stage.total()

    async def start(self, *words: str, **more: str) -> asyncio.subprocess.Process:
        return await self.stage.start(*words, **{"JOBQ_JOURNAL": "tables"} | more)

    async def run(self, *words: str, **more: str) -> Ended:
        return await self.stage.run(*words, **{"JOBQ_JOURNAL": "tables"} | more)


@dataclass
class BusSite:
    """On a Service Bus: the emulator's queue, a table of Azurite."""

    stage: sb.Stage
    azurite: Azurite
    tables: HttpProxy

    def __post_init__(self) -> None:
        self.queue, self.folder = self.stage.name, self.stage.folder
        self.proxies: Sequence[HttpProxy] = (self.stage.proxy, self.tables)
        self.lease = timedelta(seconds=4)
        self.short: Mapping[str, str] = sb.SHORT

    async def ledgered(self, *, behind: bool = False) -> LedgerQueue:
        emulator = self.stage.emulator
        signed = emulator.connection_string if behind else self.stage.signed
        place = location.place_of(parse(self.stage.spec), Settings(connection_string=signed, **self._journal(behind)))
        assert place is not None
        bus = ServiceBusBackend(Namespace(place_of("emulator", self.queue, signed, "")), Options(stats_seconds=0.0))
        found = await self.stage.stack.enter_async_context(LedgerQueue(bus, place, timedelta(days=30)))
        await found._wire.create()
        await bus.prepare()  # to connect by AMQP takes longer than a short lock leaves
        return found

    def _journal(self, behind: bool) -> dict[str, str]:
        port = self.azurite.table_port if behind else self.tables.port
        signed = connection_string(1, table_port=port)
        return {"journal": f"tables://{ACCOUNT}", "journal_connection_string": signed}

    def on_amqp(self, faults: Faults | None) -> None:
        self.stage.emulator.gate.faults = faults or Faults()

    async def total(self) -> int | None:
        return len(self.stage.queue.messages())

    def _variables(self) -> dict[str, str]:
        return {f"JOBQ_{name.upper()}": value for name, value in self._journal(False).items()}

    async def start(self, *words: str, **more: str) -> asyncio.subprocess.Process:
        return await self.stage.start(*words, **self._variables() | more)

    async def run(self, *words: str, **more: str) -> Ended:
        return await self.stage.run(*words, **self._variables() | more)


@asynccontextmanager
async def sited(
    service: Service, azurite: Azurite, folder: Path, *, window: bool = True, fidelity: Fidelity | None = None
) -> AsyncIterator[Site]:
    """Make a queue that keeps a ledger.

    Args:
        service: of the queue.
        azurite: keeps the table.
        folder: HOME of command lines.
        window: whether a Service Bus drops messages of a name that it knows.
        fidelity: of its emulator.
    """
    if service == "storage-queue":
        async with staged(azurite, folder, poll_max=0.2) as stage:
            yield StorageSite(stage)
        return
    name, seconds = f"q-{new_id()[-12:]}", _WINDOW_SECONDS if window else 0.0
    async with AsyncExitStack() as stack:
        stack.enter_context(collected())
        tables = await stack.enter_async_context(HttpProxy(azurite.table_port))
        bus = await stack.enter_async_context(sb.staged(folder, fidelity, name=name, dedup_window=seconds))
        yield BusSite(bus, azurite, tables)
