"""The report says what was recorded, failures first of all."""

import json
from collections import Counter
from typing import Any

import pytest

from tests.reliability.parts import PARTS
from tests.reliability.report import report
from tests.simulation.campaign import BrokenRun, Totals


def _record(part: str, figures: Any, exit_code: int = 0) -> dict[str, Any]:
    return {
        "part": part,
        "command": f"python -m {part}",
        "commit": "abc1234",
        "date": "2026-11-23 02:00 UTC",
        "machine": "2 cores",
        "seconds": 90,
        "exit_code": exit_code,
        "figures": figures,
    }


def _simulated(**changes: Any) -> dict[str, Any]:
    totals = Totals(seeds=250_000, steps=10**9, faults=Counter({"worker kill": 4650}), **changes)
    return dict(json.loads(json.dumps(totals.figures())))


def test_a_part_that_was_not_run_is_told_as_that() -> None:
    assert report([]).count("Not run yet.") == len(PARTS)


def test_runs_that_broke_a_rule_are_shown_with_their_seeds() -> None:
    shown = report([_record("simulation", _simulated(failures=[BrokenRun(17, "P1", "t1 | lives")]), exit_code=1)])
    assert "**It ended with 1.**" in shown
    assert "| runs that broke a rule | 1 |" in shown
    assert "| worker kill | 4,650 |" in shown
    assert "| 17 | P1 | t1 \\| lives |" in shown


def test_figures_of_any_part_are_shown() -> None:
    figures = {
        "states": 1040612,
        "seconds": 25.3,
        "holds": True,
        "removed": [{"rule": "1", "steps": 8}],
        "seen": {"a": 1},
    }
    shown = report([_record("models", figures)])
    for line in ("| states | 1,040,612 |", "| seconds | 25.30 |", "| holds | yes |", "| 1 | 8 |", "| a | 1 |"):
        assert line in shown


@pytest.mark.parametrize("part", ["simulation", "crash"])
def test_a_part_that_died_left_no_figures(part: str) -> None:
    shown = report([_record(part, {}, exit_code=-9)])
    assert "**It ended with -9.**" in shown
    assert "It left no figures." in shown
