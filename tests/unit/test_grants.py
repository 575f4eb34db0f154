"""Grants: what is held never exceeds what is offered, and no two tasks hold one device beyond what it has."""

import random

import pytest

from jobq.resources.gpus import named_gpus
from jobq.resources.grants import FreeResources, Grants, ResourceGrant, fits
from jobq.resources.offer import Gpu, Offer
from jobq.resources.request import UNIT, Resources
from jobq.resources.variables import variables

GIB = 1024**3
GPUS = named_gpus(["0", "1", "2", "3"])
OFFER = Offer(cpus=16 * UNIT, gpus=GPUS, mem=64 * GIB, tags=frozenset({"eu", "a100"}))


def request(chance: random.Random) -> Resources:
    asked = {
        "cpus": chance.choice([None, 250, 1000, 1500, 4000, 16_000]),
        "gpus": chance.choice([None, None, 1000, 1000, 2000, 4000]),
        "mem": chance.choice([None, GIB, 3 * GIB, 32 * GIB]),
    }
    return Resources(asked) if any(asked.values()) else Resources(cpus=1)


@pytest.mark.parametrize("seed", range(4))
def test_no_device_is_held_twice_through_ten_thousand_starts_and_ends(seed: int) -> None:
    chance, grants = random.Random(seed), Grants(OFFER)
    held: list[ResourceGrant] = []
    refused = 0
    for _ in range(10_000):
        if held and chance.random() < 0.45:
            grants.give_back(held.pop(chance.randrange(len(held))))
        else:
            asked, room = request(chance), grants.room
            grant = grants.take(asked)
            if grant is None:
                refused += 1
                assert fits(asked, room) is None
            else:
                held.append(grant)
                assert (grant.cpus, grant.mem) == (asked.cpus or 0, asked.mem or 0)
                assert len(grant.gpus) * UNIT == (asked.gpus or 0)
        assert sum(grant.cpus for grant in held) <= 16 * UNIT
        assert sum(grant.mem for grant in held) <= 64 * GIB
        taken = [gpu for grant in held for gpu in grant.gpus]
        assert len(taken) == len(set(taken)), "one has a neighbour"
    assert 1000 < refused < 9000, "too few tries were close to the limits"


def test_what_is_given_back_twice_is_free_once() -> None:
    grants = Grants(OFFER)
    first, second = (grants.take(Resources(gpus=2000)) for _ in range(2))
    assert first is not None
    assert second is not None
    grants.give_back(first)
    grants.give_back(first)
    assert len(grants.room.gpus) == 2
    assert grants.take(Resources(gpus=4000)) is None


def test_a_task_gets_one_part_of_a_card_at_most() -> None:
    parts = named_gpus(["MIG-1", "MIG-2"])
    assert fits(Resources(gpus=1000), FreeResources(0, 0, parts)) is not None
    assert fits(Resources(gpus=2000), FreeResources(0, 0, parts)) is None
    assert Offer(gpus=parts).misfit(Resources(gpus=2000), None) == "gpus=2"


@pytest.mark.parametrize(
    ("offer", "asked", "needs", "lacks"),
    [
        (OFFER, Resources(cpus=16_000, gpus=4000, mem=64 * GIB), ("eu",), ""),
        (OFFER, Resources(cpus=16_001, gpus=1000), None, "cpus=16.001"),
        (OFFER, Resources(gpus=5000, mem=128 * GIB), ("us", "eu"), "gpus=5 mem=128 GiB needs us"),
        (Offer(), Resources(cpus=1), None, "cpus=0.001"),
        (Offer(gpus=()), Resources(gpus=1000), None, "gpus=1"),
        (Offer(), None, ("eu",), "needs eu"),
        (Offer(tags=frozenset({"eu"})), None, ("eu",), ""),
        (Offer(), None, None, ""),
        (Offer(cpus=500, counts_slots=True), None, None, "cpus=1"),
        (Offer(cpus=1000, counts_slots=True), None, None, ""),
    ],
)
def test_what_fits_nowhere_here(
    offer: Offer, asked: Resources | None, needs: tuple[str, ...] | None, lacks: str
) -> None:
    assert offer.misfit(asked, needs) == lacks


def test_what_asks_for_no_processor_counts_as_one_where_slots_are_counted() -> None:
    assert OFFER.asked(None).cpus is None
    auto = Offer(cpus=2 * UNIT, counts_slots=True)
    assert auto.asked(None).cpus == UNIT
    assert auto.asked(Resources(cpus=500)).cpus == 500
    assert auto.asked(Resources(mem=GIB)) == Resources(cpus=UNIT, mem=GIB)


def test_what_a_task_finds_in_its_environment() -> None:
    grants = Grants(OFFER)
    grant = grants.take(Resources(cpus=2500, gpus=2000, mem=GIB))
    assert grant is not None
    found = variables(grant, OFFER, {})
    assert found == {
        "JOBQ_CPUS": "2.5",
        "JOBQ_GPUS": "2",
        "JOBQ_MEMORY": str(GIB),
        "OMP_NUM_THREADS": "2",
        "PYTHON_CPU_COUNT": "2",
        "CUDA_VISIBLE_DEVICES": "0,1",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    }
    own = {"OMP_NUM_THREADS": "7", "CUDA_VISIBLE_DEVICES": "3"}
    assert "OMP_NUM_THREADS" not in variables(grant, OFFER, own), "that is its own matter"
    assert variables(grant, OFFER, own)["CUDA_VISIBLE_DEVICES"] == "0,1"
    nothing = grants.take(Resources(cpus=100))
    assert nothing is not None
    assert variables(nothing, OFFER, {})["CUDA_VISIBLE_DEVICES"] == "", "who asked for none sees none"
    assert variables(nothing, OFFER, {})["OMP_NUM_THREADS"] == "1"
    assert variables(nothing, Offer(cpus=UNIT), {}).keys() == {"JOBQ_CPUS", "OMP_NUM_THREADS", "PYTHON_CPU_COUNT"}
    amd = Offer(gpus=(Gpu("0", "amd"),))
    card = Grants(amd).take(Resources(gpus=1000))
    assert card is not None
    assert variables(card, amd, {}) == {"JOBQ_GPUS": "1", "ROCR_VISIBLE_DEVICES": "0"}
