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


BANK: Final[tuple[Mutant, ...]] = (
    Mutant(
        "a killer's last attempt has neighbours",
        "jobq/run/attempt/retry.py",
        "return crashes > 0 and crashes == task.budgets.crashes",
        "return False",
        "tests/simulation/test_neighbours.py::test_s11_a_killer_takes_none_of_its_neighbours_with_it",
    ),
    Mutant(
        "every task that has crashed runs alone",
        "jobq/run/attempt/retry.py",
        "return crashes > 0 and crashes == task.budgets.crashes",
        "return crashes > 0",
        "tests/simulation/test_neighbours.py::test_throughput_where_machines_vanish_each_minute",
    ),
    Mutant(
        "what waits for room is charged",
        "jobq/run/attempt/supervisor.py",
        "Requeue(task.requeued(), neighbours.delay",
        "Requeue(task.requeued(ends=0), neighbours.delay",
        "tests/simulation/test_neighbours.py::test_s11_a_killer_takes_none_of_its_neighbours_with_it",
    ),
    Mutant(
        "room is made all the time",
        "jobq/run/neighbours.py",
        "if times < PATIENT or now < self._next_turn:",
        "if times < PATIENT:",
        "tests/simulation/test_neighbours.py::test_room_has_its_share_of_a_workers_time",
    ),
    Mutant(
        "no room is ever made",
        "jobq/run/neighbours.py",
        "if times < PATIENT or now < self._next_turn:",
        "if True:",
        "tests/simulation/test_neighbours.py::test_l1_room_is_made_in_a_queue_that_is_never_empty",
    ),
    Mutant(
        "something is taken beside what runs alone",
        "jobq/run/worker/worker.py",
        "elif self._alone is not None:",
        "elif False:",
        "tests/simulation/test_neighbours.py::test_l1_room_is_made_in_a_queue_that_is_never_empty",
    ),
)
