"""What was never started is given back, also where that was not answered at once (S6, S7)."""

from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest

from jobq.backend import Backend
from jobq.clock import Clock, Moment, SystemClock
from jobq.events import Event, Events
from jobq.run.attempt.neighbours import Admission, Placement
from jobq.run.attempt.settle import Settled
from jobq.run.attempt.supervisor import DeliveryReport, Supervisor
from jobq.run.circuit_breaker import Breaker
from jobq.settings import Settings
from jobq.task import Task
from jobq.testing.faults import Fault, Faults, FaultyBackend
from jobq_memory import MemoryBackend, Router
from tests.emulators.service_bus.faults import Drop, Operation
from tests.emulators.service_bus.faults import Fault as ServiceFault
from tests.sb.stage import staged


async def _given_back(backend: Backend, clock: Clock, told: list[Event]) -> DeliveryReport:
    (delivery,) = await backend.receive(1, None, timedelta(0))
    supervisor = Supervisor(
        backend=backend,
        runner=cast("Any", None),  # nothing is started
        settings=Settings(),
        clock=clock,
        events=Events(told.append),
        breaker=Breaker(0, clock),
    )
    return await supervisor.execute(delivery, Moment.of(clock), Placement(admission=Admission.BACK))


@pytest.mark.parametrize("fault", [Fault.REFUSE, Fault.LOSE_ANSWER])
async def test_a_give_back_without_an_answer_is_repeated(fault: Fault) -> None:
    """On Service Bus a refusal may come between its two steps: what was done by half went on as two tasks."""
    clock, faults, told = SystemClock(), Faults(), list[Event]()
    backend = FaultyBackend(MemoryBackend(Router(), "queue"), faults)
    await backend.create()
    await backend.push([Task.new(command="true")])
    faults.next("release", fault, times=2)
    report = await _given_back(backend, clock, told)
    assert report.settled is Settled.YES
    assert (await backend.stats()).visible == 1
    assert [event.name for event in told].count("task.released") == 1


@pytest.mark.parametrize("window", [0.0, 600.0], ids=["without dedup", "with dedup"])
async def test_s7_a_give_back_in_doubt_makes_no_second_copy(tmp_path: Path, window: float) -> None:
    """On Service Bus the answer to its copy is lost: only a queue that drops a second one may be sent it again."""
    told = list[Event]()
    async with staged(tmp_path, dedup_window=window) as stage:
        await stage.pushed()
        stage.emulator.faults.plan(ServiceFault(drop=Drop.AFTER), Operation.SEND)
        report = await _given_back(stage.backend, SystemClock(), told)
        names = [each.content.message_id for each in stage.queue.messages()]
        assert len([name for name in names if str(name).startswith("~")]) == 1
        assert report.settled is (Settled.YES if window else Settled.UNKNOWN)
        assert [event.name for event in told].count("task.released") == (1 if window else 0)
