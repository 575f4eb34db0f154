"""Mutants of the embedded queue's file: whose time it is on, who holds its lock; see `bank`."""

from typing import Final

from tests.mutants.mutant import Mutant

_STOPS: Final = "tests/sqlite/test_stops.py::test_s11_a_ctrl_z_within_a_transaction_acts_after_its_end"
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
    Mutant(
        name="a Ctrl-Z stops a short command within its transaction",
        file="backends/jobq_sqlite/stops.py",
        text="signal.pthread_sigmask(signal.SIG_BLOCK, _STOP)",
        wrong="signal.pthread_sigmask(signal.SIG_BLOCK, ())",
        test=_STOPS,
    ),
    Mutant(
        name="a Ctrl-Z does not wait for the thread that writes",
        file="backends/jobq_sqlite/stops.py",
        text="    _threaded.add(work)\n",
        wrong="",
        test=_STOPS,
    ),
    Mutant(
        name="a worker that was stopped with the lock keeps it",
        file="jobq/run/guardian/child_worker.py",
        text="if was_held_up and self._was_held_up:",
        wrong="if was_held_up and not self._was_held_up:",
        test="tests/guardian/test_held_up.py::test_s11_a_worker_that_is_stopped_with_the_lock_is_continued",
    ),
    Mutant(
        name="a worker that was stopped without a lock is continued",
        file="jobq/run/guardian/system.py",
        text="held_up.is_stopped(pid) and held_up.holds_lock(pid)",
        wrong="held_up.is_stopped(pid)",
        test="tests/guardian/test_held_up.py::test_a_worker_that_is_stopped_without_it_stays_so",
    ),
)
