"""The simulated kernel: processes fall to whom they fall on Linux, and what no guardian may do or say is seen."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from random import Random
from signal import SIGCHLD, SIGKILL
from typing import Any, cast

import pytest

from jobq.run.guardian import protocol
from jobq.run.guardian.loop import Guardian
from jobq.run.guardian.tasks import Tasks
from tests.simulation.loop import Loop, Machine, Node
from tests.simulation.machine.kernel import GUARDIAN, WORKER, Kernel
from tests.simulation.machine.sockets import End, pair
from tests.simulation.machine.system import SimulatedSystem
from tests.simulation.machine.trees import TreePlan
from tests.simulation.rules.trace import Trace


class Watched(Trace):
    """Takes down what is broken; knows no tasks."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_: self.note(name)


class Place:
    """A kernel, and the guardian's system on it, without a guardian."""

    def __init__(self, **plan: Any) -> None:
        self.loop = Loop()
        self.machine = Machine(self.loop, "m")
        self.monitor = Watched(self.loop)
        self.signals: list[int] = []
        tasks = cast("Any", self)
        self.plans = {"": TreePlan(**plan)}
        self.kernel = Kernel(self.loop, cast("Any", self.monitor), tasks, Node(self.machine, "w"), self.signals.append)
        self._ours, self._theirs = End(4, lambda: None), End(4, lambda: None)
        pair(self._ours, self._theirs)
        self.system = SimulatedSystem(self.kernel, self.machine, cast("Any", self.monitor), self._ours, Random(1))

    def plan_of(self, task: str, fencing: str) -> TreePlan:
        return self.plans.get(task, self.plans[""])

    def close(self) -> None:
        self.loop.close()

    def start(self, number: int = 1) -> tuple[int, int]:
        env = {"JOBQ_TASK_ID": f"t{number}", "JOBQ_LEASE_TOKEN": "0.0.1"}
        pid, status = self.system.fork_task({"id": number, "env": env, "deadline": None})
        return pid, status

    def guardian(self) -> Guardian:
        """Return the real one; whoever asks for it lets it take its turns."""
        return Guardian(cast("Any", self._ours), cast("Any", self.system.signals), WORKER, system=self.system)

    def ask(self, message: dict[str, Any]) -> None:
        """Send it a message of the worker's."""
        env = {"JOBQ_TASK_ID": f"t{message['id']}", "JOBQ_LEASE_TOKEN": "0.0.1"}
        rest, ancillary = ({"argv": ["x"], "env": env, "cwd": None}, [(0, 0, [1, 2])])
        if message["op"] != "spawn":
            rest, ancillary = {}, []
        self._theirs.sendmsg([memoryview(protocol.encode(message | rest))], ancillary)

    def told(self) -> list[dict[str, Any]]:
        """Return what it has told its worker."""
        receiver = protocol.Receiver(cast("Any", self._theirs), protocol.HANDLE_DESCRIPTORS)
        receiver.read()
        return list(iter(receiver.next, None))

    def after(self, seconds: float) -> None:
        until = self.loop.now + seconds
        self.loop.true_later(seconds, None, lambda: None)
        self.loop.run_while(lambda: self.loop.now < until, 10_000)

    @property
    def broken(self) -> list[str]:
        return [each.rule for each in self.monitor.violations]


Make = Callable[..., Place]


@pytest.fixture
def make() -> Iterator[Make]:
    with ExitStack() as stack:
        yield lambda **plan: stack.enter_context(closing(Place(**plan)))


def test_what_escapes_falls_to_its_leader_and_then_to_the_guardian(make: Make) -> None:
    place = make(escapees=2, death=0.3)
    leader, _ = place.start()
    place.after(0.1)
    assert place.system.children() == [1001, leader]
    place.system.killpg(leader, SIGKILL)
    place.after(0.11)
    assert place.signals[-1] == SIGCHLD
    assert place.system.ended_child() == leader
    one = place.system.children()[-1]
    assert place.system.getsid(one) == one, "it has left the session"
    place.system.kill(one, SIGKILL)
    place.after(0.11)
    other = place.system.children()[-1]
    assert other not in {leader, one}, "a child of what escaped is seen when that is dead"
    assert place.system.getsid(1001) == GUARDIAN
    assert not place.broken


