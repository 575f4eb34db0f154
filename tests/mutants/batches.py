"""Mutants of batches: when one has finished, what is told then, and what a table says of it."""

from typing import Final

from tests.mutants.mutant import Mutant

_SQLITE: Final = "tests/conformance/test_sqlite.py"
_POSTGRES: Final = "tests/conformance/test_postgres.py"
_PAGE: Final = "tests/cli/test_batch.py"

BATCHES: Final[tuple[Mutant, ...]] = (
    Mutant(
        name="a plan in another form ends who meets it",
        file="jobq/batch_plan.py",
        text="        except (ValueError, AttributeError):",
        wrong="        except ZeroDivisionError:",
        test="tests/backends/test_batches.py::test_s11_a_batch_that_a_newer_jobq_keeps_in_another_form_keeps_nobody_from_settling",
    ),
    Mutant(
        name="a batch finishes while a task of it is leased (SQLite)",
        file="backends/jobq_sqlite/batch_sql.py",
        text="""    " OR EXISTS (SELECT 1 FROM task WHERE batch_id = :batch AND state = 'leased')"\n""",
        wrong="",
        test=f"{_SQLITE}::test_case[batch.a_sealed_batch_finishes_with_its_last_task_and_says_so_once]",
    ),
    Mutant(
        name="what is deleted is not counted as gone (SQLite)",
        file="backends/jobq_sqlite/schema.sql",
        text="UPDATE batch SET gone = gone + 1",
        wrong="UPDATE batch SET gone = gone",
        test=f"{_SQLITE}::test_case[batch.what_is_deleted_is_counted_as_gone]",
    ),
    Mutant(
        name="a redrive begins no round (SQLite)",
        file="backends/jobq_sqlite/schema.sql",
        text="round = round + 1, finished_at = NULL",
        wrong="finished_at = NULL",
        test=f"{_SQLITE}::test_case[batch.a_redrive_begins_the_next_round]",
    ),
    Mutant(
        name="what somebody else has ended is looked after by nobody who is idle (SQLite)",
        file="backends/jobq_sqlite/task_sql.py",
        text="if is_noted or (ready",
        wrong="if (ready",
        test="tests/sqlite/test_batches.py::test_who_waits_looks_after_it_as_well",
    ),
    Mutant(
        name="a cancel of a batch ends with its first step (SQLite)",
        file="backends/jobq_sqlite/batch_sql.py",
        text="        return True, False\n",
        wrong="        return False, False\n",
        test="tests/sqlite/test_batches.py::test_a_large_one_is_canceled_in_steps_by_whoever_writes",
    ),
    Mutant(
        name="a push to a sealed batch is taken (PostgreSQL)",
        file="backends/jobq_postgres/batch_push.py",
        text='for name, row in held.items() if row["state"] == BatchState.OPEN}',
        wrong="for name, row in held.items()}",
        test=f"{_POSTGRES}::test_case[batch.a_sealed_batch_takes_no_new_task_and_knows_its_own]",
    ),
    Mutant(
        name="a push of many is not held against a seal (PostgreSQL)",
        file="backends/jobq_postgres/batches.py",
        text="await connection.execute(KEEP_PUSHES_OUT",
        wrong="await connection.execute('SELECT $1::integer'",
        test="tests/postgres/test_batch_races.py",
    ),
    Mutant(
        name="a column of numbers and texts is one of numbers",
        file="jobq/results/table.py",
        text='return "number" if {one, other} == {"integer", "number"} else "text"',
        wrong='return "number"',
        test=f"{_PAGE}::test_a_value_of_any_shape_has_its_columns",
    ),
)
