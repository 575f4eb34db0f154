"""What a seed decides, what makes a campaign void, and what the command line says."""

import json
import random
from collections import Counter
from itertools import islice
from pathlib import Path

import pytest

from tests.chaos import __main__ as command
from tests.chaos.blows import PARTITIONS, Kind, Struck, deck
from tests.chaos.campaign import Outcome, Plan
from tests.chaos.checker import Evidence
from tests.chaos.history import History
from tests.chaos.record import of_campaign, table
from tests.chaos.stores import STORES

HAND_WITH_NETWORK = 11


def test_one_seed_is_one_menu(tmp_path: Path) -> None:
    store = STORES["service"](tmp_path)
    store.port = 1
    first, again, other = (list(islice(deck(store, random.Random(seed)), 50)) for seed in (7, 7, 8))
    assert first == again != other


def test_every_hand_has_each_class_and_two_hands_all_partitions(tmp_path: Path) -> None:
    store = STORES["service"](tmp_path)
    store.port = 1
    hands = Counter(islice(deck(store, random.Random(7)), 2 * HAND_WITH_NETWORK))
    assert set(PARTITIONS) <= set(hands)
    assert (hands[Kind.KILL_WORKER], hands[Kind.KILL_GUARDIAN], hands[Kind.ONE_VERB]) == (4, 2, 4)


def test_a_store_without_a_network_is_not_cut_off(tmp_path: Path) -> None:
    kinds = set(islice(deck(STORES["sqlite"](tmp_path), random.Random(7)), 50))
    assert not kinds & {*PARTITIONS, Kind.KILL_BROKER}


def test_a_blow_that_struck_nothing_is_not_counted_and_below_its_floors_a_campaign_is_void() -> None:
    blows = [Struck(Kind.KILL_WORKER, 0.0, 1, has_struck=number < 2) for number in range(5)]
    outcome = Outcome(Evidence(History(), {}, {}, {}), blows, clock_stepped=0.0, seconds=1.0)
    record = of_campaign(STORES["sqlite"], Plan(30, 7), outcome)
    assert record["figures"]["kill worker"] == 2
    assert record["blows"] == [{"blow": "kill worker", "struck": 2, "missed": 3}]
    assert record["violations"] == []
    assert {text.partition(":")[0] for text in record["void"]} == {
        *("starts", "kill guardian", "stops longer than the lease", "pairs")
    }
    assert any("VOID" in line for line in table(record))


def test_a_wall_clock_that_was_set_makes_a_campaign_void() -> None:
    outcome = Outcome(Evidence(History(), {}, {}, {}), [], clock_stepped=-0.5, seconds=1.0)
    record = of_campaign(STORES["sqlite"], Plan(30, 7), outcome)
    assert any("wall clock" in text for text in record["void"])


@pytest.mark.parametrize(
    "words", [["--store", "redis"], ["--seconds", "0"], ["--seconds", "nan"], ["--older", "no-such"], ["--nonsense"]]
)
def test_wrong_usage(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        command.main(words)
    assert "usage: python -m tests.chaos" in capsys.readouterr().err


def test_a_store_without_a_network_is_not_partitioned(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--only", "partitions", "--store", "sqlite"]) == 2
    assert "has no network" in capsys.readouterr().err


def test_help_has_examples_and_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        command.main(["--help"])
    told = capsys.readouterr().out
    assert "examples:" in told
    assert "3 void" in told


@pytest.mark.parametrize(
    ("violations", "void", "code"),
    [([], [], 0), (["lost: a"], [], 1), ([], ["starts: 0 of at least 1"], 3), (["lost: a"], ["starts: 0"], 1)],
)
def test_void_is_not_passed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, violations: list[str], void: list[str], code: int
) -> None:
    record = {"test": "T6", "killed": {}, "failing": {"survivors": 0}, "violations": violations, "void": void}
    monkeypatch.setattr(command, "_records", lambda *_: [record])
    assert command.main(["--store", "sqlite", "--json", str(tmp_path / "out")]) == code
    assert (tmp_path / "out").read_text().count("\n") == 1


def test_the_record_can_be_the_last_line_for_whoever_keeps_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    record = {"test": "T6", "killed": {}, "failing": {"survivors": 0}, "violations": [], "void": []}
    monkeypatch.setattr(command, "_records", lambda *_: [record])
    assert command.main(["--only", "trees", "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == record