def test_a_start_that_fails_says_why(make: Make) -> None:
    place = make(fails=2)
    leader, status = place.start()
    with pytest.raises(BlockingIOError):
        place.system.read(status)
    place.after(0.1)
    assert place.system.read(status) == b"program:2"
    assert place.system.reap(leader)[0] == 127 << 8


def test_p4_a_number_is_used_again_and_a_signal_to_it_is_seen(make: Make) -> None:
    place = make(run=0.01, left=1)
    leader, _ = place.start()
    place.after(0.1)
    place.system.reap(leader)
    left = place.system.children()[-1]
    assert place.start(2)[0] != leader, "its group holds the number"
    place.system.killpg(leader, SIGKILL)
    place.after(0.1)
    place.system.reap(left)
    assert not place.broken
    with pytest.raises(ProcessLookupError):
        place.system.killpg(leader, SIGKILL)
    with pytest.raises(ProcessLookupError):
        place.system.kill(left, SIGKILL)
    assert place.broken == ["P4", "P4"]
    assert place.start(3)[0] == leader


def test_p2_what_lives_on_without_its_worker_is_seen(make: Make) -> None:
    place = make()
    place.start()
    place.kernel.exit(place.kernel.worker, SIGKILL)
    place.after(0.5)
    place.start(2)
    assert place.broken == ["P2", "P2"]


@pytest.mark.parametrize(
    ("told", "rules"),
    [
        ({"code": None, "signal": 9, "killed": "asked", "survivors": 0}, []),
        ({"code": None, "signal": 9, "killed": "", "survivors": 0}, ["P7"]),
        ({"code": 0, "signal": None, "killed": "asked", "survivors": 0}, ["P7"]),
    ],
)
def test_p7_an_end_that_is_not_told_as_it_was_is_seen(make: Make, told: dict[str, Any], rules: list[str]) -> None:
    place = make()
    leader, _ = place.start()
    place.system.killpg(leader, SIGKILL)
    place.after(0.1)
    place.kernel.end_reported({"id": 1, **told})
    assert place.broken == rules


def test_p3_an_end_that_is_told_of_what_lives_is_seen(make: Make) -> None:
    place = make(run=0.01, escapees=1)
    place.start()
    place.after(0.1)
    place.kernel.end_reported({"id": 1, "code": 0, "signal": None, "killed": "", "survivors": 0})
    assert place.broken == ["P3"]


def test_p3_who_gives_up_a_neighbours_process_does_not_hide_it_from_the_neighbour(make: Make) -> None:
    """A seed found it: what two tasks waited for was of the second, and given up by the first a moment before."""
    place = make()
    place.plans |= {
        "t1": TreePlan(run=0.01, left=1, death=1.6),
        "t2": TreePlan(run=0.5, left=1, death=1.8),
    }
    guarded = Tasks(1001, system=place.system)
    for number in (1, 2):
        message = {"id": number, "env": {"JOBQ_TASK_ID": f"t{number}", "JOBQ_LEASE_TOKEN": "1"}, "deadline": None}
        guarded.spawn(message, 1, 1)
    told: dict[int, int] = {}
    while guarded:
        place.after(0.02)
        guarded.reap()
        for leader in guarded.finished(all_reaped=True):
            assert leader.ended is not None
            told[leader.id] = leader.ended["survivors"]
            if leader.id == 2:
                assert place.kernel.is_empty, "its process lives"
    assert told == {1: 1, 2: 0}


