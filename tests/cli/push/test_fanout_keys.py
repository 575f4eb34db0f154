"""`fanout --sql` of a table that changes: a row is known again by its key, wherever it stands meanwhile (S8)."""

import contextlib
import sqlite3

import pytest

from tests.cli.conftest import Jobq

FANOUT = ("demo", "fanout", "n", "--sql", "u.db", "SELECT k, name FROM u", "--key", "k")
ECHO = ("--", "echo", "{name}")


def execute(jobq: Jobq, *statements: str) -> None:
    with contextlib.closing(sqlite3.connect(jobq.folder / "u.db")) as database, database:
        for statement in statements:
            database.execute(statement)


def cursor(jobq: Jobq, new: str | None = None) -> str:
    """Return the cursor, or make it another, as one that was not saved yet when the command was killed."""
    with contextlib.closing(sqlite3.connect(jobq.file)) as database, database:
        (found,) = database.execute("SELECT cursor FROM lease").fetchone()
        database.execute("UPDATE lease SET cursor = ?", (new or found,))
    return str(found)


def rows(jobq: Jobq) -> list[str]:
    return [task.argv[-1] for task in jobq.waiting() if task.argv]


@pytest.fixture
def saved(jobq: Jobq) -> str:
    """The cursor after the first of three pages; for the second ends at a row that is refused."""
    numbers = "WITH RECURSIVE n (k) AS (SELECT 0 UNION ALL SELECT k + 1 FROM n WHERE k < 1199)"
    execute(jobq, "CREATE TABLE u (k, name)", f"{numbers} INSERT INTO u SELECT k, 'row ' || k FROM n")
    execute(jobq, "UPDATE u SET name = '-bad' WHERE k = 700")
    assert "queued 500 tasks" in jobq(*FANOUT, *ECHO, code=2).err
    execute(jobq, "UPDATE u SET name = 'row 700' WHERE k = 700")
    return cursor(jobq)


def test_a_row_that_is_deleted_moves_no_other_to_another_id(jobq: Jobq, saved: str) -> None:
    """The id held the place in the walk: all rows of the page behind the deleted one were queued twice."""
    jobq(*FANOUT, *ECHO)
    cursor(jobq, saved)
    execute(jobq, "DELETE FROM u WHERE k = 500", "UPDATE u SET name = 'renamed' WHERE k = 501")
    assert "going on with n after 500 records" in jobq(*FANOUT, *ECHO).err
    assert rows(jobq) == [*(f"row {number}" for number in range(1200)), "renamed"], "which is another task"


def test_keys_that_look_alike_are_others(jobq: Jobq) -> None:
    execute(jobq, "CREATE TABLE u (k, name)", "INSERT INTO u VALUES (1, 'a'), ('1', 'b'), ('1.0', 'c'), ('[1]', 'd')")
    jobq(*FANOUT, *ECHO)
    jobq(*FANOUT[:2], "n.1", *FANOUT[3:], *ECHO)
    assert rows(jobq) == ["a", "b", "c", "d"] * 2


def test_a_column_called_line_may_be_empty(jobq: Jobq) -> None:
    """Its rows were left out, as blank lines of a file are."""
    execute(jobq, "CREATE TABLE u (k, line)", "INSERT INTO u VALUES (1, 'a'), (2, ''), (3, NULL), (4, 'd')")
    jobq(*FANOUT[:5], "SELECT * FROM u", *FANOUT[6:], "--", "echo", "={line}")
    assert rows(jobq) == ["=a", "=", "=", "=d"]


def test_batches_are_known_by_all_their_keys(jobq: Jobq, saved: str) -> None:
    del saved
    execute(jobq, "DELETE FROM u WHERE k > 5")
    batches = (*FANOUT[:2], "b", *FANOUT[3:], "--batch", "2", "-c", 'echo "$@"')
    jobq(*batches)
    assert len({task.id for task in jobq.waiting()[500:]}) == 3


def test_a_name_that_has_lost_its_lease_drops_no_row_of_another_fanout(jobq: Jobq) -> None:
    """Keys are the same in many tables, and a queue refuses an id that it knows with another task."""
    execute(jobq, "CREATE TABLE u (k, name)", "INSERT INTO u VALUES (1, 'a')", "CREATE TABLE v (k, name)")
    execute(jobq, "INSERT INTO v VALUES (1, 'b')")
    jobq(*FANOUT, *ECHO)
    with contextlib.closing(sqlite3.connect(jobq.file)) as database, database:
        database.execute("UPDATE lease SET cursor = NULL")
    jobq(*FANOUT[:5], "SELECT k, name FROM v", *FANOUT[6:], *ECHO)
    assert rows(jobq) == ["a", "b"]
