"""What was never started is given back, also where that was not answered at once (S6, S7)."""

from datetime import timedelta
from typing import Any, cast

import pytest

from jobq.clock import Moment, SystemClock
from jobq.events import Event, Events
from jobq.run.attempt.supervisor import Supervisor
from jobq.run.circuit_breaker import Breaker
from jobq.run.neighbours import Admission, Place
from jobq.settings import Settings
from jobq.task import Task
from jobq.testing.faults import Fault, Faults, FaultyBackend
from jobq_memory import MemoryBackend, Router


@pytest.mark.parametrize("fault", [Fault.REFUSE, Fault.LOSE_ANSWER])
async def test_a_give_back_without_an_answer_is_repeated(fault: Fault) -> None:
    """On Service Bus a refusal may come between its two steps: what was done by half went on as two tasks."""
    clock, faults, told = SystemClock(), Faults(), list[Event]()
    backend = FaultyBackend(MemoryBackend(Router(), "queue"), faults)
    await backend.create()
    await backend.push([Task.new(command="true")])
    since = Moment.of(clock)
    (delivery,) = await backend.receive(1, timedelta(seconds=60), timedelta(0))
    faults.next("release", fault, times=2)
    supervisor = Supervisor(
        backend=backend,
        runner=cast("Any", None),  # nothing is started
        settings=Settings(),
        clock=clock,
        events=Events(told.append),
        breaker=Breaker(0, clock),
    )
    report = await supervisor.execute(delivery, since, Place(admission=Admission.BACK))
    assert report.settled == "yes"
    assert (await backend.stats()).visible == 1
    assert [event.name for event in told].count("task.released") == 1
