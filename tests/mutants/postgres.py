"""Mutants of PostgreSQL's statements: what waits for whom, and what a claim brings; see `bank`."""

from typing import Final

from tests.mutants.mutant import Mutant

_GROUPS: Final = "tests/postgres/test_groups.py::"
_SHAPES: Final = "tests/postgres/test_shapes.py::"

POSTGRES: Final[tuple[Mutant, ...]] = (
    Mutant(
        name="a renewal waits for rows that another session holds (PostgreSQL)",
        file="backends/jobq_postgres/settle.py",
        text="FOR NO KEY UPDATE OF task SKIP LOCKED",
        wrong="FOR NO KEY UPDATE OF task",
        test=f"{_GROUPS}test_s11_a_renewal_waits_for_no_row_that_another_session_holds",
    ),
    Mutant(
        name="a lease whose renewal was passed over is lost (PostgreSQL)",
        file="backends/jobq_postgres/settle.py",
        text="        passed = {",
        wrong="        _ = {",
        test=f"{_GROUPS}test_a_lease_whose_row_stays_held_is_not_lost",
    ),
    Mutant(
        name="a client that is stopped within a transaction keeps its locks (PostgreSQL)",
        file="backends/jobq_postgres/lane.py",
        text='"idle_in_transaction_session_timeout": "5s"',
        wrong='"idle_in_transaction_session_timeout": "30s"',
        test=f"{_GROUPS}test_s11_a_client_that_is_stopped_within_a_transaction_loses_it_before_others_lose_their_leases",
    ),
    Mutant(
        name="what is taken does not fit together (PostgreSQL)",
        file="backends/jobq_postgres/claim_sql.py",
        text='more="AND numbered.number <= numbered.fit_together"',
        wrong='more=""',
        test="tests/backends/test_shapes.py::test_claims_with_different_rooms_share_and_miss_nothing",
    ),
    Mutant(
        name="one that is to be taken alone, and that others hold, stands before what fits (PostgreSQL)",
        file="backends/jobq_postgres/claim_sql.py",
        text="WHERE NOT EXISTS (SELECT FROM reserved)",
        wrong="WHERE NOT EXISTS (SELECT FROM overtaken)",
        test=f"{_SHAPES}test_what_others_hold_is_passed_over",
    ),
    Mutant(
        name="a claim that is taken over forgets a cancel (PostgreSQL)",
        file="backends/jobq_postgres/claimer.py",
        text='row[5], row["cancel_requested"]) for row in rows',
        wrong="row[5]) for row in rows",
        test="tests/journal/test_served.py::test_who_takes_a_claim_over_hears_that_its_task_is_to_be_canceled",
    ),
)
