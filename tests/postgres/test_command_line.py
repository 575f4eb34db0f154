"""The real command line on a real server: specs, exit codes, secrets."""

import asyncio
import os
import sys
from pathlib import Path

import pytest

from jobq.errors import InvalidSpec
from jobq.settings import Settings
from jobq.spec import resolve
from tests.fork_server import forked
from tests.postgres.server import Database, PostgresServer

pytestmark = pytest.mark.check

CANARY = "canary-sesame-7391"


def jobq(*arguments: str, folder: Path, code: int = 0, **environment: str) -> str:
    """Run to the end; return all that was printed."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("JOBQ_", "PG"))}
    done = forked.run(
        [sys.executable, "-m", "jobq", *arguments],
        env={**kept, "HOME": str(folder), "JOBQ_SCHEDULED_EVENTS": "off", **environment},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, f"{done.returncode}, not {code}: {done.stdout}{done.stderr}"
    told: str = done.stdout + done.stderr
    return told


def test_push_and_worker(database: Database, tmp_path: Path) -> None:
    """The first push makes tables and queue; a worker runs the task; both names of the scheme serve."""
    spec = database.spec()
    jobq(spec, "push", "-c", "echo done >> out", folder=tmp_path)
    jobq(spec.replace("postgresql://", "postgres://"), "worker", folder=tmp_path)
    assert (tmp_path / "out").read_text() == "done\n"
    jobq(spec, "create", folder=tmp_path)
    jobq(spec, "create", "--no-exist-ok", folder=tmp_path, code=3)
    assert "0" in jobq(spec, "size", folder=tmp_path)


def test_failures_say_what_to_do(database: Database, tmp_path: Path) -> None:
    there = database.url.rsplit("/", 1)[0]
    assert "createdb" in jobq(f"{there}/nowhere/q", "create", folder=tmp_path, code=3)
    assert "create" in jobq(database.spec(), "size", folder=tmp_path, code=4)
    assert "names no database" in jobq(f"{there}/q", "size", folder=tmp_path, code=3)
    assert "cannot connect" in jobq("postgresql://postgres@127.0.0.1:1/db/q", "size", folder=tmp_path, code=75)


_COMMANDS = (("size",), ("worker",), ("lease", "run", "name", "--", "true"))


@pytest.mark.parametrize("command", _COMMANDS, ids=lambda command: command[0])
def test_port_that_is_none(command: tuple[str, ...], tmp_path: Path) -> None:
    """architecture 12: 3, and nothing is tried again."""
    told = jobq("postgresql://me@127.0.0.1:99999/db/q", *command, folder=tmp_path, code=3)
    assert "'99999' is no port" in told
    assert "Traceback" not in told


@pytest.mark.parametrize("hosts", ["h:notaport", "h:0", "h:65536", "a:1,b:99999", "[::1]:-1", "h:1\u0662"])
def test_ports_that_are_none(hosts: str) -> None:
    with pytest.raises(InvalidSpec, match="is no port"):
        resolve(f"postgresql://me@{hosts}/db/q", Settings())


@pytest.mark.parametrize("hosts", ["h", "h:65535", "a:1,b", "[::1]:5432", "[::1]", "", "%2Frun%2Fpostgresql"])
def test_ports_that_are_some(hosts: str) -> None:
    resolve(f"postgresql://me@{hosts}/db/q", Settings())


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ("sslmode=banana", "sslmode"),
        ("target_session_attrs=rubbish", "target_session_attrs"),
        ("sslmode=require", "speaks no TLS"),
        ("passwrd=canary", 'parameter "passwrd"'),
        ("work_mem=canary", 'parameter "work_mem"'),
        ("port=notaport", "is no port"),
    ],
)
def test_option_that_cannot_serve(database: Database, option: str, says: str, tmp_path: Path) -> None:
    """architecture 12: 3."""
    told = jobq(f"{database.url}?{option}/q", "size", folder=tmp_path, code=3)
    assert says in told
    assert "canary" not in told


def test_worker_does_not_wait_for_tls_where_there_is_none(database: Database, tmp_path: Path) -> None:
    """architecture 12: 3 at once: no waiting makes it better."""
    assert "speaks no TLS" in jobq(f"{database.url}?sslmode=require/q", "worker", folder=tmp_path, code=3)


def test_what_the_environment_says_may_be_wrong_too(database: Database, tmp_path: Path) -> None:
    spec = database.spec().replace("127.0.0.1", "").replace(f":{database.port}", "")
    assert "ValueError" in jobq(spec, "create", folder=tmp_path, code=3, PGPORT="notaport")


@pytest.mark.parametrize("kind", ["missing", "folder", "open to all"])
def test_file_of_passwords_that_cannot_be_used(database: Database, kind: str, tmp_path: Path) -> None:
    """In our words, with no line of a program's source."""
    file = tmp_path / ".pgpass"
    if kind == "folder":
        file.mkdir()
    elif kind == "open to all":
        file.write_text("*:*:*:*:x\n")
        file.chmod(0o644)
    told = jobq(database.spec(), "create", folder=tmp_path, code=3, PGPASSFILE=str(file))
    assert "PGPASSFILE" in told
    assert ".py" not in told
    if kind == "missing":
        jobq(database.spec(), "create", folder=tmp_path)
    else:
        assert "~/.pgpass" in jobq(database.spec(), "create", folder=tmp_path, code=3)


