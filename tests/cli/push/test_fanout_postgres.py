"""`fanout --sql postgresql://...`: the rows of a query on PostgreSQL, walked by a key; the database is only read."""

from collections.abc import Iterator

import asyncpg
import pytest

from tests.cli.conftest import Jobq
from tests.postgres.server import Database


@pytest.fixture
def users(postgres: Database) -> Iterator[Database]:
    """A database with 600 users, one of whom has a name that is refused."""
    database = postgres.fresh()
    database.run(
        "CREATE TABLE users (id bigint, tag text, made uuid DEFAULT gen_random_uuid(), name text, photo bytea)"
    )
    database.run(
        "INSERT INTO users (id, tag, name) SELECT n, 'tag ' || lpad(n::text, 4, '0'),"
        " CASE n WHEN 551 THEN '-bad' ELSE 'user $1 ' || n END FROM generate_series(1, 600) AS n"
    )
    yield database
    database.drop()


def fanout(users: Database, query: str = "SELECT id, name FROM users WHERE name <> '?'", key: str = "id") -> list[str]:
    return ["demo", "fanout", "users", "--sql", users.url, query, "--key", key, "--", "printf", "%s", "{name}"]


def test_rows_become_tasks_and_an_interrupted_walk_goes_on(jobq: Jobq, users: Database) -> None:
    refused = jobq(*fanout(users), code=2)
    assert "the row with id 551: " in refused.err
    assert len(jobq.waiting()) == 500
    users.run("UPDATE users SET name = 'good' WHERE id = 551")
    assert "going on with users after 500 records" in jobq(*fanout(users)).err
    names = [task.argv[-1] for task in jobq.waiting() if task.argv]
    assert names == [f"user $1 {n}" if n != 551 else "good" for n in range(1, 601)]
    assert "users is done" in jobq(*fanout(users)).err
    assert "begun with another data set" in jobq(*fanout(users, "SELECT * FROM users"), code=2).err


def test_a_text_can_be_the_key(jobq: Jobq, users: Database) -> None:
    jobq(*fanout(users, "SELECT tag, id AS name FROM users", "tag"))
    assert [task.argv[-1] for task in jobq.waiting() if task.argv] == [str(n) for n in range(1, 601)]


def test_a_collation_that_takes_different_keys_for_equal_loses_no_row(jobq: Jobq, users: Database) -> None:
    """Row 501 is equal to the last one of the first page, and not greater."""
    try:
        users.run("CREATE COLLATION nocase (provider = icu, locale = 'und-u-ks-level2', deterministic = false)")
    except asyncpg.FeatureNotSupportedError:
        pytest.skip("this server was built without ICU, which alone has such collations")
    users.run("ALTER TABLE users ALTER COLUMN tag TYPE text COLLATE nocase")
    users.run("UPDATE users SET tag = 'TAG 0500' WHERE id = 501")
    refused = jobq(*fanout(users, "SELECT tag, id AS name FROM users", "tag"), code=3)
    assert "for equal by the collation of 'tag', so one of them would be lost" in refused.err
    assert jobq.waiting() == []
    as_bytes = 'SELECT tag COLLATE "C" AS tag, id AS name FROM users'
    jobq("demo", "fanout", "again", *fanout(users, as_bytes, "tag")[3:])
    assert len(jobq.waiting()) == 600


@pytest.mark.parametrize(
    ("query", "key", "told"),
    [
        ("SELECT * FROM nobody", "id", 'relation "nobody" does not exist'),
        ("SELECT nextval('s') AS id", "id", "read-only transaction"),
        ("SELECT made, name FROM users", "made", "is a UUID; numbers and texts can serve"),
        ("SELECT id, photo AS name FROM (SELECT id, 'x'::bytea AS photo FROM users) AS p", "id", "bytes cannot stand"),
    ],
)
def test_what_cannot_be_walked_is_told(jobq: Jobq, users: Database, query: str, key: str, told: str) -> None:
    users.run("CREATE SEQUENCE s")
    assert told in jobq(*fanout(users, query, key), code=2 if "bytes" in told else 3).err
    assert jobq.waiting() == []
    assert users.run("SELECT last_value, is_called FROM s") == [(1, False)], "the database is only read"


def test_a_database_that_is_away_and_a_password_in_its_address(jobq: Jobq) -> None:
    away = jobq(*fanout(Database("postgresql://somebody@127.0.0.1:1/db")), code=75)
    assert "127.0.0.1:1/db: cannot connect" in away.err
    secret = jobq(*fanout(Database("postgresql://somebody:canary@127.0.0.1:1/db")), code=3)
    assert "a password does not belong" in secret.err
    assert "canary" not in secret.err
    other = jobq(*fanout(Database("mysql://somebody@127.0.0.1/db")), code=3)
    assert "an SQLite file or postgresql://USER@HOST/DATABASE" in other.err


def test_a_real_is_written_as_it_was(jobq: Jobq, users: Database) -> None:
    """As a double, it came as 0.10000000149011612: in tasks, and in the place where the walk goes on."""
    users.run("ALTER TABLE users ADD share real")
    users.run("UPDATE users SET share = id / 10.0")
    jobq(*fanout(users, "SELECT share, share AS name FROM users WHERE id <= 550", "share"))
    assert [task.argv[-1] for task in jobq.waiting() if task.argv] == [str(n / 10) for n in range(1, 551)]
