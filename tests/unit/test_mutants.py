"""The bank of mutants follows the code: `python -m tests.mutants` replays it, which takes minutes."""

import ast
import json

import pytest

from tests.mutants.__main__ import ROOT, RUNS, SEEDS
from tests.mutants.bank import BANK
from tests.mutants.mutant import Mutant


@pytest.mark.parametrize("mutant", BANK, ids=lambda mutant: mutant.name)
def test_each_mutant_can_be_made_and_names_a_test(mutant: Mutant) -> None:
    right = (ROOT / mutant.file).read_text()
    assert right.count(mutant.text) == 1
    if mutant.file.endswith(".py"):
        ast.parse(right.replace(mutant.text, mutant.wrong))
    path, _, test = mutant.test.partition("::")
    tests = {each.name for each in ast.walk(ast.parse((ROOT / path).read_text())) if hasattr(each, "name")}
    assert not test or test.partition("[")[0] in tests


def test_each_mutant_has_a_name_of_its_own() -> None:
    assert len({mutant.name for mutant in BANK}) == len(BANK)


def test_each_seed_that_is_run_first_is_one_that_the_test_runs() -> None:
    """Else a mutant could be caught by what its test would let pass."""
    seeds = json.loads(SEEDS.read_text())
    tests = {mutant.name: mutant.test for mutant in BANK}
    assert {name for name, seed in seeds.items() if seed not in RUNS[tests[name]][1]} == set()