@pytest.mark.parametrize("spec", ["postgresql://me:{}@host/db/q", "postgresql://me@host/db?password={}/q"])
def test_password_in_a_spec_is_refused_and_not_repeated(spec: str, tmp_path: Path) -> None:
    told = jobq(spec.format(CANARY), "size", folder=tmp_path, code=3)
    assert "PGPASSFILE" in told
    assert CANARY not in told


def test_missing_extra_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "asyncpg.py").write_text("raise ModuleNotFoundError(\"No module named 'asyncpg'\", name='asyncpg')\n")
    told = jobq("postgresql://h/db/q", "size", folder=tmp_path, code=3, PYTHONPATH=str(tmp_path))
    assert "pip install 'jobq[postgres]'" in told


@pytest.mark.parametrize("spec", ["postgresql://host/q", "postgresql:///q", "postgresql://h/a/b/q"])
def test_specs_without_a_database(spec: str) -> None:
    with pytest.raises(InvalidSpec, match="names no database"):
        resolve(spec, Settings())


def test_password_is_read_from_its_file_and_shown_nowhere(own_postgres: PostgresServer, tmp_path: Path) -> None:
    """A5, A7: not in messages, logs, command lines or what the server shows of its sessions."""
    database = own_postgres.database
    database.run(f"CREATE ROLE worker LOGIN SUPERUSER PASSWORD '{CANARY}'")
    own_postgres.ask_password_of("worker")
    spec = database.spec().replace("postgres@", "worker@")
    file = tmp_path / "passwords"
    file.write_text(f"*:*:*:worker:{CANARY}-wrong\n")
    file.chmod(0o600)
    told = jobq(spec, "create", folder=tmp_path, code=3, PGPASSFILE=str(file))
    assert "PGPASSFILE" in told
    file.write_text(f"*:*:*:worker:{CANARY}\n")
    told += jobq(spec, "push", "-c", "env; cat /proc/[0-9]*/cmdline", folder=tmp_path, PGPASSFILE=str(file))
    told += jobq(spec, "worker", "-v", folder=tmp_path, PGPASSFILE=str(file))
    told += str(database.run("SELECT * FROM pg_stat_activity")) + str(database.run("SELECT body FROM jobq.task"))
    assert CANARY not in told
    assert str(file) not in told, "the task was told where the password is"


async def test_hosts_are_tried_in_turn(database: Database, tmp_path: Path) -> None:
    """Several hosts in a spec: the first that takes writes is used."""
    spec = f"postgresql://postgres@127.0.0.1:1,127.0.0.1:{database.port}{database.url[database.url.rindex('/') :]}/q"
    told = await asyncio.to_thread(jobq, spec, "push", "-c", "true", folder=tmp_path)
    assert told


_LEASED = {
    "push": ("push", "--resume", "name", "one.txt"),
    "fanout": ("fanout", "name", "--lines", "one.txt", "--", "echo", "{line}"),
    "lease": ("lease", "run", "name", "--", "true"),
}


@pytest.mark.parametrize("command", _LEASED.values(), ids=_LEASED)
def test_first_command_with_a_lease_makes_tables_and_queue(
    database: Database, command: tuple[str, ...], tmp_path: Path
) -> None:
    """As a plain push does; --no-create keeps to it, and nothing is told of a grant that never was."""
    (tmp_path / "one.txt").write_text("true\n")
    if command[0] != "lease":
        told = jobq(database.spec(), command[0], "--no-create", *command[1:], folder=tmp_path, code=4)
        assert "granted" not in told
    told = jobq(database.spec(), *command, folder=tmp_path)
    assert ("created queue" in told) is (command[0] != "lease"), "beside a command nothing of ours is heard"
    assert "granted" not in told
    assert "created" not in jobq(database.spec(), *command, folder=tmp_path)
