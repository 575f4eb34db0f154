"""Mutants of the embedded queue's file: whose time it is on, who holds its lock; see `bank`."""

from typing import Final

from tests.mutants.mutant import Mutant

_HOST: Final = "tests/sqlite/test_host.py::"

SQLITE_FILE: Final[tuple[Mutant, ...]] = (
    Mutant(
        name="each process of a new boot reckons the former's time for itself",
        file="backends/jobq_sqlite/file_clock.py",
        text="elif self._was_ours and database",
        wrong="elif database",
        test=f"{_HOST}test_s3_all_processes_of_a_new_boot_count_its_leases_alike",
    ),
    Mutant(
        name="leases are not moved to the new boot's time",
        file="backends/jobq_sqlite/file_clock.py",
        text="                database.execute(move, (self._ahead,))",
        wrong="                pass",
        test=f"{_HOST}test_whoever_is_first_of_a_boot_names_it_and_a_named_lease_keeps_what_is_left_of_it",
    ),
    Mutant(
        name="a clone takes the file back from under the other's leases",
        file="backends/jobq_sqlite/file_clock.py",
        text="elif self._was_ours and database",
        wrong="elif False and database",
        test=f"{_HOST}test_a_machine_with_the_same_id_leaves_the_leases_of_the_other_alone",
    ),
    Mutant(
        name="a named lease outlives a reboot by as far as the clock was set back",
        file="backends/jobq_sqlite/file_clock.py",
        text=", latest_boottime or 0.0)",
        wrong=", 0.0)",
        test=f"{_HOST}test_whoever_is_first_of_a_boot_names_it_and_a_named_lease_keeps_what_is_left_of_it",
    ),
)
