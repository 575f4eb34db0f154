"""A queue of one's own on Azurite behind the fault-injecting proxy, and the real command line on it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Final

from azure.core.exceptions import ResourceExistsError, ResourceNotFoundError
from azure.storage.blob.aio import ContainerClient

from jobq.backend import Delivery
from jobq.task import Task, new_id
from jobq_azure.storage.account import Account
from jobq_azure.storage.backend import StorageQueueBackend
from jobq_azure.storage.large_payloads import CONTAINER
from jobq_azure.storage.queue_client import StorageQueueClient
from tests import command_line
from tests.azure.emulator import ACCOUNT, KEY, Azurite, connection_string
from tests.command_line import Ended
from tests.support.http_proxy import HttpProxy, ProxiedRequest

LEASE: Final = timedelta(seconds=30)
NOW: Final = timedelta(0)
# A lease of 4 s: whole seconds, short enough to watch, long enough for a busy machine.
SHORT: Final = {
    "JOBQ_ALLOW_SHORT_LEASE": "1",
    "JOBQ_VISIBILITY_TIMEOUT": "4s",
    "JOBQ_SCHEDULED_EVENTS": "off",
    "JOBQ_LOG_FORMAT": "json",
    "JOBQ_POLL_MAX": "1s",
}


ended = partial(command_line.ended, secret=KEY)


@dataclass
class Stage:
    """One queue.

    Attributes:
        azurite: the service.
        proxy: before its queues.
        blobs: a proxy before its blobs.
        tables: a proxy before its tables.
        backend: entered, through the proxy.
        behind: entered, not through the proxy: what the service really holds.
        folder: HOME of command lines.
    """

    azurite: Azurite
    proxy: HttpProxy
    blobs: HttpProxy
    tables: HttpProxy
    backend: StorageQueueBackend
    behind: StorageQueueBackend
    folder: Path
    stack: AsyncExitStack = field(repr=False)

    @property
    def queue(self) -> str:
        return self.backend.name

    @property
    def spec(self) -> str:
        return f"{ACCOUNT}/{self.queue}"

    @property
    def signed(self) -> str:
        """What signs in through the proxies."""
        return connection_string(self.proxy.port, blob_port=self.blobs.port, table_port=self.tables.port)

    async def pushed(self, count: int = 1, command: str = "true") -> list[Task]:
        tasks = [Task.new(command=command) for _ in range(count)]
        await self.backend.push(tasks)
        return tasks

    async def take(self) -> Delivery:
        (delivery,) = await self.backend.receive(1, LEASE, NOW)
        return delivery

    async def wire(self, queue: str | None = None) -> StorageQueueClient:
        """Return bare requests to the service, not through the proxy."""
        account = await self.stack.enter_async_context(Account(ACCOUNT, self.azurite.connection_string, ""))
        return account.wire(queue or self.queue)

    async def total(self) -> int | None:
        return (await self.behind.stats()).total

    async def start(self, *words: str, spec: str = "", **more: str) -> asyncio.subprocess.Process:
        """Start the command line, through the proxy, on this queue unless another is named; ended with the stage."""
        signed = {"JOBQ_CONNECTION_STRING": self.signed}
        return await command_line.start(self.stack, self.folder, (spec or self.spec, *words), signed | more)

    async def run(self, *arguments: str, spec: str = "", **more: str) -> Ended:
        """Run to the end; without a guardian, which is no matter of the service: its start would cost most of it."""
        return await ended(await self.start(*arguments, spec=spec, **{"JOBQ_GUARDIAN": "off"} | more))


@asynccontextmanager
async def staged(azurite: Azurite, folder: Path, poll_max: float = 1.0) -> AsyncIterator[Stage]:
    """Make a queue, and all that reaches it."""
    async with AsyncExitStack() as stack:
        proxy = await stack.enter_async_context(HttpProxy(azurite.port))
        blobs = await stack.enter_async_context(HttpProxy(azurite.blob_port))
        tables = await stack.enter_async_context(HttpProxy(azurite.table_port))
        queue = f"q-{new_id()[-12:]}"

        async def reached(signed: str) -> StorageQueueBackend:
            account = Account(ACCOUNT, signed, "")
            return await stack.enter_async_context(StorageQueueBackend(account, queue, timedelta(seconds=poll_max)))

        behind = await reached(azurite.connection_string)
        await behind.create()
        backend = await reached(connection_string(proxy.port, blob_port=blobs.port))
        await backend.stats()  # so that it looks for no pause for a minute: tests count its requests, and strike them
        proxy.requests.clear()
        yield Stage(azurite, proxy, blobs, tables, backend, behind, folder, stack)


async def eventually(condition: Callable[[], bool], seconds: float = 20) -> None:
    """Wait for what no event tells, such as a file of another process."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.02)


async def make_container(stage: Stage) -> None:
    """Make the container of payloads, behind the proxies, unless it is there."""
    client = ContainerClient.from_connection_string(stage.azurite.connection_string, CONTAINER)
    async with client:
        with contextlib.suppress(ResourceExistsError):
            await client.create_container()


async def remove_container(stage: Stage) -> None:
    """Remove the container of payloads, behind the proxies, if it is there."""
    client = ContainerClient.from_connection_string(stage.azurite.connection_string, CONTAINER)
    async with client:
        with contextlib.suppress(ResourceNotFoundError):
            await client.delete_container()


def is_update(request: ProxiedRequest) -> bool:
    """Return whether a request renews, requeues or checkpoints."""
    return request.method == "PUT" and "/messages/" in request.path


def is_renewal(request: ProxiedRequest) -> bool:
    """Return whether a request extends a lease and changes nothing else."""
    return is_update(request) and not request.body
