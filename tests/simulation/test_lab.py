"""The simulation itself: its runs break no rule, are the same in every process, and a share that saw little is void."""

import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from jobq.task import Task
from jobq_memory import MemoryBackend, Router
from tests.simulation.campaign import BUS_SHARE, SHARE, Floors, Totals, run_many
from tests.simulation.loop import Machine
from tests.simulation.rules.trace import Violation
from tests.simulation.shrink import shrink
from tests.simulation.stores import STORES

# The mutants of `tests.mutants` that are the simulation's to find are found by these.
SEEDS = (*range(1, 121), 144)
EMBEDDED_SEEDS = range(1, 41)
BUS_SEEDS = (*range(1, 41), 72, 79, 84, 214, 253)
ROOT = Path(__file__).parent.parent.parent


@pytest.mark.slow("runs dozens of seeds")
def test_no_rule_is_broken() -> None:
    totals = _run(SEEDS, "memory")
    least = Floors(seeds=120, steps=500_000, leases=3000, lease_hours=20.0, each_fault=3)
    assert not least.missed(totals)


@pytest.mark.check
@pytest.mark.slow("runs dozens of seeds")
def test_no_rule_is_broken_on_the_real_sql() -> None:
    totals = _run(range(1001, 1026), "sqlite")
    assert totals.leases > 600


@pytest.mark.slow("runs dozens of seeds")
def test_no_rule_is_broken_on_the_machine_of_the_store() -> None:
    """Rule 12: it is suspended and frozen, its clock is set, and nothing is excused, nor killed for it."""
    totals = _run(EMBEDDED_SEEDS, "embedded")
    struck = {"machine suspend", "machine freeze", "wall step"}
    assert {what for what in struck if totals.faults[what] >= 3} == struck


@pytest.mark.slow("runs dozens of seeds")
def test_no_rule_is_broken_by_the_copies_of_service_bus() -> None:
    """Two requests to go back, long polls that are given up, names that the broker drops."""
    totals = _run(BUS_SEEDS, "service-bus")
    assert {what for what in BUS_SHARE.counted if totals.counts[what]} == BUS_SHARE.counted.keys()


class _Forgetful(MemoryBackend):
    """A third party's, with a fault: of a push of several, the last is acknowledged and not kept."""

    async def push(self, tasks: Sequence[Task]) -> list[str]:
        await super().push(tasks[: max(1, len(tasks) - 1)])
        return [task.id for task in tasks]


@contextmanager
def forgetful(server: Machine) -> Iterator[MemoryBackend]:
    yield _Forgetful(Router(clock=server), "theirs")


@pytest.mark.check
@pytest.mark.slow("runs dozens of seeds")
def test_a_third_partys_backend_can_be_simulated() -> None:
    totals = run_many(range(1, 26), forgetful, processes=1, stop_at=lambda seen: bool(seen.failures))
    assert totals.failures[0].rule == "S1"


def _run(seeds: Collection[int], store: str) -> Totals:
    totals = run_many(seeds, STORES[store], processes=2, stop_at=lambda seen: bool(seen.failures))
    assert not totals.failures, "\n".join(
        f"make lab SEED={each.seed} STORE={store}: {each.rule}: {each.text}" for each in totals.failures
    )
    assert totals.seeds == len(seeds)
    return totals


def _replay(seed: int, hash_seed: int, *options: str) -> str:
    command = [sys.executable, "-m", "tests.simulation", "--replay", str(seed), *options]
    environment = {**os.environ, "PYTHONHASHSEED": str(hash_seed)}
    ended = subprocess.run(command, env=environment, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    return ended.stdout


@pytest.mark.check
@pytest.mark.parametrize(
    ("seed", "store"),
    [
        (5, "memory"),
        (12, "memory"),
        pytest.param(26, "memory", marks=pytest.mark.night),
        (40, "memory"),
    ]
    + [(seed, "service-bus") for seed in (4, 22, 32)],
)
def test_a_run_is_the_same_in_every_process(seed: int, store: str) -> None:
    """Byte by byte, whatever the order of sets is in a process."""
    assert _replay(seed, 1, "--store", store) == _replay(seed, 2, "--store", store)


def test_a_replay_shows_what_happened() -> None:
    shown = _replay(5, 0, "--trace")
    assert re.search(r"^\d+\.\d{6} leased t\d+ 0\.0\.1$", shown, re.MULTILINE)
    assert re.search(r"^seed 5: digest [0-9a-f]{32}, \d+ steps, \d+ blows$", shown, re.MULTILINE)


def test_a_share_that_saw_too_little_is_void() -> None:
    missed = SHARE.missed(Totals(seeds=2_000, steps=5_999_999, leases=50_000, lease_hours=500.0))
    assert missed[0] == "steps: 5,999,999 of 6,000,000"
    assert "worker kill: struck 0 times, 200 are asked for" in missed
    assert "complete refused: never" in missed


def test_a_share_of_service_bus_counts_only_with_what_is_its_own() -> None:
    missed = BUS_SHARE.missed(Totals(seeds=200, counts=Counter({"original beside its copy": 3})))
    assert "original beside its copy: 3, 80 are asked for" in missed
    assert "copy dropped by name: never, 20 are asked for" in missed
    assert not any("named leases" in line or "rotated" in line for line in missed)


def test_shrinking_keeps_the_blows_that_the_same_rule_needs() -> None:
    """Another rule that breaks meanwhile is not what is looked for."""

    def run(skip: frozenset[int]) -> Violation | None:
        if {3, 17} & skip:
            return Violation("S1", "another fault") if 4 in skip else None
        return Violation("P1", f"without {len(skip)}")

    found = shrink(25, Violation("P1", "whole"), run)
    assert found.kept == (3, 17)
    assert found.violation == Violation("P1", "without 23")
