"""Large tasks, and what the container of payloads holds of them."""

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any

from azure.core.exceptions import ResourceNotFoundError
from azure.storage.blob.aio import ContainerClient

from jobq.errors import (
    QueueNotFound,
)
from jobq.task import Task
from jobq_azure.storage.large_payloads import CONTAINER
from tests.azure.stage import Stage

LARGE = 200_000  # bytes: three times what a message holds


def large_task(**fields: Any) -> Task:
    half = "d" * (LARGE // 2)  # a variable has bounds of its own
    return Task.new(command="true", env={"DATA": half, "MORE": half}, **fields)


async def blobs_of(stage: Stage) -> dict[str, bytes]:
    """What the container holds of this queue and its dead letters, behind the proxies."""
    client = ContainerClient.from_connection_string(stage.azurite.connection_string, CONTAINER)
    async with client:
        names = [blob.name async for blob in client.list_blobs(name_starts_with=stage.queue)]
        found = {}
        for name in names:
            with contextlib.suppress(ResourceNotFoundError):  # deleted since it was listed
                found[name] = bytes(await (await client.download_blob(name)).readall())
        return found


async def no_blobs(stage: Stage) -> None:
    """Wait until none is left: nobody waits for their removal but the backend's end."""
    async with asyncio.timeout(20):
        while await blobs_of(stage):
            await asyncio.sleep(0.02)


async def push_as_cli(stage: Stage, tasks: Sequence[Task]) -> None:
    """Push as the command line does: what is missing is made."""
    try:
        await stage.backend.push(tasks)
    except QueueNotFound:
        await stage.backend.create()
        await stage.backend.push(tasks)


async def delete_blobs(stage: Stage) -> None:
    client = ContainerClient.from_connection_string(stage.azurite.connection_string, CONTAINER)
    async with client:
        for name in await blobs_of(stage):
            await client.delete_blob(name)
