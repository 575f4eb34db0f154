"""A task that the service has leased to us; every verb is fenced by its receipt, at the service (S4)."""

import json
from dataclasses import asdict, dataclass
from datetime import timedelta
from functools import cached_property
from typing import Any, Final
from urllib.parse import quote

from jobq.backend import FencingNumber
from jobq.errors import MalformedTask, SettlementUnknown
from jobq.journal.page import Page
from jobq.journal.records import Attempt, Beat
from jobq.task import Task, TaskResult
from jobq_http.connection import Connection, NoAnswer
from jobq_http.settle_batcher import Settles

_LONGEST_SECONDS: Final = 5.0
_SHORTEST_SECONDS: Final = 2.0
_MOST_OUTPUT: Final = 256 * 1024


@dataclass(frozen=True, kw_only=True)
class Claimed:
    """A claimed task as the service has answered it."""

    id: str
    body: bytes
    deliveries: int
    checkpoint: str | None
    receipt: str


class HttpDelivery:
    """One task leased from a service.

    Args:
        connection: to the service.
        settles: of the queue.
        queue: the queue's name.
        claimed: what was answered.
        lease: the length that was granted.
    """

    def __init__(
        self, connection: Connection, settles: Settles, queue: str, claimed: Claimed, lease: timedelta
    ) -> None:
        self.lease = lease
        self.page = Page()  # the service drops what is told where its queue keeps no journal
        self._settles = settles
        self._connection = connection
        self._queue = queue
        self._claimed = claimed
        # About as long as the keeper waits for one attempt (1.3 rule 4), which cancels what takes longer: each request
        # has a connection of its own, so that one which hangs holds up no other.
        self._seconds = max(_SHORTEST_SECONDS, min(lease.total_seconds() / 8, _LONGEST_SECONDS))

    @property
    def id(self) -> str:
        """The task's id."""
        return self._claimed.id

    @property
    def body(self) -> bytes:
        """The body as stored."""
        return self._claimed.body

    @property
    def deliveries(self) -> int:
        """The store's count, this delivery included."""
        return self._claimed.deliveries

    @property
    def checkpoint_value(self) -> str | None:
        """What the last attempt has saved, as it was at the claim."""
        return self._claimed.checkpoint

    @cached_property
    def task(self) -> Task:
        """The task in the body; raises MalformedTask."""
        return Task.decode(self._claimed.body)

    @property
    def fencing(self) -> FencingNumber:
        """The number that the task may show to others."""
        try:
            return FencingNumber(self.task.epoch, self.task.generation, self.deliveries)
        except MalformedTask:
            return FencingNumber(0, 0, self.deliveries)

    async def renew(self, lease: timedelta) -> None:
        """Extend the lease from now, by the service's clock."""
        fields: dict[str, Any] = {"lease_seconds": lease.total_seconds()}
        if self.page.beat is not None:
            fields["told"] = _beat(self.page.beat())
        answer = await self._put("heartbeat", fields)
        if isinstance(answer, dict) and answer.get("cancel") is True:
            self.page.cancel.set()

    async def complete(self, result: TaskResult) -> None:
        """End the task as done."""
        fields = {
            "exit_code": result.exit_code,
            "value": result.value,
            "duration_seconds": result.duration,
            "output": _clean(result.output_tail[-_MOST_OUTPUT:]),
        }
        await self._settle("complete", fields)

    async def requeue(self, task: Task, delay: timedelta) -> None:
        """Put it back with another body (S6)."""
        await self._settle("requeue", {"delay_seconds": max(0.0, delay.total_seconds())}, task.encode())

    async def release(self) -> None:
        """Put it back unstarted (S7)."""
        await self._settle("release", {})

    async def dead_letter(self, reason: str, description: str) -> None:
        """Move it to the dead-letter place (S6)."""
        await self._settle("dead-letter", {"reason": reason, "description": _clean(description[-_MOST_OUTPUT:])})

    async def checkpoint(self, value: str, number: int = 0) -> None:
        """Save the task's progress beside it (S9)."""
        await self._put("checkpoint", {"value": value, "number": number})

    async def _settle(self, verb: str, fields: dict[str, Any], task: bytes = b"") -> None:
        if verb != "release" and self.page.attempt is not None:
            fields["attempt"] = _attempt(self.page.attempt, self.page.output)
        item = json.dumps({"verb": verb, "id": self.id, "receipt": self._claimed.receipt, **fields}).encode()
        if task:
            item = item[:-1] + b',"task":' + task + b"}"
        await self._settles.send(item, self._seconds)

    async def _put(self, verb: str, fields: dict[str, Any]) -> Any:
        body = {"receipt": self._claimed.receipt, **fields}
        path = f"/api/tasks/{quote(self.id, safe='')}/{verb}"
        try:
            return await self._connection.request(
                "PUT", path, body, query={"queue": self._queue}, seconds=self._seconds
            )
        except NoAnswer as error:
            raise SettlementUnknown(str(error)) from None


def _beat(beat: Beat) -> dict[str, Any]:
    """Return what a running attempt tells; clocks differ, so times go as spans."""
    fields = asdict(beat)
    at, started = fields.pop("at"), fields.pop("started")
    fields["running_seconds"] = None if started is None else max(0.0, at - started)
    fields["text"], fields["output"] = _clean(beat.text), _clean(beat.output)
    return {name: value for name, value in fields.items() if value is not None}


def _attempt(attempt: Attempt, output: str) -> dict[str, Any]:
    """Return what an attempt came to; see `_beat`."""
    fields: dict[str, Any] = {
        "outcome": str(attempt.outcome),
        "then": attempt.then,
        "running_seconds": None if attempt.started is None else max(0.0, attempt.ended - attempt.started),
        "host": attempt.host,
        "pid": attempt.pid,
        "detail": _clean(attempt.detail),
        "exit_code": attempt.exit_code,
        "signal": attempt.signal,
        "usage": None if attempt.usage is None else asdict(attempt.usage),
        "value": attempt.value,
        "program": _clean(attempt.program),
        "output": _clean(output),
    }
    return {name: value for name, value in fields.items() if value is not None}


def _clean(text: str) -> str:
    return text.encode("utf-8", "replace").decode()  # JSON on the wire takes no lone surrogate
