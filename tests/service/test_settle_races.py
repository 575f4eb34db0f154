"""What a settle finds of its task, and what has become of that by the time it is written (S1)."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jobq.clock import SystemClock
from jobq.servable import ListedTask
from jobq.server import deliveries, schemas
from jobq.task import Task
from jobq_sqlite import SqliteBackend, StoreFile
from jobq_sqlite.host import this_host

NOW, LEASE = timedelta(0), timedelta(seconds=60)


class Doubtful(SqliteBackend):
    """A store whose clock was set back: a look finds the lease over, and the settle after it finds that it lasts."""

    async def find(self, task_id: str) -> ListedTask | None:
        found = await super().find(task_id)
        return None if found is None else replace(found, state="ready")


REQUESTS: list[Callable[[str, Task], tuple[Any, Any]]] = [
    lambda receipt, task: (
        deliveries.requeue,
        schemas.RequeueRequest(receipt=receipt, counters=schemas.CountersBody(failures=1, ends=task.counters.ends + 1)),
    ),
    lambda receipt, _: (deliveries.release, schemas.ReleaseRequest(receipt=receipt)),
    lambda receipt, _: (deliveries.fail, schemas.FailRequest(receipt=receipt, detail="exit code 1")),
]


@pytest.mark.parametrize("asked", REQUESTS)
async def test_no_body_is_lost_to_a_clock(tmp_path: Path, asked: Callable[[str, Task], tuple[Any, Any]]) -> None:
    """A settle that was taken for one of a lease that is over emptied the task, and made it a dead letter."""
    file = StoreFile(path=tmp_path / "jobs.db", clock=SystemClock(), host=this_host())
    async with Doubtful(file, "q") as backend:
        await backend.create()
        (id_,) = await backend.push([Task.new(command="true")])
        (delivery,) = await backend.claim(1, LEASE, NOW, key="k", former=())

        async def itself() -> SqliteBackend:
            return backend

        handler, body = asked(delivery.receipt, delivery.task)
        await handler(SimpleNamespace(audited={}, path={"id": id_}, body=body, backend=itself))
        found = await backend.find(id_)
        assert found is not None
        assert found.body is not None
        assert Task.decode(found.body).command == "true"
