"""Clearing and listing queues of many: no limit but that of each request, and no race with what becomes due."""

import time
from collections.abc import Sequence

import pytest

from jobq_azure.service_bus.amqp_client import Amqp
from tests.emulators.service_bus.faults import Fault, Operation
from tests.sb.stage import NOW, Stage

_PAGES = 3
_MANY = _PAGES * 250 - 10


async def test_each_look_has_its_own_time(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """All together had 10 s: 25,000 dead letters could not be grouped, nor 40,000 scheduled tasks cleared, ever."""
    await stage.pushed(_MANY, not_before=time.time() + 3600)
    await stage.backend.peek(1)  # connected
    monkeypatch.setattr(Amqp._receiver.__wrapped__, "__defaults__", (0.5,))  # type: ignore[attr-defined]
    for _ in range(_PAGES):
        stage.emulator.faults.plan(Fault(delay=0.3), Operation.PEEK)
    assert await stage.backend.clear() == _MANY
    assert stage.queue.messages() == []


async def test_what_becomes_due_meanwhile_is_deleted_with_what_waits(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One such number, and the request for all of them is refused: `clear` told that of a lost answer."""
    await stage.pushed(4, not_before=time.time() + 3600)
    amqp = stage.backend._amqp()
    cancel = amqp.cancel_scheduled
    numbers = [message.number for message in stage.queue.messages()]

    async def cancel_later(numbers: Sequence[int]) -> bool:
        for early in set(numbers) & set(due):
            due.remove(early)
            stage.queue.cancel_scheduled([early])
            await stage.pushed()
        return await cancel(numbers)

    due = numbers[1:2]
    monkeypatch.setattr(amqp, "cancel_scheduled", cancel_later)
    assert await stage.backend.clear() == 4
    assert await stage.backend.receive(1, None, NOW) == []