def test_p3_a_suspend_is_no_time_in_which_a_process_could_have_died(make: Make) -> None:
    """A seed found it: its end was told as soon as the machine went on, with a survivor that had a moment to live."""
    place = make(run=0.01, left=1, death=1.0)
    guarded = Tasks(1001, system=place.system)
    message = {"id": 1, "env": {"JOBQ_TASK_ID": "t1", "JOBQ_LEASE_TOKEN": "1"}, "deadline": None}
    guarded.spawn(message, 1, 1)
    place.after(0.1)
    guarded.reap()
    place.kernel.node.pause()
    place.after(2.0)
    place.machine.was_suspended(2.0)
    place.kernel.node.resume()
    assert guarded.finished(all_reaped=True) == []
    place.after(0.6)
    guarded.reap()
    assert [leader.id for leader in guarded.finished(all_reaped=True)] == [1]


def test_p1_all_that_are_overdue_are_killed_in_one_turn(make: Make) -> None:
    place = make(run=60.0)
    guarded = Tasks(1001, system=place.system)
    deadline = place.machine.boottime() + 1.0
    for number in (1, 2, 3):
        env = {"JOBQ_TASK_ID": f"t{number}", "JOBQ_LEASE_TOKEN": "1"}
        guarded.spawn({"id": number, "env": env, "deadline": deadline if number < 3 else None}, 1, 1)
    place.after(1.1)
    guarded.kill_overdue(place.machine.boottime())
    place.after(0.1)
    guarded.reap()
    assert [leader.id for leader in guarded.finished(all_reaped=True)] == [1, 2]


def test_p3_a_guardian_that_is_stopped_does_not_wait_meanwhile(make: Make) -> None:
    """What falls to it then it can kill only once it goes on; it gave up at once, and told of a survivor."""
    place = make(run=0.01, escapees=2, death=0.1)
    guarded = Tasks(1001, system=place.system)
    guarded.spawn({"id": 1, "env": {"JOBQ_TASK_ID": "t1", "JOBQ_LEASE_TOKEN": "1"}, "deadline": None}, 1, 1)
    place.after(0.05)
    guarded.reap()  # the one that escaped is killed; its child falls to the guardian once it is dead
    place.after(3.0)
    guarded.reap()
    assert guarded.finished(all_reaped=True) == []
    place.after(0.1)
    guarded.reap()
    assert [leader.ended and leader.ended["survivors"] for leader in guarded.finished(all_reaped=True)] == [0]


def test_p2_a_guardian_that_is_stopped_leaves_nothing_of_a_dead_worker(make: Make) -> None:
    """It had 5 s from the worker's end, and left what was not dead when it was continued after these."""
    place = make(run=60.0, escapees=2, death=0.1)
    guardian = place.guardian()
    place.ask({"op": "spawn", "id": 1, "deadline": None})
    guardian.step(guardian.wait(0))
    place.after(0.1)
    place.kernel.exit(place.kernel.worker, 0)
    place.system.signals.came = bytes([SIGCHLD])
    guardian.step(guardian.wait(0))
    assert guardian.goes_on()
    place.after(6.0)
    while guardian.goes_on():
        guardian.step(guardian.wait(0))
        place.after(guardian.patience())
    assert place.kernel.is_empty


@pytest.mark.parametrize("renewed_for", [None, 10.0])
def test_p1_nothing_is_started_past_its_deadline(make: Make, renewed_for: float | None) -> None:
    """A guardian that was stopped forked it, and killed it in the same turn; but a renewal may wait to be read."""
    place = make(run=60.0)
    guardian = place.guardian()
    place.ask({"op": "spawn", "id": 1, "deadline": place.machine.boottime() + 1.0})
    guardian._inbox.read()
    place.after(2.0)
    if renewed_for is not None:
        place.ask({"op": "extend", "id": 1, "deadline": place.machine.boottime() + renewed_for})
    guardian._obey_all()
    assert bool(place.kernel.children()[1:]) is (renewed_for is not None)
    place.after(0.1)
    guardian.step(guardian.wait(0))
    assert [message["op"] for message in place.told()] == ["started" if renewed_for else "failed"]
    assert len(place.kernel.children()[1:]) == bool(renewed_for)
