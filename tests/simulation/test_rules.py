"""What the rules of the simulation excuse, and no more than that."""

from collections.abc import Iterator
from random import Random
from signal import SIGTERM
from types import SimpleNamespace
from typing import Any, cast

import pytest

from jobq.task import Task
from tests.simulation.crew import Crew
from tests.simulation.loop import Loop, Machine, Node
from tests.simulation.machine.trees import TaskTree
from tests.simulation.rules.known import KnownTask
from tests.simulation.rules.monitor import Monitor
from tests.simulation.rules.named import NamedRules, _Term
from tests.simulation.rules.trace import Trace
from tests.simulation.service_bus.copies import Copy
from tests.simulation.service_bus.copy_monitor import CopyMonitor


@pytest.fixture
def loop() -> Iterator[Loop]:
    made = Loop()
    yield made
    made.close()


def test_a_process_that_is_stopped_is_judged_by_what_it_believes_once_it_goes_on(loop: Loop) -> None:
    """Seed 427251611: meanwhile it can do nothing with what it believes."""
    server, trace = Machine(loop, "server"), Trace(loop)
    rules = NamedRules(loop, trace, server, cast("Any", None), lambda _node: False)
    rules._terms[1] = _Term(1, "key", expires=server.boottime() - 1.0)
    holder = Node(Machine(loop, "m0"), "h0.1")
    rules.believers[holder] = cast("Any", SimpleNamespace(token=1, is_lost=False))
    holder.pause()
    rules.instant()
    assert not trace.violations
    holder.resume()
    rules.instant()
    assert [broken.rule for broken in trace.violations] == ["1.3"]


@pytest.mark.parametrize(
    ("excused_until", "left"),
    [(9.0, None), (11.5, 1.5), (17.0, 2.5)],
    ids=["no freeze", "stopped 1 s after a thaw", "a thaw while it is stopped"],
)
def test_the_time_to_notice_a_freeze_does_not_pass_while_a_process_is_stopped(
    loop: Loop, excused_until: float, left: float | None
) -> None:
    machine = Machine(loop, "m0")
    holder = Node(machine, "h0.1")
    crew = Crew(0, machine, cast("Any", None), Random(1), holder=holder)
    crew.excused_until = excused_until
    holder.pause()
    loop.now = 20.0
    crew.continue_holder(holder, stopped=10.0, thaw=2.5)
    assert crew.excuses(holder) is (left is not None)
    loop.now += (left or 0.0) + 0.1
    assert not crew.excuses(holder)
    assert not holder.pauses


@pytest.mark.parametrize(("stepped_at", "is_excused"), [(9.9, True), (11.0, True), (5.0, False)])
def test_a_guardian_that_is_stopped_sees_a_step_of_the_wall_clock_only_once_it_goes_on(
    loop: Loop, stepped_at: float, is_excused: bool
) -> None:
    """Seed 1481: also one from just before, which it had not looked at yet."""
    machine = Machine(loop, "m0")
    worker = Node(machine, "w0.1")
    guardian = SimpleNamespace(blind_since=10.0 - 2.5, excused_until=20.0)
    crew = Crew(0, machine, cast("Any", None), Random(1), guardians={worker: cast("Any", guardian)})
    crew.stepped_at, crew.trouble_until = stepped_at, stepped_at + 2.5
    loop.now = 16.0
    assert crew.has_clock_trouble(worker) is is_excused


@pytest.mark.parametrize("succeeded", [True, False])
def test_one_of_two_messages_with_one_fencing_number_has_succeeded(loop: Loop, succeeded: bool) -> None:
    """Seed 427370185: without duplicate detection nobody can say which; with none that succeeded the task is lost."""
    monitor = CopyMonitor(loop, Machine(loop, "server"), cast("Any", None))
    known = KnownTask("t1", Task.new(command="x", id="t1"))
    for _ in range(2):
        monitor._copies[cast("Any", object())] = Copy(known, known.task, 0, 0, place="gone")
    monitor._twins.add(("t1", "0.0.1"))
    if succeeded:
        known.succeeded.add("0.0.1")
    monitor._check_place(known)
    assert known.has_ended is succeeded
    assert [broken.rule for broken in monitor.violations] == ([] if succeeded else ["S1"])


@pytest.mark.parametrize(("renewed_at", "broken"), [(42.0, []), (86.0, ["S11", "S11"])])
def test_a_kill_has_the_reason_of_its_sigterm(loop: Loop, renewed_at: float, broken: list[str]) -> None:
    """Seed 451268906: an answer that came after SIGTERM does not call back the end that has begun."""
    around = SimpleNamespace(lease=60.0, excuses=lambda _: False, is_stopping=lambda _: False)
    around.has_clock_trouble = lambda _: False
    server = Machine(loop, "server")
    monitor = Monitor(loop, server, cast("Any", around))
    task = Task.new(command="x", id="t1")
    known = monitor.tasks["t1"] = KnownTask(
        "t1", task, fencing=cast("Any", "0.0.1"), expires_of={"0.0.1": server.boottime() + 120.0}
    )
    known.extended_at["0.0.1"] = renewed_at
    tree = TaskTree(
        number=1,
        task="t1",
        fencing="0.0.1",
        plan=cast("Any", None),
        node=Node(server, "w0.1"),
        machine=server,
        deadline=93.5,
        socket="",
        leader=True,
        is_seen=True,
    )
    loop.now = 87.5
    monitor.signaled(tree, SIGTERM)
    loop.now, known.extended_at["0.0.1"] = 93.5, 88.0
    monitor.killed(tree, "deadline")
    assert [each.rule for each in monitor.violations] == broken
