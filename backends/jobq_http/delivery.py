"""A task that the service has leased to us; every verb is fenced by its receipt, at the service (S4)."""

import json
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any, Final
from urllib.parse import quote

from jobq.backend import Renewed
from jobq.delivery import BaseDelivery
from jobq.errors import SettlementUnknown
from jobq.journal.records import Beat
from jobq.settlement import Complete, MoveToDeadLetters, Record, Release, Requeue, Settlement
from jobq_http.connection import HttpConnection, NoAnswer
from jobq_http.settle_batcher import SettleBatcher

_LONGEST_SECONDS: Final = 5.0
_SHORTEST_SECONDS: Final = 2.0
_MOST_OUTPUT: Final = 256 * 1024


@dataclass(frozen=True, kw_only=True)
class ClaimedTask:
    """A claimed task as the service has answered it."""

    id: str
    body: bytes
    deliveries: int
    checkpoint: str | None
    receipt: str


class HttpDelivery(BaseDelivery):
    """One task leased from a service.

    Args:
        connection: to the service.
        settles: of the queue.
        queue: the queue's name.
        claimed: what was answered.
        lease: the length that was granted.
    """

    def __init__(
        self, connection: HttpConnection, settles: SettleBatcher, queue: str, claimed: ClaimedTask, lease: timedelta
    ) -> None:
        super().__init__(
            id=claimed.id,
            body=claimed.body,
            deliveries=claimed.deliveries,
            lease=lease,
            checkpoint=claimed.checkpoint,
            journaled=True,  # the service drops beats and records where its queue keeps none
        )
        self._settles = settles
        self._connection = connection
        self._queue = queue
        self._receipt = claimed.receipt
        # About as long as the keeper waits for one attempt (1.3 rule 4), which cancels what takes longer: each request
        # has a connection of its own, so that one which hangs holds up no other.
        self._seconds = max(_SHORTEST_SECONDS, min(lease.total_seconds() / 8, _LONGEST_SECONDS))

    async def renew(self, lease: timedelta, beat: Beat | None = None) -> Renewed:
        """Extend the lease from now, by the service's clock."""
        fields: dict[str, Any] = {"lease_seconds": lease.total_seconds()}
        if beat is not None:
            fields["told"] = _beat(beat)
        answer = await self._put("heartbeat", fields)
        return Renewed(cancel=isinstance(answer, dict) and answer.get("cancel") is True)

    async def settle(self, settlement: Settlement) -> None:
        """End the delivery, in one request with others (S6)."""
        match settlement:
            case Release(delay):
                fields: dict[str, Any] = {"delay_seconds": _seconds(delay)} if delay else {}
                if settlement.misfits:
                    fields["misfits"] = settlement.misfits
                await self._send("release", fields, None)
            case Requeue(counters, delay):
                fields = {"counters": counters.as_dict(), "delay_seconds": _seconds(delay)}
                await self._send("requeue", fields, settlement.record)
            case MoveToDeadLetters(reason, description):
                fields = {"reason": reason, "description": _clean(description[-_MOST_OUTPUT:])}
                await self._send("dead-letter", fields, settlement.record)
            case Complete(result):
                ended = {"exit_code": result.exit_code, "value": result.value, "duration_seconds": result.duration}
                output = _clean(result.output_tail[-_MOST_OUTPUT:])
                await self._send("complete", {**ended, "output": output}, settlement.record)

    async def checkpoint(self, value: str, number: int = 0) -> None:
        """Save the task's progress beside it (S9)."""
        await self._put("checkpoint", {"value": value, "number": number})

    async def _send(self, verb: str, fields: dict[str, Any], record: Record | None) -> None:
        item = {"verb": verb, "id": self.id, "receipt": self._receipt, **fields}
        if record is not None:
            item["attempt"] = _attempt(record)
        await self._settles.send(json.dumps(item).encode(), self._seconds)

    async def _put(self, verb: str, fields: dict[str, Any]) -> Any:
        body = {"receipt": self._receipt, **fields}
        path = f"/api/tasks/{quote(self.id, safe='')}/{verb}"
        try:
            return await self._connection.request(
                "PUT", path, body, query={"queue": self._queue}, seconds=self._seconds
            )
        except NoAnswer as error:
            raise SettlementUnknown(str(error)) from None


def _seconds(delay: timedelta) -> float:
    return max(0.0, delay.total_seconds())


def _beat(beat: Beat) -> dict[str, Any]:
    """Return the beat of a running attempt; clocks differ, so times go as spans."""
    fields = asdict(beat)
    at, started = fields.pop("at"), fields.pop("started")
    fields["running_seconds"] = None if started is None else max(0.0, at - started)
    fields["text"], fields["output"] = _clean(beat.text), _clean(beat.output)
    return {name: value for name, value in fields.items() if value is not None}


def _attempt(record: Record) -> dict[str, Any]:
    """Return what an attempt came to; see `_beat`."""
    attempt = record.attempt
    fields: dict[str, Any] = {
        "outcome": str(attempt.outcome),
        "then": attempt.then,
        "running_seconds": None if attempt.started is None else max(0.0, attempt.ended - attempt.started),
        "waited_seconds": attempt.waited,
        "host": attempt.host,
        "pid": attempt.pid,
        "detail": _clean(attempt.detail),
        "exit_code": attempt.exit_code,
        "signal": attempt.signal,
        "usage": None if attempt.usage is None else asdict(attempt.usage),
        "value": attempt.value,
        "program": _clean(attempt.program),
        "output": _clean(record.output),
    }
    return {name: value for name, value in fields.items() if value is not None}


def _clean(text: str) -> str:
    return text.encode("utf-8", "replace").decode()  # JSON on the wire takes no lone surrogate
