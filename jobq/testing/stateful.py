"""Random walks through the protocol: one Hypothesis state machine for every backend, against one model (T10).

    TestMachine = make_state_machine(make_harness).TestCase

The machine needs a backend with `strict_expiry` and `counts_deliveries`, on a `VirtualClock`; it asks the capabilities
for the rest. Times are multiples of half a second, so that no rounding decides.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from jobq.batch_plan import Plan
from jobq.batches import batches_of, counts_of
from jobq.errors import BatchSealed, DuplicateTask, LockLost
from jobq.settlement import Complete, MoveToDeadLetters, Release, Requeue, Settlement
from jobq.task import Task, TaskResult
from jobq.testing.harness import NOW, Bench, Harness, raises, task
from jobq.testing.model import Model, ModelBatch, ModelDelivery

_T = TypeVar("_T")
_Item = TypeVar("_Item")
_PICK = st.integers(0, 30)
_LEASE_SECONDS = st.sampled_from([2.0, 5.0])
_SETTLES = st.sampled_from(["complete", "requeue", "release", "dead_letter"])
_BATCHES = st.sampled_from(["a", "b"])
_ALL = 1000


class QueueMachine(RuleBasedStateMachine):
    """Plays moves on a backend and on the model, and compares all that can be seen after each."""

    make_harness: Callable[[], Harness]

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.harness = self.make_harness()
        self.stack = AsyncExitStack()
        self.bench = Bench(self.harness, self.stack)
        self.run(self.bench.open())
        self.backend, self.clock = self.bench.backend, self.harness.clock
        self.capabilities = self.bench.capabilities
        assert self.capabilities.strict_expiry, "the model takes an expired lease for gone"
        assert self.capabilities.counts_deliveries, "the model counts deliveries"
        self.model = Model()

    def teardown(self) -> None:
        """Free the store."""
        try:
            self.run(self.stack.aclose())
        finally:
            self.runner.close()
            self.harness.close()

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Drive the example's own loop."""
        return self.runner.run(work)

    @property
    def now(self) -> float:
        """Boottime, in seconds."""
        return self.clock.boottime()

    @rule(
        count=st.integers(1, 3),
        priority=st.sampled_from([0, 0, 1, -1]),
        wait=st.sampled_from([None, None, 1.0, 4.0]),
        number=_PICK,
    )
    def push(self, count: int, priority: int, wait: float | None, number: int) -> None:
        """New tasks, and where ids are known an old one among them (S8)."""
        not_before = None if wait is None else self.clock.wall() + wait
        new = [task(priority=priority, not_before=not_before) for _ in range(count)]
        known = [each.task for each in self.model.tasks.values() if each.task]
        again = [_pick(known, number)] if known and self.capabilities.deduplicates and number % 3 == 0 else []
        assert self.run(self.backend.push([*new, *again])) == [each.id for each in [*new, *again]]
        for each in new:
            self.model.add(each.id, each.encode(), each, self.now)

    @precondition(
        lambda self: (
            self.capabilities.deduplicates
            and self.capabilities.frees_ids
            and any(t.task for t in self.model.tasks.values())
        )
    )
    @rule(number=_PICK)
    def push_conflict(self, number: int) -> None:
        """A known id with another payload: an error, and nothing of the call is added (S8)."""
        known = _pick([each.task for each in self.model.tasks.values() if each.task], number)
        with raises(DuplicateTask):
            self.run(self.backend.push([task(), known.copied({"command": "false"})]))

    @precondition(lambda self: self.capabilities.frees_ids and self.model.forgotten)
    @rule(number=_PICK)
    def push_what_was_forgotten(self, number: int) -> None:
        """An id that was cleared away or purged is new again, but for its tokens: those go on (S3)."""
        former = _pick(list(self.model.forgotten.values()), number)
        self._add(task(id=former.id, priority=former.priority, command="true again"))

    @precondition(lambda self: self.capabilities.batches)
    @rule(name=_BATCHES, count=st.integers(0, 3))
    def push_to_a_batch(self, name: str, count: int) -> None:
        """One that is open takes all, any other nothing; to begin one that is there changes nothing."""
        batch = self.model.batches.setdefault(name, ModelBatch())
        assert self.run(batches_of(self.backend).begin(name, Plan())).state == batch.state
        new = [task(batch=name) for _ in range(count)]
        if batch.state != "open" and new:
            with raises(BatchSealed):
                self.run(self.backend.push([*new, task()]))
            return
        assert self.run(self.backend.push(new)) == [each.id for each in new]
        for each in new:
            self.model.add(each.id, each.encode(), each, self.now)

    @precondition(lambda self: self.model.batches)
    @rule(name=_BATCHES, reopens=st.sampled_from([False, False, True]))
    def seal_a_batch(self, name: str, reopens: bool) -> None:
        """Or open it again."""
        if (batch := self.model.batches.get(name)) is None:
            return
        if reopens:
            self.run(batches_of(self.backend).reopen(name))
            batch.go_on("open")
            batch.state = "open"
        else:
            self.run(batches_of(self.backend).seal(name))
            batch.state = "sealed" if batch.state == "open" else batch.state
            batch.look()

    @precondition(lambda self: self.harness.inject is not None)
    @rule(body=st.binary(max_size=8))
    def inject(self, body: bytes) -> None:
        """A message that is no task."""
        id_ = self.run(self.bench.inject(body))
        self.model.add(id_, body, None, self.now)

    @rule(count=st.integers(1, 4), seconds=_LEASE_SECONDS)
    def receive(self, count: int, seconds: float) -> None:
        """Exactly what is visible, highest priority first, each as the model knows it (S1, S2, S3, S7, S9)."""
        self._receive(count, seconds)

    def _receive(self, count: int, seconds: float) -> None:
        self.model.lapse(self.now)
        visible = self.model.visible(self.now, self.clock.wall())
        best = sorted((each.priority for each in visible.values()), reverse=True)[:count]
        lease = timedelta(seconds=seconds)
        found = self.run(self.backend.receive(count, lease, NOW))
        assert len(found) == len(best), f"{len(found)} tasks were received, {len(best)} should have been"
        if self.capabilities.priorities:
            assert [visible[each.id].priority for each in found] == best
        for delivery in found:
            each = visible.pop(delivery.id)
            each.see(delivery.body)
            self.model.grant(each, delivery, self.now + seconds)
            assert delivery.deliveries == each.deliveries
            assert delivery.fencing == each.fencing
            assert delivery.body == each.body
            assert delivery.lease == lease
            if self.capabilities.native_checkpoint:
                assert delivery.checkpoint_value == each.checkpoint

    @rule(number=_PICK, seconds=_LEASE_SECONDS)
    def renew(self, number: int, seconds: float) -> None:
        """A valid holder gets the time, a stale one LockLost (S4)."""
        held = self._held(number)
        if self._do(held, held.delivery.renew(timedelta(seconds=seconds))):
            held.of.expires = self.now + seconds

    @precondition(lambda self: self.capabilities.native_checkpoint)
    @rule(number=_PICK, value=st.sampled_from(["a", "b", "ü" * 50]))
    def checkpoint(self, number: int, value: str) -> None:
        """A valid holder's value is kept, a stale one's refused (S9)."""
        held = self._held(number)
        if self._do(held, held.delivery.checkpoint(value)):
            held.of.checkpoint = value

    @rule(number=_PICK, verb=_SETTLES, variant=st.integers(0, 2))
    def settle(self, number: int, verb: str, variant: int) -> None:
        """Any delivery, valid or long stale: accepted once (S4, S5)."""
        held = self._held(number)
        what = _settle(held, verb, variant)
        if self.capabilities.idempotent_settle and held.settled == what:
            self._repeat(held)
        elif self._do(held, held.delivery.settle(what)):
            self.model.settle(held, what, self.now)

    @precondition(lambda self: self.capabilities.idempotent_settle and any(h.settled for h in self.model.held))
    @rule(number=_PICK)
    def repeat_a_settle(self, number: int) -> None:
        """The same settle again has no second effect (S5)."""
        self._repeat(_pick([held for held in self.model.held if held.settled], number))

    @rule(numbers=st.lists(_PICK, min_size=1, max_size=3))
    def redrive(self, numbers: list[int]) -> None:
        """Those dead go back, in a new epoch; others are passed over (S3)."""
        if not self.model.dead:
            self.settle(numbers[0], "dead_letter", 0)
        if not self.model.dead:
            return  # the delivery that was chosen is stale
        ids = list(dict.fromkeys(_pick(self.model.dead, number).id for number in numbers))
        found = self.run(self.backend.redrive(["unknown", *ids]))
        assert sorted(found) == sorted(ids)
        for id_ in ids:
            self.model.redrive(id_, self.now)

    @precondition(lambda self: self.model.dead)
    @rule(number=_PICK)
    def purge(self, number: int) -> None:
        """A dead letter is deleted for good."""
        id_ = _pick(self.model.dead, number).id
        assert self.run(self.backend.purge_dead([id_, "unknown"])) == [id_]
        self.model.purge(id_)

    @precondition(lambda self: len(self.model.tasks) > 3)
    @rule(really=st.sampled_from([False, False, False, True]))
    def clear(self, really: bool) -> None:
        """Everything but the dead and the done; not too often, or nothing ever grows."""
        if really:
            assert self.run(self.backend.clear()) == self.model.clear()

    @rule(halves=st.sampled_from([1, 2, 3, 6, 12]))
    def advance(self, halves: int) -> None:
        """Time passes."""
        self.run(_advance(self.clock.advance, halves / 2))
        self.model.lapse(self.now)

    @invariant()
    def looks_as_the_model_does(self) -> None:
        """Stats, peek and dead letters agree with the model, and looking changes nothing (S1)."""
        self.model.lapse(self.now)
        visible = self.model.visible(self.now, self.clock.wall())
        tasks = self.model.tasks.values()
        self.run(
            self.bench.counts(
                visible=len(visible),
                leased=sum(each.state == "leased" for each in tasks),
                scheduled=sum(each.state == "waiting" for each in tasks) - len(visible),
                dead=len(self.model.dead),
            )
        )
        peeked = {each.id: (each.body, each.deliveries) for each in self.run(self.backend.peek(_ALL))}
        for id_ in visible.keys() & peeked.keys():
            visible[id_].see(peeked[id_][0])
        assert peeked == {id_: (each.body, each.deliveries) for id_, each in visible.items()}
        letters = {each.id: (each.body, each.reason) for each in self.run(self.backend.dead_letters(_ALL))}
        assert letters == {each.id: (each.body, each.reason) for each in self.model.dead}

    @precondition(lambda self: self.model.batches)
    @invariant()
    def batches_are_as_the_model_has_them(self) -> None:
        """Where each is, in which round, and how many of its tasks are where: their sum is what was pushed to it."""
        self.model.lapse(self.now)
        visible = self.model.visible(self.now, self.clock.wall())
        for name, batch in self.model.batches.items():
            found = self.run(batches_of(self.backend).find(name))
            assert (found.state, found.round, len(found.rounds)) == (batch.state, batch.round, batch.rounds), found
            states = [each.state for each in batch.members]
            ready = sum(visible.get(each.id) is each for each in batch.members)
            counts = {"ready": ready, "scheduled": states.count("waiting") - ready, "running": states.count("leased")}
            counts |= {"succeeded": states.count("done"), "dead": states.count("dead"), "gone": states.count("gone")}
            expired = found.counts["expired"]  # what can be received
            assert found.counts == counts_of({**counts, "ready": ready - expired, "expired": expired}), found

    def _held(self, number: int) -> ModelDelivery:
        """Choose a delivery: a valid one three times of four, which is fetched when there is none, else any.

        Hypothesis leaves out rules at random, so each rule must be able to get somewhere by itself.
        """
        self.model.lapse(self.now)
        valid = [held for held in self.model.held if held.of.holder is held]
        if valid and number % 4:
            return _pick(valid, number)
        if not valid:
            if not self.model.visible(self.now, self.clock.wall()):
                self._add(task())
            self._receive(1, 5.0)
        return _pick(self.model.held, number)

    def _add(self, new: Task) -> None:
        assert self.run(self.backend.push([new])) == [new.id]
        self.model.add(new.id, new.encode(), new, self.now)

    def _do(self, held: ModelDelivery, call: Coroutine[Any, Any, object]) -> bool:
        """Make a fenced call; it must succeed exactly for the valid holder. Return whether it did."""
        self.model.lapse(self.now)
        valid = held.of.holder is held
        try:
            self.run(call)
        except LockLost:
            assert not valid, f"the holder of {held.of.id} was refused under a valid lease (S4)"
            return False
        assert valid, f"a stale holder of {held.of.id} was not refused (S4)"
        return True

    def _repeat(self, held: ModelDelivery) -> None:
        assert held.settled is not None
        try:
            self.run(held.delivery.settle(held.settled))
        except LockLost:
            assert held.doubtful, f"the repeat of {held.settled.verb} was refused (S5)"


def make_state_machine(harness_factory: Callable[[], Harness]) -> type[QueueMachine]:
    """Return the machine for a backend; the factory is called for each example and `Harness.close` after it."""

    class BackendMachine(QueueMachine):
        make_harness = staticmethod(harness_factory)

    return BackendMachine


async def _advance(advance: Callable[[float], Coroutine[Any, Any, None]], seconds: float) -> None:
    await advance(seconds)


def _pick(items: Sequence[_Item], number: int) -> _Item:
    """Choose from the end: what is recent is most often of interest."""
    return items[-1 - number % len(items)]


def _settle(held: ModelDelivery, verb: str, variant: int) -> Settlement:
    match verb:
        case "complete":
            return Complete(TaskResult(exit_code=variant))
        case "requeue" if held.task is not None:
            return Requeue(held.task.counters.raised(failures=variant % 2), timedelta(seconds=[0.0, 0.0, 3.0][variant]))
        case "dead_letter":
            return MoveToDeadLetters(f"reason {variant}", "by the machine")
    # Also of what is no task, which cannot be counted.
    return Release(timedelta(seconds=[0.0, 0.0, 3.0][variant]), misfits=variant % 2)
