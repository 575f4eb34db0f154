"""The bank of mutants follows the code: `make mutants` replays it, which takes minutes."""

import ast

import pytest

from tests.mutants.__main__ import ROOT
from tests.mutants.bank import BANK
from tests.mutants.mutant import Mutant


@pytest.mark.parametrize("mutant", BANK, ids=lambda mutant: mutant.name)
def test_each_mutant_can_be_made_and_names_a_test(mutant: Mutant) -> None:
    right = (ROOT / mutant.file).read_text()
    assert right.count(mutant.text) == 1
    ast.parse(right.replace(mutant.text, mutant.wrong))
    path, _, test = mutant.test.partition("::")
    tests = {each.name for each in ast.walk(ast.parse((ROOT / path).read_text())) if hasattr(each, "name")}
    assert not test or test.partition("[")[0] in tests


def test_each_mutant_has_a_name_of_its_own() -> None:
    assert len({mutant.name for mutant in BANK}) == len(BANK)
