"""Names of copies: a broker drops a message whose name it remembers, so no two copies may ever share one (S1)."""

import json
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobq.settlement import Complete, MoveToDeadLetters, Release, Requeue
from jobq.task import Task
from jobq.testing.clock import VirtualClock
from jobq.testing.harness import DONE
from jobq_azure.service_bus.message_format import clone, copy_name, origin_of, pushed, redriven
from jobq_azure.service_bus.rest_client import Outgoing
from tests.sb.stage import LOCK_SECONDS, NOW, Stage, staged

pytestmark = pytest.mark.check

WINDOW = 600.0
# After the window of an id's push, and inside that of what became of it.
LATER = 400.0
MD5 = "0cc175b9c0f1b6a831c399e269772661"


@dataclass(frozen=True)
class Original:
    """A message as far as names of copies follow from it."""

    number: int
    message_id: str = "any"
    body: bytes = b""
    origin: str = ""
    enqueued: float = 0.0

    def text(self, name: str) -> str:
        return self.origin if name == "jobq-origin" else ""

    def number_in(self, name: str, usual: int = 0) -> int:
        return usual


NUMBERS = st.integers(0, 2**63 - 1)
COUNTS = st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=3).map(tuple)
IDS = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._:@+=-]{0,99}", fullmatch=True)


@settings(deadline=None)  # a machine may be busy
@given(st.tuples(NUMBERS, COUNTS), st.tuples(NUMBERS, COUNTS), IDS)
def test_s1_a_name_stands_for_one_original_and_one_step_and_for_no_id(
    one: tuple[int, tuple[int, ...]], other: tuple[int, tuple[int, ...]], task_id: str
) -> None:
    names = [copy_name(Original(number), *parts) for number, parts in (one, other)]
    assert (names[0] == names[1]) == (one == other)
    assert task_id not in names
    assert all(len(name) <= 128 for name in names)  # by the service


@settings(deadline=None)  # a machine may be busy
@given(NUMBERS, IDS)
def test_s1_each_way_back_of_one_message_has_a_name_of_its_own(number: int, task_id: str) -> None:
    task, original = Task.new(command="true", id=task_id), Original(number)
    ways = [
        clone(original, task.requeued(failures=1), 1, None),
        redriven(original, task.redriven(deliveries=1), 1),
    ]
    assert len({task_id, *(way.message_id for way in ways)}) == 3
    assert [way.properties["jobq-origin"] for way in ways] == [str(number), f"dead:{number}"]


def test_s1_who_may_send_but_not_read_takes_no_name_before_its_copy() -> None:
    """Numbers and seconds can be guessed: the broker dropped the copy, and the task with it."""
    known, guessed = (copy_name(Original(7, body=body), 1, 1) for body in (b"signed by ada", b"of a stranger"))
    assert known != guessed
    assert known == copy_name(Original(7, body=b"signed by ada"), 1, 1)


@pytest.mark.parametrize("origin", ["", "x", "1\n", "\u0661", "-1"])
def test_a_strangers_property_is_no_origin(origin: str) -> None:
    assert origin_of(Original(7, origin=origin)) == "7"


async def _requeue(stage: Stage) -> None:
    delivery = await stage.take()
    await delivery.settle(Requeue(delivery.task.requeued(failures=1).counters, NOW))


async def _release(stage: Stage) -> None:
    await (await stage.take()).settle(Release())


async def _redrive(stage: Stage) -> None:
    delivery = await stage.take()
    await delivery.settle(MoveToDeadLetters("failed", "by a test"))
    assert await stage.backend.redrive([delivery.id]) == [delivery.id]


@pytest.mark.parametrize("way_back", [_requeue, _release, _redrive])
@pytest.mark.parametrize("is_foreign", [False, True], ids=["own id", "md5 of ai4s-jobq"])
async def test_s1_an_id_that_is_pushed_again_goes_back_as_often_as_it_did_before(
    tmp_path: Path, way_back: object, is_foreign: bool
) -> None:
    """The second life takes the steps of the first, while the broker still remembers those."""
    clock = VirtualClock()
    assert callable(way_back)
    async with staged(tmp_path, clock=clock, dedup_window=WINDOW, lock_duration=300.0) as stage:
        for _ in range(2):
            if is_foreign:
                body = json.dumps({"id": MD5, "kwargs": '{"cmd": "true"}', "num_retries": 3, "version": 1}).encode()
                await stage.backend._wire.send(Outgoing(body=body, message_id=MD5))  # as the other program does
            else:
                await stage.pushed(id="train")
            await clock.advance(LATER / 2)
            await way_back(stage)
            back = await stage.take()
            await back.settle(Complete(DONE))
            assert stage.queue.messages() == []
            await clock.advance(LATER)
        assert stage.dead.messages() == []


