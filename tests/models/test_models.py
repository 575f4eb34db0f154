"""All states of small models: the rules hold in each, and without any one of them a short run shows what it is for."""

import json
from typing import Any

import pytest

from tests.models.__main__ import main
from tests.models.cases import CASES
from tests.models.search import Case, search

_MOST_STEPS = 20  # of a counter-example: a person reads it


@pytest.mark.slow("searches every state of a model")
@pytest.mark.check
@pytest.mark.timeout(300)  # of wall time: the largest takes 20 s of a core, which others may want too
@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=pytest.mark.night if case.is_long else (), id=case.name) for case in CASES],
)
def test_each_model_holds_or_breaks_as_it_must(case: Case[Any]) -> None:
    found = search(case.model, case.most)
    assert not case.verdict(found), "\n".join([found.broken, *found.run])
    assert len(found.run) <= _MOST_STEPS
    print(f"{case.name}: {found.states} states, {found.seconds:.1f} s, {found.broken or 'holds'}")


class Counter:
    """Counts to three, and may not."""

    def __init__(self, allowed: int) -> None:
        self.allowed = allowed

    def first(self) -> int:
        return 0

    def following(self, state: int) -> list[tuple[str, int]]:
        return [("one more", state + 1)] if state < 3 else []

    def broken(self, state: int) -> str:
        return "S1: too many" if state > self.allowed else ""

    def told(self, state: int) -> str:
        return str(state)


def test_a_search_tells_the_shortest_run_to_what_is_broken() -> None:
    found = search(Counter(allowed=1))
    assert (found.broken, found.run) == ("S1: too many", ("one more  [1]", "one more  [2]"))
    assert not Case("counts", Counter(allowed=1), breaks="S1").verdict(found)
    assert Case("counts", Counter(allowed=1)).verdict(found) == "S1: too many"


def test_a_search_that_saw_too_little_does_not_pass() -> None:
    found = search(Counter(allowed=3))
    assert (found.states, found.is_complete) == (4, True)
    assert not Case("counts", Counter(3), least=4).verdict(found)
    assert "5 were expected" in Case("counts", Counter(3), least=5).verdict(found)
    assert "it holds" in Case("counts", Counter(3), breaks="S1").verdict(found)
    assert "not all states" in Case("counts", Counter(3)).verdict(search(Counter(3), 2))


def test_the_figures_are_told_as_lines_and_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["copies named by id"]) == 0
    assert "copies named by id: " in capsys.readouterr().out
    assert main(["--json", "--quick", "copies, starts"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["searches"][0]["came"] == "S7: 4 starts, 3 were allowed"
    assert figures["counter_examples"][0]["run"].startswith("a is pushed; #1 a starts; #1 fails; ")
    assert figures["wrong"] == 0
