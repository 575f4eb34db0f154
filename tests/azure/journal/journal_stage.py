"""A queue with its journal in a table of Azurite, behind the fault-injecting proxy of tables."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from jobq.journal.records import TaskRecord
from jobq.settings import Settings
from jobq.spec import resolve
from jobq.task import Task
from jobq_azure.table_journal import entities as rows
from jobq_azure.table_journal.backend import JournaledQueue
from tests.azure.stage import Stage


async def journaled(stage: Stage, *, behind: bool = False, **settings: Any) -> JournaledQueue:
    """Return the queue of a stage with a journal, entered, through the proxies or behind them; left with the stage."""
    signed = stage.azurite.connection_string if behind else stage.signed
    given = Settings(connection_string=signed, journal="tables", **settings)
    found = resolve(stage.spec, given)
    assert isinstance(found, JournaledQueue)
    await stage.stack.enter_async_context(found)
    await found.create()
    return found


@asynccontextmanager
async def another(stage: Stage) -> AsyncIterator[JournaledQueue]:
    """Another process of that queue, whose way to the table nothing befalls."""
    given = Settings(connection_string=stage.azurite.connection_string, journal="tables")
    async with resolve(stage.spec, given) as found:
        assert isinstance(found, JournaledQueue)
        yield found


async def written(queue: JournaledQueue) -> None:
    """Wait until all that was recorded is in the table."""
    async with asyncio.timeout(20):
        while len(queue.writer):
            await asyncio.sleep(0.02)


async def state(queue: JournaledQueue, id_: str) -> str:
    """Return where a task is, as the table says."""
    return (await record(queue, id_)).state


async def record(queue: JournaledQueue, id_: str) -> TaskRecord:
    """Return what the table says of a task."""
    await written(queue)
    (found,) = await queue.journal.find([id_])
    return found


def key_of(task: Task) -> str:
    """Return the key of where a task is."""
    return rows.live(task.id, rows.birth(task.created))
