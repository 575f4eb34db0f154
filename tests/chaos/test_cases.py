"""P1 to P3: named blows to a worker's processes, one and two at once, through the real command line."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from jobq.run.spawn.containment import try_here
from tests.chaos.cases import strike
from tests.chaos.checker import Rule, check
from tests.chaos.processes import PAIRS, SINGLES, Blow, Case

pytestmark = pytest.mark.check

AT_ONCE = 6
SOAK_ROUNDS = 5
NAMED_PAIRS: list[Case] = [
    (Blow("kill", "worker"), Blow("kill", "guardian")),
    (Blow("kill", "guardian"), Blow("kill", "worker")),
    (Blow("stop", "worker"), Blow("kill", "guardian")),
    (Blow("kill", "guardian"), Blow("stop", "worker")),
    (Blow("stop", "guardian"), Blow("kill", "worker")),
    (Blow("kill", "worker"), Blow("stop", "guardian")),
    (Blow("stop", "worker"), Blow("stop", "guardian")),
    (Blow("stop and continue", "guardian"), Blow("stop", "worker")),
    (Blow("starve", "guardian"), Blow("kill", "worker")),
    (Blow("starve", "worker"), Blow("stop", "guardian")),
    (Blow("stop", "leader"), Blow("kill", "guardian")),
    (Blow("kill", "leader"), Blow("kill", "guardian")),
]
# Only a control group closes these, but for the first.
OUTERMOST: list[Case] = [
    (Blow("kill", "watcher"),),
    (Blow("kill", "watcher"), Blow("kill", "guardian")),
    (Blow("kill", "guardian"), Blow("kill", "watcher")),
    (Blow("stop", "watcher"), Blow("kill", "guardian")),
    (Blow("kill", "guardian"), Blow("kill", "worker"), Blow("kill", "watcher")),
]


def batches(cases: Sequence[Case]) -> list[Sequence[Case]]:
    return [cases[start : start + AT_ONCE] for start in range(0, len(cases), AT_ONCE)]


@pytest.mark.timeout(120)
@pytest.mark.parametrize("cases", batches([*SINGLES, *NAMED_PAIRS]), ids=lambda cases: f"from {cases[0][0]}")
async def test_no_tree_outlives_its_lease(tmp_path: Path, cases: Sequence[Case]) -> None:
    assert check(await strike(tmp_path, cases)) == []


@pytest.mark.timeout(120)
async def test_no_tree_outlives_the_watcher_and_the_guardian(tmp_path: Path) -> None:
    in_use = try_here("cgroup", is_guarded=True)
    if in_use.kind != "cgroup":
        pytest.skip(in_use.why)
    assert check(await strike(tmp_path, OUTERMOST, JOBQ_CONTAINMENT="cgroup")) == []


async def test_a_tree_that_outlives_its_lease_is_found(tmp_path: Path) -> None:
    """Without a control group nobody is left who could kill a process that hides (docs/guarantees.md, stated gaps)."""
    cases = [(Blow("kill", "watcher"), Blow("kill", "guardian"))]
    found = {each.rule for each in check(await strike(tmp_path, cases, JOBQ_CONTAINMENT="off"))}
    assert found == {Rule.OVERLAP, Rule.OUTLIVED, Rule.LEFT}


@pytest.mark.night("each pair of blows, five times")
@pytest.mark.timeout(0)
async def test_the_whole_matrix(tmp_path: Path) -> None:
    found = [
        (turn, batch, check(await strike(tmp_path / f"{turn}.{number}", batch)))
        for turn in range(SOAK_ROUNDS)
        for number, batch in enumerate(batches([*SINGLES, *PAIRS]))
    ]
    assert [each for each in found if each[2]] == []