async def test_s1_ids_that_look_like_copies_are_tasks_of_their_own(tmp_path: Path) -> None:
    async with staged(tmp_path, dedup_window=WINDOW) as stage:
        await stage.pushed(id="train")
        await stage.pushed(id="train:0:1")
        for _ in range(2):
            await _requeue(stage)
        assert sorted([(await stage.take()).id, (await stage.take()).id]) == ["train", "train:0:1"]


async def test_s1_a_retried_letter_takes_no_name_of_what_goes_back(tmp_path: Path) -> None:
    """Dead letters are numbered by themselves here: the second letter and the second message have one number."""
    clock = VirtualClock()
    async with staged(tmp_path, clock=clock, dedup_window=WINDOW) as stage:
        await stage.pushed(id="first")
        await clock.advance(1)
        await stage.pushed(id="second")
        await stage.pushed(id="third")
        held = {each.id: each for each in [await stage.take() for _ in range(3)]}
        await held["third"].settle(MoveToDeadLetters("failed", "the first letter"))
        await held["first"].settle(Requeue(held["first"].task.requeued(failures=1).counters, NOW))
        await (await stage.take()).settle(MoveToDeadLetters("failed", "the second letter"))
        await held["second"].settle(Requeue(held["second"].task.requeued(failures=1).counters, NOW))
        assert await stage.backend.redrive(["first"]) == ["first"]  # in the epoch of the second, by now
        assert sorted([(await stage.take()).id, (await stage.take()).id]) == ["first", "second"]


async def test_s1_dead_retry_and_purge_touch_no_other_life_of_an_id(tmp_path: Path) -> None:
    """Two letters of one id are two tasks where their origins differ: both are listed, and both come back."""
    clock = VirtualClock()
    async with staged(tmp_path, clock=clock, dedup_window=WINDOW) as stage:
        for command in ("echo first", "echo second"):
            task = Task.new(id="train", command=command)
            await stage.backend._wire.send(pushed(task))  # as another process does: this one would refuse it
            await (await stage.take()).settle(MoveToDeadLetters("failed", command))
            await clock.advance(WINDOW + 1)
        assert [each.description for each in await stage.backend.dead_letters(10)] == ["echo first", "echo second"]
        assert await stage.backend.redrive(["train"]) == ["train"]
        back = [await stage.take(), await stage.take()]
        assert sorted(str(each.task.command) for each in back) == ["echo first", "echo second"]
        assert stage.dead.messages() == []


async def test_s1_a_letter_of_the_services_making_is_no_other_lifes(tmp_path: Path) -> None:
    """It carries no origin, and its own number is that of a message of the queue: both were taken for one task."""
    clock = VirtualClock()
    async with staged(tmp_path, clock=clock, max_delivery_count=2) as stage:
        await stage.pushed(id="other")
        await stage.pushed(id="train", command="echo first")
        held = {each.id: each for each in [await stage.take() for _ in range(2)]}
        await held["train"].settle(MoveToDeadLetters("failed", "of jobq's making, with the origin 2"))
        await held["other"].settle(Complete(DONE))
        task = Task.new(id="train", command="echo second")
        await stage.backend._wire.send(pushed(task))  # as another process does: this one would refuse it
        for _ in range(2):
            await stage.take()
            await clock.advance(LOCK_SECONDS + 1)
        assert [each.number for each in stage.dead.messages()] == [1, 2]
        letters = await stage.backend.dead_letters(10)
        assert sorted(str(Task.decode(each.body).command) for each in letters) == ["echo first", "echo second"]
        assert await stage.backend.redrive(["train"]) == ["train"]
        back = [await stage.take(), await stage.take()]
        assert sorted(str(each.task.command) for each in back) == ["echo first", "echo second"]


async def test_s6_letters_of_one_origin_are_one(tmp_path: Path) -> None:
    """A crash between a copy and the end of its original makes two messages of one task; both may die."""
    clock = VirtualClock()
    async with staged(tmp_path, clock=clock) as stage:
        await stage.pushed()
        first = await stage.take()
        await stage.backend._wire.send(clone(first._locked, first.task.requeued(failures=1), 1, None))  # type: ignore[attr-defined] # the machine is gone after it
        await (await stage.take()).settle(MoveToDeadLetters("failed", "the copy"))
        await first.settle(MoveToDeadLetters("failed", "the original"))
        (letter,) = await stage.backend.dead_letters(10)
        assert letter.description == "the copy"
        assert await stage.backend.purge_dead([letter.id]) == [letter.id]
        assert stage.dead.messages() == []
