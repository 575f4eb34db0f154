"""What is done with what a store hands out that does not fit, and for how long room is made for it."""

import asyncio
import random
from typing import Any

import pytest

from jobq.resources.gpus import named_gpus
from jobq.resources.offer import Offer
from jobq.run.attempt.neighbours import Admission, Placement
from jobq.run.attempt.task_grants import FIRST_DELAY_SECONDS, MOST_IDLE_SECONDS, SHORTEST_LIFE_SECONDS, TaskGrants
from jobq.task import Counters, Task
from jobq.testing.clock import VirtualClock
from tests.unit.scripted_delivery import ScriptedDelivery

OFFER = Offer(cpus=16_000, gpus=named_gpus(["0", "1"]), mem=64 * 1024**3)


class Desk:
    """One worker's grants, and what comes to it."""

    def __init__(self, share: float = 0.05, offer: Offer = OFFER) -> None:
        self.clock = VirtualClock()
        self.freed = 0
        self.grants = TaskGrants(offer, self.clock, share, chance=random.Random(1), on_freed=self._free)
        self._numbers = 0

    def _free(self) -> None:
        self.freed += 1

    def place(
        self, *, misfits: int = 0, may_reserve: bool = True, place: Placement | None = None, **asked: Any
    ) -> Placement:
        self._numbers += 1
        counters = Counters(ends=misfits, misfits=misfits)
        task = Task.new(command="true", id=f"t{self._numbers}", **asked).copied({"counters": counters})
        delivery = ScriptedDelivery(self.clock, task=task)
        return self.grants.place(delivery, place or Placement(), may_reserve=may_reserve)

    async def passes(self, seconds: float) -> None:
        await self.clock.advance(seconds)


def over(place: Placement) -> None:
    assert place.grant is not None
    place.grant.over()


async def test_who_asks_for_nothing_costs_nothing() -> None:
    desk = Desk(offer=Offer(cpus=1000))
    assert desk.place() == Placement()
    assert desk.grants.room_to_come() is None


async def test_one_is_reserved_and_what_is_behind_it_goes_back() -> None:
    desk = Desk()
    first = desk.place(cpus=10)
    big = desk.place(cpus=16)
    assert (first.admission, big.admission) == (Admission.START, Admission.RESERVED)
    assert desk.grants.room_to_come() is not None
    assert desk.place(cpus=1).admission is Admission.BACK
    before = big.has_grant
    over(first)
    assert (before, big.has_grant) == (False, True)
    assert desk.freed == 1
    assert desk.grants.room_to_come() is None
    assert desk.place(gpus=1).admission is Admission.START


async def test_reservations_idle_no_more_than_their_share_of_a_life() -> None:
    """6 of 16 processors idle, and both GPUs: the dimension that idles most counts, here all of a GPU."""
    desk = Desk()
    first, spent = desk.place(cpus=10), 0.0
    for _ in range(50):
        reserved = desk.place(cpus=16)
        if reserved.admission is Admission.RESERVED:
            began = desk.clock.boottime()
            await desk.passes(reserved.patience)
            over(reserved)  # in vain
            spent += desk.clock.boottime() - began
        life = max(desk.clock.boottime() - desk.grants._began, SHORTEST_LIFE_SECONDS)
        assert spent <= 0.05 * life + 0.01
        await desk.passes(60.0)
    assert spent > 0.04 * (desk.clock.boottime() - desk.grants._began)
    over(first)


async def test_what_idles_more_and_more_while_it_waits_counts_as_it_grows() -> None:
    """The machine is full when it begins to wait, so that costs nothing; then all but one of what runs end.

    Its patience is over once the share is used up, and what it has idled is not forgotten for the next one.
    """
    desk = Desk(offer=Offer(cpus=16_000))
    small = [desk.place(cpus=1) for _ in range(16)]
    reserved = desk.place(cpus=16)
    assert reserved.grant is not None
    assert reserved.patience == MOST_IDLE_SECONDS
    waiting = asyncio.ensure_future(reserved.grant.waited(desk.clock))
    await desk.passes(100.0)
    for each in small[1:]:
        over(each)
    began = desk.clock.boottime()
    while not waiting.done():
        await desk.passes(1.0)
    idled = (desk.clock.boottime() - began) * 15 / 16
    life = SHORTEST_LIFE_SECONDS
    assert 0.8 * 0.05 * life <= idled <= 0.05 * life + 2.0
    over(reserved)
    assert desk.place(cpus=16).admission is Admission.FULL, "it has idled its share"
    over(small[0])


