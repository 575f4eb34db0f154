"""The checker finds each forgery: a clean history passes, and one that breaks one rule is found by that rule alone."""

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from tests.chaos.checker import Evidence, Interruption, Rule, check, counts, margins
from tests.chaos.history import History
from tests.chaos.store_truth import Attempt, Lease
from tests.chaos.task_program import BEAT_SECONDS

GUARDIAN, OTHER = 100, 200
LEASE_SECONDS = 5.0


@dataclass
class Forgery:
    """A campaign that never was: `a` was interrupted once, `b` failed once as planned, `c` is dead, `d` canceled."""

    lines: list[str] = field(default_factory=list)
    leases: dict[Attempt, Lease] = field(default_factory=dict)
    ends: dict[str, list[str]] = field(default_factory=dict)
    acknowledged: dict[str, int] = field(default_factory=dict)
    unknown: dict[str, int] = field(default_factory=dict)
    blows: list[Interruption] = field(default_factory=list)
    left: int = 0
    ended_unasked: int = 0

    def lived(
        self, task: str, number: int, first: float, last: float, *settled: str, keeper: int = GUARDIAN, token: str = ""
    ) -> None:
        """Forge one attempt with a leader and a child, and its lease: settled a little later, or left to expire."""
        token = token or f"0.0.{number}"
        for pid in (number * 10, number * 10 + 1):
            what = "child" if pid % 10 else "start"
            self.lines.append(f"{task} {token} {pid} {int(first * 1e9)} {what} {keeper}\n")
            self.lines.append(f"{task} {token} {pid} {int(last * 1e9)} beat {keeper}\n")
        ended = last + 0.1 if settled else None
        self.leases[Attempt(task, number)] = Lease([first + LEASE_SECONDS, last + 2.0], list(settled), ended)

    def found(self) -> set[Rule]:
        return {violation.rule for violation in check(self.evidence())}

    def evidence(self) -> Evidence:
        return Evidence(
            history=History.read(self.lines),
            leases=self.leases,
            ends=self.ends,
            acknowledged=self.acknowledged,
            unknown=self.unknown,
            interruptions=self.blows,
            lease_seconds=LEASE_SECONDS,
            left=self.left,
            ended_unasked=self.ended_unasked,
        )


@pytest.fixture
def forgery() -> Forgery:
    made = Forgery()
    made.lived("a", 1, 10.0, 14.0)
    made.lived("a", 2, 17.0, 18.0, "done", keeper=OTHER)
    made.lived("b", 1, 100.0, 101.0, "ready")
    made.lived("b", 2, 102.0, 103.0, "done")
    made.lived("c", 1, 104.0, 105.0, "dead")
    made.acknowledged = {"a": 1, "b": 2, "c": 1, "d": 1}
    made.ends = {"a": ["done"], "b": ["done"], "c": ["dead"], "d": ["canceled"]}
    made.blows = [Interruption("blackhole", GUARDIAN, 12.0, 20.0, has_margin=True)]
    return made


def test_a_clean_campaign_passes(forgery: Forgery) -> None:
    assert check(forgery.evidence()) == []
    assert set(counts([]).values()) == {0}


def overlapping(made: Forgery) -> None:
    made.lines.append(f"a 0.0.1 99 {int(17.5e9)} beat {GUARDIAN}\n")
    made.leases[Attempt("a", 1)].expiries.append(30.0)


def overlapping_all_but_the_next(made: Forgery) -> None:
    """The first lives on beside the third; the second was short."""
    made.lines.append(f"b 0.0.1 99 {int(103.5e9)} beat {GUARDIAN}\n")
    made.leases[Attempt("b", 1)] = Lease([130.0], ["ready"], 125.0)
    made.blows.append(Interruption("kill worker", GUARDIAN, 100.0, 101.0))
    made.lived("b", 3, 103.4, 103.6, "done")


def outliving_its_expiry(made: Forgery) -> None:
    made.leases[Attempt("a", 1)] = Lease([13.9])


def outliving_its_settlement(made: Forgery) -> None:
    made.leases[Attempt("b", 2)].ended = 102.9


def outliving_what_was_taken_back(made: Forgery) -> None:
    """Not settled: the store heard that nothing of it lived."""
    made.leases[Attempt("a", 1)].ended = 13.0


def repeating_a_number(made: Forgery) -> None:
    made.lines.append(f"b 0.0.2 98 {int(102.5e9)} start {GUARDIAN}\n")
    made.acknowledged["b"] = 3


def repeating_part_of_a_number(made: Forgery) -> None:
    made.lines.append(f"b 1.0.2 98 {int(102.5e9)} beat {GUARDIAN}\n")


def falling_number(made: Forgery) -> None:
    made.lived("c", 2, 90.0, 91.0, "ready")
    made.acknowledged["c"] = 2


def falling_number_by_its_first_part(made: Forgery) -> None:
    """As text 10.0.1 is below 9.0.2; as numbers it is not."""
    made.lived("e", 1, 50.0, 51.0, "ready", token="10.0.1")
    made.lived("e", 2, 52.0, 53.0, "done", token="9.0.2")
    made.acknowledged["e"], made.ends["e"] = 2, ["done"]


def unleased(made: Forgery) -> None:
    del made.leases[Attempt("c", 1)]


def settled_twice(made: Forgery) -> None:
    made.leases[Attempt("c", 1)].settlements.append("dead")


