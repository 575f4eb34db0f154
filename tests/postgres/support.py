"""What the PostgreSQL tests share."""

from datetime import timedelta
from typing import Any, Final
from uuid import UUID

from jobq.backend import Backend, Delivery
from jobq.task import Task, TaskResult
from jobq_postgres.delivery import PostgresDelivery

LEASE: Final = timedelta(seconds=10)
NOW: Final = timedelta(0)
DONE: Final = TaskResult(exit_code=0)


def tasks(count: int, prefix: str = "t", **fields: Any) -> list[Task]:
    return [Task.new(command="true", id=f"{prefix}-{number:05}", **fields) for number in range(count)]


async def take(backend: Backend, lease: timedelta = LEASE) -> Delivery:
    (delivery,) = await backend.receive(1, lease, NOW)
    return delivery


def receipt(delivery: Delivery) -> UUID:
    assert isinstance(delivery, PostgresDelivery)
    return delivery._row.receipt
