"""P1, S3: real workers under real faults. Each task records its own life; two trees of one never live at once.

The margin of a fault is the expiry of the lease, as the store committed it, less the moment at which this program saw
the last process of the tree dead, both on CLOCK_BOOTTIME: the true margin is a little larger, never smaller.
"""

import os
import secrets
from pathlib import Path

import pytest

from tests.overlap import verdict
from tests.overlap.blows import COSTLY, Kind
from tests.overlap.campaign import Campaign, Record, Scale

pytestmark = pytest.mark.check

FLOOR = 200  # of the issue: faults that cost a living tree its lease
SEED = int(os.environ.get("OVERLAP_SEED", "0")) or secrets.randbelow(2**31)
SOAK_FAULTS = int(os.environ.get("OVERLAP_FAULTS", "2000"))


def plan(costly: int, other: int) -> dict[Kind, int]:
    return {kind: costly if kind in COSTLY else other for kind in Kind}


def told(record: Record, seed: int, capsys: pytest.CaptureFixture[str]) -> None:
    with capsys.disabled():
        print(f"\nseed {seed}", *verdict.table(record), sep="\n")


@pytest.mark.night("statistics of many faults: 43 s")
@pytest.mark.timeout(300)
async def test_p1_no_two_trees_of_a_task_live_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scale = Scale(plan=plan(26, 3), workers=13, slots=2, tasks=21, seconds=150)
    record = await Campaign(tmp_path, scale, SEED).run()
    told(record, SEED, capsys)
    assert verdict.violations(record, scale.plan, FLOOR) == [], f"OVERLAP_SEED={SEED}"


def test_a_run_with_too_few_faults_is_void() -> None:
    nothing = Record(blows=[], trees={}, leases={}, states={}, left_alive=[], stamps={})
    found = verdict.violations(nothing, {Kind.REFUSED: 1}, FLOOR)
    assert len(found) == 2
    assert all(text.startswith("void") for text in found)


@pytest.mark.night
@pytest.mark.timeout(0)
async def test_p1_soak(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    each = -(-SOAK_FAULTS // len(COSTLY))
    scale = Scale(plan=plan(each, each // 4), workers=13, slots=2, tasks=21, seconds=3 * SOAK_FAULTS)
    record = await Campaign(tmp_path, scale, SEED).run()
    told(record, SEED, capsys)
    assert verdict.violations(record, scale.plan, SOAK_FAULTS) == [], f"OVERLAP_SEED={SEED}"


@pytest.mark.parametrize(
    ("rule", "kind"), [("hold-beyond-the-lease", Kind.REFUSED), ("no-guardian", Kind.STOPPED)], ids=["hold", "guardian"]
)
async def test_a_broken_rule_is_found(tmp_path: Path, rule: str, kind: Kind) -> None:
    """The campaign would notice: a tree that is held beyond its lease meets its successor."""
    scale = Scale(plan={kind: 1}, workers=2, slots=1, tasks=1, seconds=3)
    record = await Campaign(tmp_path, scale, SEED, rule).run()
    found = verdict.violations(record, scale.plan, 1)
    assert any(text.startswith("overlap") for text in found), found
    assert any(text.startswith("outlived") for text in found), found
    assert all(margin.true[0] < 0 for margin in verdict.margins(record).values())
