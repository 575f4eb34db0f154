"""`jobq_http` keeps the protocol: every case of both suites, over a service in a process of its own.

The service stands on SQLite, which costs the least; `test_on_postgres` does the same on PostgreSQL (at night).
"""

import asyncio
import contextlib
import sqlite3
import time
import traceback
from pathlib import Path
from typing import Final

import pytest

from jobq.task import new_id
from jobq.testing import conformance, named_leases
from tests.conformance import harnesses as stores
from tests.conformance.real_time import Ended, run_all, tell
from tests.postgres.server import Database
from tests.service import harnesses
from tests.service.server import HttpServer, running

_AT_ONCE: Final = 30
_AT_ONCE_ON_POSTGRES: Final = 8  # each queue takes three connections of the service to the database


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(tmp_path_factory.mktemp("serve"))


@pytest.fixture(scope="module")
def ended(folder: Path) -> Ended:
    file = folder / "jobs.db"

    async def inject(queue: str, body: bytes) -> str:
        message_id = new_id()
        with contextlib.closing(sqlite3.connect(file, isolation_level=None, timeout=30)) as database:
            database.execute(
                "INSERT INTO task (queue_id, id, state, available_at, body)"
                " SELECT queue_id, ?, 'ready', ?, ? FROM queue WHERE name = ?",
                (message_id, time.time(), body, queue),
            )
        return message_id

    with running(f"sqlite://{file}/default", folder) as server:
        return run_all(harnesses.tasks(server, inject), _AT_ONCE)


@pytest.mark.slow("a service and its clients, each a process")
@pytest.mark.timeout(180)  # the first one waits for all
@pytest.mark.parametrize("case", conformance.cases(), ids=str)
def test_tasks(case: conformance.Case, ended: Ended) -> None:
    tell(case, ended)


@pytest.fixture(scope="module")
def leases_ended(folder: Path) -> dict[str, str | None]:
    with running(f"sqlite://{folder / 'leases.db'}/default", folder) as server:
        return asyncio.run(_run_leases(server))


async def _run_leases(server: HttpServer) -> dict[str, str | None]:
    found: dict[str, str | None] = {}

    async def run(case: named_leases.LeaseCase) -> None:
        try:
            found[case.name] = await named_leases.run_case(case, harnesses.leases(server)) or None
        except Exception:  # noqa: BLE001 - told by the case's own test
            found[case.name] = traceback.format_exc()

    await asyncio.gather(*(run(case) for case in named_leases.cases()))
    return found


@pytest.mark.parametrize("case", named_leases.cases(), ids=str)
def test_named_leases(case: named_leases.LeaseCase, leases_ended: dict[str, str | None]) -> None:
    assert leases_ended[case.name] is None, leases_ended[case.name]


@pytest.mark.night
@pytest.mark.timeout(600)
def test_on_postgres(postgres: Database, folder: Path) -> None:
    inject = stores.postgres(postgres).inject
    with running(postgres.spec("default"), folder) as server:
        found = run_all(harnesses.tasks(server, inject), _AT_ONCE_ON_POSTGRES)
        failed = {name: ended for name, ended in found.items() if isinstance(ended, str)}
        failed |= {name: ended for name, ended in asyncio.run(_run_leases(server)).items() if ended}
    assert not failed, failed