async def test_what_waits_to_be_alone_costs_what_idles_meanwhile_and_nothing_of_before() -> None:
    desk = Desk(share=0.1, offer=Offer(cpus=16_000))
    first = desk.place(cpus=10)
    reserved = desk.place(cpus=16)
    over(reserved)
    await desk.passes(10_000.0)
    alone = desk.place(cpus=16, place=Placement(Admission.ALONE, 30.0))
    assert (alone.admission, alone.has_grant) == (Admission.ALONE, False)
    over(alone)
    assert desk.place(cpus=16).patience > 500.0, "hours in which nobody waited were charged"
    over(first)


@pytest.mark.parametrize("desk_of", [lambda: Desk(share=0.0), Desk])
async def test_without_a_reservation_it_is_put_off_and_another_shape_is_tried(desk_of: Any) -> None:
    desk = desk_of()
    first = desk.place(cpus=10)
    place = desk.place(cpus=16, may_reserve=False)
    assert (place.admission, place.why) == (Admission.FULL, "no room beside what runs: cpus=16")
    assert desk.grants.room_to_come() is None
    assert desk.place(cpus=6).admission is Admission.START
    again = desk.place(cpus=16, may_reserve=False)
    assert again.admission is Admission.BACK, "nothing is taken before something is freed, and then it is the first"
    room = desk.grants.room_to_come()
    assert room is not None, "the same shape again cannot fit before something is freed"
    over(first)
    await room
    assert desk.grants.room_to_come() is None


async def test_what_is_full_is_looked_at_again_after_a_while() -> None:
    desk = Desk(share=0.0)
    desk.place(cpus=10)
    for _ in range(2):
        desk.place(cpus=16)
    room = desk.grants.room_to_come()
    assert room is not None
    waiting = asyncio.ensure_future(room)
    await desk.passes(FIRST_DELAY_SECONDS)
    await waiting
    assert desk.grants.room_to_come() is None


async def test_delays_double_up_to_ten_minutes() -> None:
    desk = Desk()
    for misfits, most in ((0, 30), (1, 60), (2, 120), (5, 600), (40, 600)):
        place = desk.place(needs=["a100"], misfits=misfits)
        assert place.admission is Admission.MISFIT
        assert most / 2 <= place.delay.total_seconds() <= most


async def test_what_is_withheld_is_nothing_to_wait_for() -> None:
    """A tree that does not die keeps its card, and who wants both goes to another worker."""
    desk = Desk()
    one = desk.place(gpus=1)
    assert one.grant is not None
    is_gone = one.grant.launching()
    over(one)
    assert desk.place(gpus=2).admission is Admission.MISFIT
    neighbour = desk.place(gpus=1)
    assert neighbour.has_grant
    over(neighbour)
    is_gone()
    assert desk.place(gpus=2).admission is Admission.START


async def test_the_last_words_count_what_still_waits() -> None:
    desk = Desk()
    assert desk.grants.told_misfits() == ""
    for _ in range(2):
        desk.place(gpus=4)
    desk.place(needs=["a100"])
    assert desk.grants.told_misfits() == "3 tasks wait that this worker cannot run: gpus=4 (2), needs a100 (1)"
    await desk.passes(31.0)
    assert desk.grants.told_misfits() == "", "they were due, and somebody else has them"
    desk.place(cpus=17)
    assert desk.grants.told_misfits() == "1 task waits that this worker cannot run: cpus=17 (1)"


async def test_as_many_slots_as_processors_are_free() -> None:
    desk = Desk(offer=Offer(cpus=2000, counts_slots=True))
    assert desk.grants.free_slots == 2
    places = [desk.place(), desk.place(cpus=0.5)]
    assert desk.grants.free_slots == 1
    places.append(desk.place(cpus=0.5))
    assert desk.grants.free_slots == 0
    for place in places:
        over(place)
    assert desk.grants.free_slots == 2
