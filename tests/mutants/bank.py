"""The mutants: texts of the product replaced by wrong ones, each with the tests that must fail under it.

Each stands for a fault that tests once let pass, or for a line on which a rule of RELIABILITY.md rests. When the text
is gone, `tests/unit/test_mutants.py` fails: a mutant follows the code that it wrongs.
"""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Mutant:
    """One fault.

    Attributes:
        name: what goes wrong, in a few words.
        file: below the project.
        text: stands in the file exactly once.
        wrong: what replaces it.
        test: what must fail, as pytest names it.
    """

    name: str
    file: str
    text: str
    wrong: str
    test: str


BANK: Final[tuple[Mutant, ...]] = ()
