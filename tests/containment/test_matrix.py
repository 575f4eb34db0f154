"""P1 to P3: the matrix of blows to a worker's processes, through the real command line, on trees of three kinds."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from jobq.run.spawn.containment import try_here
from tests.containment.blows import Blow, Case
from tests.containment.matrix import PAIRS, SINGLES, Outcome, strike

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
FAST = [*SINGLES, *NAMED_PAIRS]
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
@pytest.mark.parametrize(
    "cases", batches(FAST), ids=lambda cases: f"from {cases[0][0]}" if len(cases[0]) == 1 else None
)
def test_no_tree_outlives_its_lease(tmp_path: Path, cases: Sequence[Case], capsys: pytest.CaptureFixture[str]) -> None:
    outcomes = strike(tmp_path / "queue", cases)
    with capsys.disabled():
        print("", *outcomes, sep="\n")
    assert [str(outcome) for outcome in outcomes if not outcome.is_good] == []


@pytest.mark.timeout(120)
def test_no_tree_outlives_the_watcher_and_the_guardian(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    in_use = try_here("cgroup", is_guarded=True)
    if in_use.kind != "cgroup":
        pytest.skip(in_use.why)
    outcomes = strike(tmp_path / "queue", OUTERMOST, JOBQ_CONTAINMENT="cgroup")
    with capsys.disabled():
        print("", *outcomes, sep="\n")
    assert [str(outcome) for outcome in outcomes if not outcome.is_good] == []


@pytest.mark.night
@pytest.mark.timeout(0)
def test_the_whole_matrix(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cases, bad, runs = [*SINGLES, *PAIRS], list[Outcome](), 0
    for turn in range(SOAK_ROUNDS):
        for number, batch in enumerate(batches(cases)):
            outcomes = strike(tmp_path / f"{turn}.{number}", batch)
            runs += len(outcomes)
            bad += [outcome for outcome in outcomes if not outcome.is_good]
            with capsys.disabled():
                print("", *outcomes, sep="\n")
    with capsys.disabled():
        print(f"\n{runs} runs of {len(cases)} cases, {len(bad)} bad")
    assert [str(outcome) for outcome in bad] == []