def lost(made: Forgery) -> None:
    del made.ends["d"]


def not_ended(made: Forgery) -> None:
    made.ends["a"] = ["leased"]


def two_ends(made: Forgery) -> None:
    made.ends["b"] = ["done", "dead"]


def ended_from_nowhere(made: Forgery) -> None:
    made.ends["z"] = ["done"]


def ran_from_nowhere(made: Forgery) -> None:
    made.acknowledged["y"], made.ends["y"] = 1, ["done"]
    made.lived("y", 1, 60.0, 61.0, "done")
    del made.acknowledged["y"], made.ends["y"]
    made.blows.append(Interruption("kill worker", GUARDIAN, 60.0, 61.0))


def starting_without_a_reason(made: Forgery) -> None:
    made.blows.clear()


def starting_after_anothers_blow(made: Forgery) -> None:
    made.blows = [Interruption("kill worker", 300, 12.0, 20.0)]


def starting_after_a_blow_that_was_over(made: Forgery) -> None:
    made.lived("c", 2, 106.0, 107.0, "dead")


def left(made: Forgery) -> None:
    made.left = 1


def ended_unasked(made: Forgery) -> None:
    made.ended_unasked = 1


def torn(made: Forgery) -> None:
    made.lines.append("a 0.0.2 4")


def clock_going_back(made: Forgery) -> None:
    made.lines.append(f"c 0.0.1 10 {int(104.5e9)} beat {GUARDIAN}\n")


def without_a_start(made: Forgery) -> None:
    made.lines = [line for line in made.lines if not line.startswith("c 0.0.1 10 ")]


FORGERIES: list[tuple[Callable[[Forgery], None], Rule]] = [
    (overlapping, Rule.OVERLAP),
    (overlapping_all_but_the_next, Rule.OVERLAP),
    (outliving_its_expiry, Rule.OUTLIVED),
    (outliving_its_settlement, Rule.OUTLIVED),
    (outliving_what_was_taken_back, Rule.OUTLIVED),
    (repeating_a_number, Rule.REPEATED),
    (repeating_part_of_a_number, Rule.REPEATED),
    (falling_number, Rule.FALLING),
    (falling_number_by_its_first_part, Rule.FALLING),
    (unleased, Rule.UNLEASED),
    (settled_twice, Rule.SETTLED_TWICE),
    (lost, Rule.LOST),
    (not_ended, Rule.LOST),
    (two_ends, Rule.TWO_ENDS),
    (ended_from_nowhere, Rule.NOWHERE),
    (ran_from_nowhere, Rule.NOWHERE),
    (starting_without_a_reason, Rule.STARTS),
    (starting_after_anothers_blow, Rule.STARTS),
    (starting_after_a_blow_that_was_over, Rule.STARTS),
    (left, Rule.LEFT),
    (ended_unasked, Rule.WORKER_ENDED),
    (torn, Rule.SPOILT),
    (clock_going_back, Rule.SPOILT),
    (without_a_start, Rule.SPOILT),
]


@pytest.mark.parametrize(("forge", "rule"), FORGERIES, ids=lambda each: getattr(each, "__name__", None))
def test_each_forgery_is_found_by_its_rule_alone(
    forgery: Forgery, forge: Callable[[Forgery], None], rule: Rule
) -> None:
    forge(forgery)
    assert forgery.found() == {rule}


def test_every_rule_has_a_forgery() -> None:
    assert {rule for _, rule in FORGERIES} == set(Rule)


def test_a_push_that_is_unknown_may_have_been_done_or_not(forgery: Forgery) -> None:
    forgery.unknown = {"u": 1, "v": 1}
    forgery.ends["u"] = ["done"]
    forgery.lived("u", 1, 60.0, 61.0, "done")
    assert forgery.found() == set()


def test_a_completion_whose_answer_was_lost_explains_another_start(forgery: Forgery) -> None:
    """It ended before the blow, and the store had not heard of it when the blow fell."""
    forgery.lived("c", 2, 110.0, 110.5, "dead")
    forgery.leases[Attempt("c", 1)] = Lease([109.0])
    forgery.blows.append(Interruption("answers lost", GUARDIAN, 105.2, 108.0))
    assert forgery.found() == set()


def test_margins_are_of_trees_that_a_blow_cost_their_lease(forgery: Forgery) -> None:
    forgery.blows.append(Interruption("kill worker", GUARDIAN, 104.5, 105.5))
    forgery.leases[Attempt("c", 1)] = Lease([109.0])
    assert margins(forgery.evidence()) == {"blackhole": [pytest.approx(2.0 - BEAT_SECONDS)]}


@pytest.mark.parametrize("what", ["ended by itself", "killed as well", "killed before", "settled"])
def test_no_margin_is_taken_where_a_blow_did_not_cost_the_lease(forgery: Forgery, what: str) -> None:
    match what:
        case "ended by itself":
            forgery.lines.append(f"a 0.0.1 10 {int(14e9)} end {GUARDIAN}\n")
        case "killed as well":
            forgery.blows.append(Interruption("kill broker", None, 13.0, 15.0))
        case "killed before":
            forgery.blows[0] = Interruption("blackhole", GUARDIAN, 14.5, 20.0, has_margin=True)
        case "settled":
            forgery.leases[Attempt("a", 1)].settlements.append("ready")
    assert margins(forgery.evidence()) == {}
