"""A Storage Queue of Azurite with a ledger, behind proxies: what tests of that ask of it."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

from jobq_azure.ledger.queue import LedgerQueue
from tests.azure.emulator import Azurite
from tests.azure.journal.journal_stage import journaled
from tests.azure.stage import SHORT, Stage, staged
from tests.command_line import Ended


class Site:
    """A queue of one's own with a ledger.

    Attributes:
        queue: its name.
        proxies: before its services; the first is the queue's.
        tables: the one before its table.
        lease: to ask for; short enough to be waited for.
        short: the settings of workers that have such a lease.
        folder: HOME of command lines.
    """

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.queue, self.folder = stage.queue, stage.folder
        self.proxies = (stage.proxy, stage.tables, stage.blobs)
        self.tables = stage.tables
        self.lease = timedelta(seconds=2)
        self.short: Mapping[str, str] = SHORT

    async def ledgered(self, *, behind: bool = False) -> LedgerQueue:
        """Return the queue, entered and ready, through the proxies or behind them; left with the site."""
        found = await journaled(self.stage, behind=behind)
        assert isinstance(found, LedgerQueue)
        await found.stats()  # so that it looks for no pause meanwhile
        return found

    async def total(self) -> int | None:
        """Return how many messages there are."""
        return await self.stage.total()

    async def start(self, *words: str, **more: str) -> asyncio.subprocess.Process:
        """Start the command line, through the proxies."""
        return await self.stage.start(*words, **{"JOBQ_JOURNAL": "tables"} | more)

    async def run(self, *words: str, **more: str) -> Ended:
        """Run it to its end."""
        return await self.stage.run(*words, **{"JOBQ_JOURNAL": "tables"} | more)


@asynccontextmanager
async def sited(azurite: Azurite, folder: Path) -> AsyncIterator[Site]:
    """Make a queue that keeps a ledger; `folder` is HOME of command lines."""
    async with staged(azurite, folder, poll_max=0.2) as stage:
        yield Site(stage)
