"""One mutant: a text of the product that is replaced by a wrong one, and the test that must fail under it."""

from dataclasses import dataclass


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
