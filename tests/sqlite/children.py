"""What other processes do to the file; each reports by whole lines, one write each, so that a kill tears none."""

import asyncio
import os
import random
import sqlite3
import tempfile
import time
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path

from jobq.errors import JobqError, LockLost
from jobq.settlement import Complete, MoveToDeadLetters, Release, Requeue
from jobq.task import Task, TaskResult
from jobq_sqlite import SqliteBackend
from tests.sqlite.support import real_file, tasks


def say(writer: Connection, line: str) -> None:
    os.write(writer.fileno(), f"{line}\n".encode())


def push_for_ever(path: Path, prefix: str, writer: Connection) -> None:
    """Say the ids of each acknowledged push."""

    async def main() -> None:
        async with SqliteBackend(real_file(path), "q") as queue:
            await queue.create()
            number = 0
            while True:
                batch = tasks(1 + number % 4, f"{prefix}-{number}")
                say(writer, " ".join(await queue.push(batch)))
                number += 1

    asyncio.run(main())


def work_for_ever(path: Path, seed: int, writer: Connection) -> None:
    """Settle in every way there is; say which, once it is acknowledged."""
    choose = random.Random(seed)

    async def settle_one(queue: SqliteBackend) -> None:
        for delivery in await queue.receive(3, timedelta(hours=1), timedelta(seconds=30)):
            say(writer, f"leased {delivery.id}")
            match choose.randrange(8):
                case 0:
                    await delivery.settle(Requeue(delivery.task.requeued().counters, timedelta(0)))
                case 1:
                    await delivery.settle(Release())
                case 2:
                    await delivery.settle(MoveToDeadLetters("failed", "by the test"))
                    say(writer, f"dead {delivery.id}")
                case 3:
                    await delivery.checkpoint(str(choose.random()))
                case 4:
                    await delivery.settle(Requeue(delivery.task.requeued().counters, timedelta(milliseconds=1)))
                case _:
                    await delivery.settle(Complete(TaskResult(exit_code=0)))
                    say(writer, f"done {delivery.id}")

    async def main() -> None:
        async with SqliteBackend(real_file(path), "q") as queue:
            while True:
                await settle_one(queue)

    asyncio.run(main())


def work_to_the_end(path: Path, lease: float, writer: Connection) -> None:
    """Complete what there is; say each, with the times between which its lease was held."""

    async def main() -> None:
        async with SqliteBackend(real_file(path), "q") as queue:
            say(writer, "ready")
            while found := await queue.receive(3, timedelta(seconds=lease), timedelta(seconds=0.2)):
                for delivery in found:
                    try:
                        await delivery.settle(Complete(TaskResult(exit_code=0)))
                    except LockLost:
                        say(writer, f"lost {delivery.id}")
                    else:
                        say(writer, f"done {delivery.id} {delivery.deliveries}")

    asyncio.run(main())


def wait_for_tasks(path: Path, count: int, writer: Connection) -> None:
    """Receive this many, one after the other; say when each arrived, by the clock that all processes share."""

    async def main() -> None:
        async with SqliteBackend(real_file(path), "q") as queue:
            say(writer, "ready")
            for _ in range(count):
                (delivery,) = await queue.receive(1, None, timedelta(seconds=60))
                say(writer, repr(time.clock_gettime(time.CLOCK_BOOTTIME)))
                await delivery.settle(Complete(TaskResult()))

    asyncio.run(main())


def open_and_push(path: Path, number: int, writer: Connection) -> None:
    """Be one of many that make the file at once."""

    async def main() -> None:
        async with SqliteBackend(real_file(path), f"q{number % 2}") as queue:
            await queue.create()
            await queue.push([Task.new(command="true", id=f"t-{number}")])
        say(writer, "pushed")

    asyncio.run(main())


def hold_write_lock(path: Path, statement: str, writer: Connection) -> None:
    """Begin a transaction and keep it until killed."""
    database = sqlite3.connect(path, isolation_level=None)
    database.execute(statement)
    say(writer, "held")
    while True:
        time.sleep(60)


def push_as_nobody(path: Path, writer: Connection) -> None:
    """Push without the rights of root; say the error, or the ids."""

    async def push(file: Path) -> str:
        async with SqliteBackend(real_file(file), "q") as queue:
            try:
                await queue.create()
                return " ".join(await queue.push(tasks(1, "nobody")))
            except JobqError as error:
                return f"{type(error).__name__}: {error}"

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(push(Path(folder, "warm.db")))  # imports all it needs while it may still read root's Python
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
    say(writer, asyncio.run(push(path)))


def look_as_nobody(path: Path, writer: Connection) -> None:
    """Count and peek without the rights of root; say what is found, or the error."""

    async def look(file: Path, *, makes: bool = False) -> None:
        async with SqliteBackend(real_file(file), "q") as queue:
            if makes:
                await queue.create()
                return
            try:
                found = f"{(await queue.stats()).visible} {[found.id for found in await queue.peek(10)]}"
            except JobqError as error:
                found = f"{type(error).__name__}: {error}"
            say(writer, found)

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(look(Path(folder, "warm.db"), makes=True))  # as above
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
    asyncio.run(look(path))
