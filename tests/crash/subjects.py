"""What is crashed, and how what is left is judged: the workload, and migrations from each older schema."""

import asyncio
import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from jobq.task import Task
from jobq_sqlite.host import this_host
from jobq_sqlite.open_file import SCHEMA_VERSION
from tests.crash import workload
from tests.crash.workload import Opens, Store
from tests.sqlite.support import NOW, ask, older_file

FILE: Final = "jobs.db"


@dataclass(frozen=True)
class Subject:
    """Something that a child does to a file.

    Attributes:
        name: in a few words.
        prepare: makes what is there before, in an empty folder.
        work: returns what the child runs on the file; it tells a line for each step that was acknowledged.
        fault: returns what is wrong with what was left, after so many steps were told, perhaps by another boot.
    """

    name: str
    prepare: Callable[[Path], None]
    work: Callable[[Path], Callable[[int], None]]
    fault: Callable[[Path, int, bool], str]


def verbs(folder: Path, opens: Opens = Store, opens_after: Opens = Store) -> Subject:
    """Return the workload; `folder` is used to find out what is right, and bugs may be planted before and after."""
    expected = workload.contents(emptied(folder))

    def fault(path: Path, told: int, is_rebooted: bool) -> str:
        return workload.fault_of(path, told, expected, opens_after, is_rebooted=is_rebooted)

    return Subject("every verb", lambda _: None, lambda path: workload.work(path, opens), fault)


def migrations() -> Iterator[Subject]:
    """Yield the migration from each older schema."""
    for version in range(1, SCHEMA_VERSION):
        yield _migration(version)


def _migration(version: int) -> Subject:
    def prepare(folder: Path) -> None:
        body = Task.new(command="true", id="t").encode()
        older_file(folder / FILE, version, host=this_host(), body=body)

    def work(path: Path) -> Callable[[int], None]:
        def run(telling: int) -> None:
            async def main() -> None:
                async with workload.backend(path) as queue:
                    await queue.push([Task.new(command="true", id="new")])
                    os.write(telling, b"pushed\n")

            asyncio.run(main())

        return run

    def fault(path: Path, told: int, is_rebooted: bool) -> str:
        del is_rebooted  # nothing is leased
        try:
            return asyncio.run(_migrated(path, told))
        except Exception as error:  # noqa: BLE001 - whatever keeps it from being used is the finding
            return f"{type(error).__name__}: {error}"

    return Subject(f"migration from {version}", prepare, work, fault)


async def _migrated(path: Path, told: int) -> str:
    """Return what is wrong with a file of an older version after its migration was interrupted."""
    async with workload.backend(path, sqlite3.Connection) as queue:
        ids = {delivery.id for delivery in await queue.receive(10, None, NOW)}
        if ask(path, "PRAGMA integrity_check") != [("ok",)]:
            return "its integrity check fails"
        if ask(path, "PRAGMA user_version") != [(SCHEMA_VERSION,)]:
            return "it is not of the present version"
        ((identity, rows),) = ask(path, "SELECT identity, (SELECT count(*) FROM host) FROM host")
        if rows != 1 or len(identity) != 32:
            return f"it has {rows} hosts and the identity {identity!r}"
    right = [{"t", "new"}] if told else [{"t"}, {"t", "new"}]
    return "" if ids in right else f"after {told} pushes it handed out {sorted(ids)}"


def emptied(folder: Path) -> Path:
    """Return a folder with nothing in it."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder
